"""Ensembles: probabilities are averaged, and several runs are taken like one."""

import json

import keras
import numpy as np
import pytest
import tensorflow as tf
from helpers import searches
from helpers.sizes import FEATURES, LENGTH, VOCABULARY

from tfcap import configs, decoding, models, runs
from tfcap.captioning import caption
from tfcap.data.prepared import PreparedData
from tfcap.scoring.decode import decode_split


def member(system, seed, vocab_size=VOCABULARY, length=LENGTH, features=FEATURES, **options):
    keras.utils.set_random_seed(seed)
    return models.build(system, vocab_size, length, features, width=16, **options)


@pytest.fixture(scope="module")
def members():
    return [
        member("updown", 1, attention_width=6),
        member("xlan", 2, heads=2, encoder_layers=0),
        member("show_tell", 3),
    ]


@pytest.fixture(scope="module")
def ensemble(members):
    return models.Ensemble(members)


def test_probabilities_are_averaged(members, ensemble, batch):
    each = [tf.nn.softmax(tf.cast(model(batch), tf.float64)) for model in members]
    expected = np.mean(each, axis=0)
    np.testing.assert_allclose(tf.exp(ensemble(batch)), expected, atol=1e-6)
    assert np.abs(expected - each[0]).max() > 1e-3
    # The mean of logits is something else, and would not be seen here otherwise.
    logits = tf.nn.softmax(sum(model(batch) for model in members) / len(members))
    assert np.abs(expected - logits).max() > 1e-3


def test_a_model_and_itself(members, batch):
    context = members[0].encode(batch)
    twice = models.Ensemble([members[0], members[0]])
    alone = searches.beam_search(members[0], context, 3, LENGTH)
    found = searches.beam_search(twice, [context, context], 3, LENGTH)
    np.testing.assert_array_equal(found[0], alone[0])
    np.testing.assert_allclose(found[1], alone[1], atol=1e-5)


def test_beam_scores_are_those_of_the_sentences(ensemble, batch):
    context = ensemble.encode(batch)
    tokens, scores, _ = searches.beam_search(ensemble, context, 3, LENGTH)
    words = decoding.score(ensemble, context, tf.reshape(tokens, (-1, LENGTH)))
    np.testing.assert_allclose(tf.reduce_sum(words, 1), tf.reshape(scores, [-1]), atol=1e-4)


@pytest.mark.parametrize(
    ("change", "part"),
    [
        (dict(vocab_size=14), r"same vocab_size. Received: \[13, 14\]"),
        (dict(features=7), r"same feature_dim. Received: \[6, 7\]"),
        (dict(length=9), r"same max_length. Received: \[6, 9\]"),
    ],
)
def test_members_that_do_not_fit(members, change, part):
    with pytest.raises(ValueError, match=part):
        models.Ensemble([members[0], member("show_tell", 3, **change)])


def test_no_members():
    with pytest.raises(ValueError, match="at least one"):
        models.Ensemble([])


@pytest.fixture(scope="module")
def together(trained, shapes, tmp_path_factory):
    """A trained run and one of another system on the same data, with random weights."""
    data = PreparedData.load(shapes)
    override = {"task": {"data_dir": shapes, "max_length": 12, "model": {"updown": {"width": 16}}}}
    params = configs.resolve("updown", override=json.dumps(override))
    keras.utils.set_random_seed(5)
    model = runs.build_model(params.task, len(data.vocab), data.feature_dim)
    folder = str(tmp_path_factory.mktemp("other") / "run")
    runs.create(folder, "updown", params, data.vocab, data.fingerprint, model)
    return [trained, folder]


def test_runs_are_loaded_as_one(together, shapes):
    run = runs.load_together(together)
    assert [m.name for m in run.model.members] == ["xtransformer", "updown"]
    data = PreparedData.load(shapes)

    def decode(run):
        parts = (run.model, run.vocab, runs.search(run), data, "val", 6)
        found = decode_split(*parts).captions
        return {image: captions[0] for image, captions in found.items()}

    captions = decode(run)
    assert len(captions) == 12
    assert captions != decode(runs.load(together[0]))
    served = runs.server(run)
    names = list(data.file_names("val").items())[:3]
    paths = [f"{data.images}/{name}" for _, name in names]
    found = [captions[0] for _, captions, _ in caption(served, paths, 3)]
    assert found == [captions[image] for image, _ in names]


def test_one_run_is_no_ensemble(together):
    assert runs.load_together(together[:1]).model.name == "xtransformer"


def test_runs_of_other_data(together, tmp_path):
    fingerprint = runs.read_fingerprint(together[1])
    first = runs.load(together[1])
    other = fingerprint | {"backbone": fingerprint["backbone"] | {"grid": 3}}
    folder = str(tmp_path / "run")
    runs.create(folder, "updown", first.params, first.vocab, other, first.model)
    with pytest.raises(ValueError, match="backbone of .* must have been trained on the same data"):
        runs.load_together([together[0], folder])


def test_runs_that_see_other_regions(together, tmp_path):
    first = runs.load(together[1])
    params = first.params.replace(task={"validation_data": {"max_regions": 7}})
    folder = str(tmp_path / "run")
    runs.create(folder, "updown", params, first.vocab, first.fingerprint, first.model)
    with pytest.raises(ValueError, match="sees 7 regions.*0.*must see the same"):
        runs.load_together([together[0], folder])


def test_members_and_checkpoints(together):
    with pytest.raises(ValueError, match="belongs to one run, 'ckpt-6' to which of 2"):
        runs.load_together(together, "ckpt-6")
    with pytest.raises(ValueError, match="is given twice"):
        runs.load_together([together[0], together[0] + "/"])
