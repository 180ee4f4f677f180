"""The mean of the last checkpoints: its numbers, the run that is written, and its errors."""

import shutil

import numpy as np
import pytest
import tensorflow as tf
import yaml
from helpers import events, seeds

from tfcap import models, runs
from tfcap.runs.average import average, last_checkpoints, write


@pytest.fixture(scope="module")
def averaged(trained, tmp_path_factory):
    """The run of the mean of the last two checkpoints of `trained`."""
    out = tmp_path_factory.mktemp("average") / "mean"
    paths = write(trained, 2, str(out))
    assert paths == [f"{trained}/ckpt-4", f"{trained}/ckpt-6"]
    return out


def group(checkpoint, start="weights/"):
    return {n: v for n, v in events.tensors(checkpoint).items() if n.startswith(start)}


def test_weights_are_the_mean_of_the_last_checkpoints(averaged, trained):
    out = averaged
    first, second = (group(f"{trained}/ckpt-{step}") for step in (4, 6))
    found = group(out / "ckpt-0")
    assert found.keys() == first.keys() == second.keys() and len(found) > 10
    for name, value in found.items():
        mean = (np.float64(first[name]) + second[name]) / 2
        np.testing.assert_array_equal(value, mean.astype(np.float32), err_msg=name)
    assert any((found[name] != second[name]).any() for name in found)


def test_the_result_is_a_run(averaged, trained):
    """It has the vocabulary, the data and the configuration of the averaged run."""
    out = averaged
    run, other = runs.load(str(out)), runs.load(trained)
    assert run.checkpoint == str(out / "ckpt-0") and runs.step_of(run.checkpoint) == 0
    assert run.params.as_dict() == other.params.as_dict()
    assert run.fingerprint == other.fingerprint and run.vocab.words == other.vocab.words
    read = [yaml.safe_load(open(f"{folder}/params.yaml")) for folder in (out, trained)]
    assert read[0] == read[1] and read[0]["experiment"] == "attention_lstm"
    expected = group(out / "ckpt-0")
    for name, weight in run.model.checkpoint_items["weights"].items():
        key = f"weights/{name.replace('/', '.S')}/.ATTRIBUTES/VARIABLE_VALUE"
        np.testing.assert_array_equal(weight, expected[key], err_msg=name)


def test_the_backbone_is_copied(trained, tmp_path):
    source = tmp_path / "source"
    shutil.copytree(trained, source)
    (source / "backbone.weights.h5").write_bytes(b"weights")
    write(str(source), 1, str(tmp_path / "out"))
    assert (tmp_path / "out" / "backbone.weights.h5").read_bytes() == b"weights"
    found, expected = group(tmp_path / "out" / "ckpt-0"), group(source / "ckpt-6")
    for name, value in expected.items():
        np.testing.assert_array_equal(found[name], value, err_msg=name)


def test_the_mean_does_not_name_the_checkpoint_that_the_run_started_from(trained, tmp_path):
    """The first score of training in it is not compared with the score of that checkpoint."""
    source = shutil.copytree(trained, tmp_path / "source")
    content = yaml.safe_load((source / "params.yaml").read_text())
    content["task"] |= {"init_checkpoint": "runs/first/best_ckpt", "remap_vocab": True}
    (source / "params.yaml").write_text(yaml.safe_dump(content, sort_keys=False))
    write(str(source), 1, str(tmp_path / "out"))
    task = runs.load(str(tmp_path / "out")).params.task
    assert (task.init_checkpoint, task.remap_vocab) == ("", False)


@pytest.mark.slow
def test_weights_are_summed_in_float64(tmp_path):
    """In float32 the sum 2^24 + 1 + 1 would be 2^24."""
    seeds.set_seed(0)
    sizes = dict(width=8, heads=2, encoder_layers=0, decoder_layers=1, inner_width=8)
    model = models.build("xtransformer", 13, 6, 5, **sizes)
    items = model.checkpoint_items
    paths = []
    for step, value in enumerate((2.0**24, 1.0, 1.0)):
        for weight in items["weights"].values():
            weight.assign(tf.fill(weight.shape, value))
        paths.append(tf.train.Checkpoint(**items).write(f"{tmp_path}/ckpt-{step}"))
    average(model, paths)
    for weight in items["weights"].values():
        np.testing.assert_array_equal(weight, np.full(weight.shape, (2**24 + 2) / 3, np.float32))
    assert last_checkpoints(str(tmp_path), 2) == paths[1:]


def test_the_newest_checkpoints_are_chosen_by_number(tmp_path):
    """Ten comes after nine, and files that are no training checkpoint do not count."""
    for name in ("ckpt-9.index", "ckpt-10.index", "ckpt-8.index", "ckpt-11.data-00000-of-00001"):
        (tmp_path / name).touch()
    found = last_checkpoints(str(tmp_path), 2)
    assert found == [str(tmp_path / "ckpt-9"), str(tmp_path / "ckpt-10")]


def test_too_few_checkpoints_and_wrong_directories_are_refused(averaged, trained, tmp_path):
    out = averaged
    few = "-last must be at most 2, .* Received: 5. .*max_to_keep=5"
    with pytest.raises(ValueError, match=few):
        write(trained, 5, str(tmp_path / "out"))
    with pytest.raises(ValueError, match="mean is not empty"):
        write(trained, 2, str(out))
    with pytest.raises(ValueError, match="params.yaml is missing"):
        write(str(tmp_path), 2, str(tmp_path / "out"))
    assert not (tmp_path / "out").exists()
