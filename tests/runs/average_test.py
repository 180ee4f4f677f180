"""The mean of the last checkpoints: its numbers, the run that is written, and its errors."""

import json

import numpy as np
import pytest
import tensorflow as tf
from helpers import commands, events, seeds

from tfcap import export, models, runs
from tfcap.runs.average import average, last_checkpoints, load


@pytest.fixture(scope="module")
def averaged(trained, tmp_path_factory):
    """The run of the mean of the last two checkpoints of `trained`."""
    out = tmp_path_factory.mktemp("average") / "mean"
    commands.run_here(
        *(export, "--model_dir", trained, "--export_dir", out, "--format=run", "--last=2"),
        "--weights=float32",
    )
    return out


def group(checkpoint):
    tensors = events.tensors(checkpoint).items()
    return {name: value for name, value in tensors if name.startswith("weights/")}


def test_weights_are_the_mean_of_the_last_checkpoints(averaged, trained):
    first, second = (group(f"{trained}/ckpt-{step}") for step in (4, 6))
    found = group(averaged / "ckpt-0")
    assert found.keys() == first.keys() == second.keys() and len(found) > 10
    for name, value in found.items():
        mean = (np.float64(first[name]) + second[name]) / 2
        np.testing.assert_array_equal(value, mean.astype(np.float32), err_msg=name)
    assert any((found[name] != second[name]).any() for name in found)


def test_the_result_is_a_run_without_the_scores_of_another_checkpoint(averaged, trained):
    run, other = runs.load(str(averaged)), runs.load(trained)
    assert run.checkpoint == str(averaged / "ckpt-0") and run.vocab.words == other.vocab.words
    assert json.loads((averaged / "info.json").read_text()) == {"signature": "cross-entropy"}
    expected = group(averaged / "ckpt-0")
    for name, weight in run.model.checkpoint_items["weights"].items():
        key = f"weights/{name.replace('/', '.S')}/.ATTRIBUTES/VARIABLE_VALUE"
        np.testing.assert_array_equal(weight, expected[key], err_msg=name)


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


def test_too_few_checkpoints_are_refused(trained):
    with pytest.raises(
        ValueError, match="-last must be at most 2, .* Received: 5. .*max_to_keep=5"
    ):
        load(trained, 5)
