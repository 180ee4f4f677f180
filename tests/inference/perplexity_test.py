"""Perplexities of the captions of a split equal a literal version in float64."""

import dataclasses
import json
import shutil

import numpy as np
import pytest
import tensorflow as tf

from tfcap import models, runs
from tfcap.data.prepared import PreparedData, write_references
from tfcap.ids import BOS, EOS
from tfcap.inference import likelihood
from tfcap.inference.likelihood import perplexities_of_split
from tfcap.inference.rerank import ConsensusReranker
from tfcap.inference.retrieval import Pairs

pytestmark = pytest.mark.slow

MRNN = dict(embed_width=9, width=16, multimodal_width=12, head_dropout=0.2)


@pytest.fixture(scope="module", params=["trained", "mrnn"])
def run(request, trained, shapes):
    """The trained run, and the same run with an m-RNN as its model."""
    run = runs.load(trained)
    sizes = len(run.vocab), run.params.task.max_length, PreparedData.load(shapes).feature_dim
    if request.param == "trained":
        return run
    other = models.build("mrnn", *sizes, **MRNN)
    return dataclasses.replace(run, model=other)


def _literal(decode, context, row):
    """Computes log2 P of one caption in float64; the softmax has no PAD and BOS."""
    logits = decode(context, tf.constant([[BOS, *row[:-1]]])).numpy()[0].astype(np.float64)
    total = 0.0
    for step, word in zip(logits, row, strict=True):
        total += np.log2(np.exp(step[word]) / np.exp(step[EOS:]).sum())
    return total


def test_perplexities_equal_a_literal_version_in_float64(run, shapes):
    data = PreparedData.load(shapes)
    result = perplexities_of_split(run, data, "val", batch_size=2, limit=3)
    references = dict(list(data.references("val").items())[:3])
    expected, words = [], []
    blocks = likelihood.read_images(data, "val", range(3), 1)
    for captions, inputs in zip(references.values(), blocks, strict=True):
        sentences = likelihood.encode_captions(run.vocab, captions, run.params.task.max_length)
        context = run.model.encode(inputs)
        for row, length in zip(sentences.tokens.tolist(), sentences.words, strict=True):
            expected.append(_literal(run.model.decode, context, row[:length]))
            words.append(length)
    np.testing.assert_allclose(result.log2, expected, rtol=1e-5)
    assert result.words.tolist() == words
    assert result.image.tolist() == [image for image, own in references.items() for _ in own]
    each = [2 ** (-log2 / length) for log2, length in zip(expected, words, strict=True)]
    np.testing.assert_allclose(result.each, each, rtol=1e-5)
    assert result.corpus == pytest.approx(2 ** (-sum(expected) / sum(words)), rel=1e-5)
    assert result.mean == pytest.approx(sum(each) / len(each), rel=1e-5)


def test_given_words_are_scored_and_not_the_raw_captions(trained, shapes, tmp_path):
    """Data of --tokens=given: its references are raw captions that training does not read."""
    plain, run = PreparedData.load(shapes), runs.load(trained)
    folder = shutil.copytree(shapes, tmp_path / "given")
    fingerprint = json.loads((folder / "dataset.json").read_text()) | {"tokens": "given"}
    for split, entry in fingerprint["splits"].items():
        entry.pop("references_sha256", None)
        names = plain.file_names(split)
        raw = {
            image: [" ".join(["xyz", *reversed(caption.split())]) for caption in own]
            for image, own in plain.references(split).items()
        }
        write_references(folder, split, [(image, names[image], own) for image, own in raw.items()])
    (folder / "dataset.json").write_text(json.dumps(fingerprint))
    data = PreparedData.load(folder)
    assert all(own[0].startswith("xyz ") for own in data.references("val").values())
    result, expected = (perplexities_of_split(run, one, "val", limit=3) for one in (data, plain))
    assert result.corpus == expected.corpus
    result, expected = (Pairs(run, one, "val", 3, 8).captions()[0] for one in (data, plain))
    assert result == expected
    hypotheses = [[own[0] for own in plain.references("train").values()]]
    consensus = [ConsensusReranker(one, neighbours=5) for one in (data, plain)]
    vectors = consensus[0].vectors(tf.ones([1, 4, data.feature_dim]))
    (first,), (second,) = (one.rerank(vectors, hypotheses) for one in consensus)
    assert first.captions == second.captions and first.scores[0] > 0
    np.testing.assert_array_equal(first.scores, second.scores)
