"""References in the batches: all captions of every image, for a reward."""

import itertools

import numpy as np
import pytest
import tensorflow as tf
from helpers import numbered
from helpers.numbered import words_of

from tfcap.data import pipeline
from tfcap.data.prepared import PreparedData
from tfcap.ids import BOS, EOS, PAD

pytestmark = pytest.mark.slow

ARGUMENTS = {"batch_size": 4, "captions_per_image": 3, "max_length": 8}


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> PreparedData:
    return numbered.prepare(str(tmp_path_factory.mktemp("prepared")))


def training(data, count: int, **changes) -> list[dict]:
    dataset = pipeline.training_batches(data, pipeline.BatchOptions(**ARGUMENTS | changes), seed=11)
    return list(itertools.islice(dataset.as_numpy_iterator(), count))


def whole(ids):
    """References as they are."""
    return ids


def test_references_are_all_captions_of_each_image(data):
    batches = training(data, 15, references=whole)  # three epochs
    for batch, without in zip(batches, training(data, 15), strict=True):
        assert {*batch} - {*without} == {"references"}
        assert all(np.array_equal(batch[key], without[key]) for key in without)
        result = batch["references"]
        counts = [1 + int(i) % 6 for i in batch["id"]]
        assert result.dtype == np.int32 and result.shape[:2] == (4, max(counts))
        assert result.shape[2] == (result != PAD).sum(-1).max()  # words and EOS, no BOS
        assert not (result == BOS).any()
        ends = (result == EOS).sum(-1)
        for row, (image, count) in enumerate(zip(batch["id"].tolist(), counts, strict=True)):
            assert ends[row].tolist() == [1] * count + [0] * (max(counts) - count)
            assert not result[row, count:].any()
            wanted = [f"image {words_of(image)} caption {words_of(c)}" for c in range(count)]
            read = data.vocab.detokenize(result[row, :count]).numpy()
            assert [sentence.decode() for sentence in read] == wanted


def test_references_through_decoding_and_static_shapes(data):
    def tree(ids):
        return {"ids": ids, "deep": {"lengths": tf.math.count_nonzero(ids, -1)}}

    options = pipeline.BatchOptions(
        split="val", batch_size=2, captions_per_image=3, max_length=8, references=tree
    )
    for batch in pipeline.decoding_batches(data, options).as_numpy_iterator():
        counts = [1 + int(i) % 6 for i in batch["id"]]
        lengths = batch["references"]["deep"]["lengths"]
        assert [np.count_nonzero(row) for row in lengths] == counts
    options = pipeline.BatchOptions(
        **ARGUMENTS, pad_to_max=True, references=tree, reference_length=9
    )
    static = pipeline.training_batches(data, options, seed=11)
    spec = static.element_spec["references"]
    assert spec["ids"].shape == [4, 6, 9] and spec["deep"]["lengths"].shape == [4, 6]
    for padded, trimmed in zip(static.take(3), training(data, 3, references=whole), strict=True):
        wanted, result = trimmed["references"], padded["references"]["ids"].numpy()
        (_, captions, length) = wanted.shape
        np.testing.assert_array_equal(result[:, :captions, :length], wanted)
        assert np.count_nonzero(result) == np.count_nonzero(wanted)
    options = pipeline.BatchOptions(**ARGUMENTS, references=whole)
    dynamic = pipeline.training_batches(data, options, seed=11)
    assert dynamic.element_spec["references"].shape.as_list() == [4, None, None]
