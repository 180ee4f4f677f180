"""Starting from a checkpoint of another vocabulary, and writing a run directory in one go."""

import json
import os

import keras
import numpy as np
import pytest
from helpers.prepared import with_other_vocabulary

from tfcap import configs, runs
from tfcap.data.prepared import PreparedData
from tfcap.data.tokens import SPECIALS, Vocab
from tfcap.runs import checkpoints
from tfcap.training.task import CaptionTask

OTHER = ["zebra", "red", "quasar", "circle", "a"]  # in another order, two of them new


@pytest.fixture(scope="module")
def data(shapes):
    return PreparedData.load(shapes)


@pytest.fixture(scope="module")
def params(small):
    return configs.resolve("xtransformer", override=json.dumps(small))


@pytest.fixture(scope="module")
def other(data, params, tmp_path_factory):
    """A run directory whose vocabulary shares three words with the shapes, and its model."""
    vocab = Vocab([*SPECIALS, *OTHER])
    keras.utils.set_random_seed(9)
    model = runs.build_model(params.task, len(vocab), data.feature_dim)
    fingerprint = data.fingerprint | {"vocab_sha256": vocab.sha256}
    folder = str(tmp_path_factory.mktemp("other") / "run")
    path = runs.create(folder, "xtransformer", params, vocab, fingerprint, model)
    assert path == f"{folder}/ckpt-0"
    return folder, model


def task(params, data, **changes):
    params = params.replace(task=changes)
    return CaptionTask(params.task, data, params.trainer.optimizer_config)


def weights(model):
    return {name: v.numpy() for name, v in model.checkpoint_items["weights"].items()}


@pytest.mark.parametrize("place", ["", "ckpt-0"])
def test_remapping(other, data, params, place, capsys):
    folder, model = other
    assert {"red", "circle", "a"} < set(data.vocab.words) and "zebra" not in data.vocab.words
    source = os.path.join(folder, place)
    one = task(params, data, init_checkpoint=source, remap_vocab=True)
    mine = one.build_model()
    before = weights(mine)
    one.initialize(mine)
    after, theirs = weights(mine), weights(model)
    total = len(data.vocab)
    assert f"ckpt-0: 7 of {total} words keep their rows, {total - 7} are new" in (
        capsys.readouterr().out
    )
    for name, value in after.items():
        if name not in mine.vocabulary_axes:
            np.testing.assert_array_equal(value, theirs[name])
            continue
        value, old, new = (
            np.moveaxis(v[name], mine.vocabulary_axes[name], 0) for v in (after, before, theirs)
        )
        for number, word in enumerate(data.vocab.words):
            known = word in (*SPECIALS, *OTHER)
            expected = new[[*SPECIALS, *OTHER].index(word)] if known else old[number]
            np.testing.assert_array_equal(value[number], expected)


def test_another_vocabulary_is_noticed(other, data, params, tmp_path):
    one = task(params, data, init_checkpoint=other[0])
    with pytest.raises(ValueError, match="has another vocabulary.*task.remap_vocab=true"):
        one.initialize(one.build_model())
    bare = tmp_path / "bare"
    bare.mkdir()
    for name in os.listdir(other[0]):
        if "ckpt" in name or name == "checkpoint":
            (bare / name).write_bytes(open(os.path.join(other[0], name), "rb").read())
    one = task(params, data, init_checkpoint=str(bare), remap_vocab=True)
    with pytest.raises(ValueError, match="task.remap_vocab needs .*bare/vocab.txt"):
        one.initialize(one.build_model())


def test_the_same_vocabulary_needs_no_remapping(trained, data, params):
    one = task(params, data, init_checkpoint=f"{trained}/best_ckpt", remap_vocab=True)
    model = one.build_model()
    one.initialize(model)
    path = checkpoints.find(f"{trained}/best_ckpt")
    again = one.build_model()
    checkpoints.restore_weights(again, path)
    for name, value in weights(model).items():
        np.testing.assert_array_equal(value, weights(again)[name])


def test_creating(other, data, params, tmp_path, monkeypatch):
    folder, model = other
    run = runs.load(folder)
    assert run.checkpoint == f"{folder}/ckpt-0" and run.vocab.words[4:] == OTHER
    assert runs.step_of(run.checkpoint) == 0
    for name, value in weights(run.model).items():
        np.testing.assert_array_equal(value, weights(model)[name])
    rest = (run.params, run.vocab, run.fingerprint, run.model)
    with pytest.raises(ValueError, match="is not empty: choose a new"):
        runs.create(folder, "xtransformer", *rest)
    target, table = tmp_path / "empty", tmp_path.parent / "document_frequency.npz"
    table.touch()  # any file will do
    target.mkdir()
    runs.create(f"{target}/", "xtransformer", *rest, [table])
    assert sorted(os.listdir(target)) == sorted([*os.listdir(folder), table.name])
    monkeypatch.setattr(configs, "save", _fails)
    with pytest.raises(OSError, match="no room"):
        runs.create(str(tmp_path / "new"), "xtransformer", *rest)
    assert os.listdir(tmp_path) == ["empty"]


def _fails(*_):
    raise OSError("no room")


def test_going_on_with_what_was_created(other, params, shapes, tmp_path):
    """`begin` takes it for a run at step 0 of its own data, and of no other."""
    words = PreparedData.load(with_other_vocabulary(shapes, tmp_path / "shapes"))
    with pytest.raises(ValueError, match="was started with another vocabulary"):
        runs.begin(other[0], "xtransformer", params, words)
    model = runs.build_model(params.task, len(words.vocab), words.feature_dim)
    folder = str(tmp_path / "run")
    runs.create(folder, "xtransformer", params, words.vocab, words.fingerprint, model)
    assert runs.begin(folder, "xtransformer", params, words) == 0
    name, loaded = configs.resume(f"{folder}/params.yaml", (), "task.decoding.beam=4")
    assert name == "xtransformer" and loaded.task.decoding.beam == 4
    assert runs.begin(folder, name, loaded, words) == 0
