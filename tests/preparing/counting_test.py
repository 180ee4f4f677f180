"""Tables of shards add up to the table that is counted at once."""

import numpy as np
import pytest

from tfcap.data.document_frequency import DocumentFrequencies, document_frequencies, merged
from tfcap.data.tokens import Vocab
from tfcap.preparing import sidecars
from tfcap.preparing.captions import Kept
from tfcap.preparing.counting import CountTask, NgramWorker, count
from tfcap.preparing.engines import Inline
from tfcap.preparing.work import described_words

WORDS = [f"w{number}" for number in range(12)]


def random_images(number):
    """Images with captions of words of which the last ones are rare, some without a caption."""
    rng = np.random.default_rng(number)
    images = []
    for image in range(number):
        captions = [
            [WORDS[place] for place in rng.geometric(0.3, rng.integers(0, 9)).clip(1, 12) - 1]
            for _ in range(rng.integers(0, 4))
        ]
        images.append(Kept(image, "x.jpg", "train", [" ".join(c) for c in captions], captions))
    return images


def equal(one, other):
    assert one.images == other.images
    np.testing.assert_array_equal(one.ngrams, other.ngrams)
    np.testing.assert_array_equal(one.counts, other.counts)
    assert (one.ngrams.dtype, one.counts.dtype) == (other.ngrams.dtype, other.counts.dtype)


@pytest.mark.parametrize("size", [1, 7, 60])
def test_shards_of_any_size_give_the_table_of_all_images(tmp_path, size):
    images = random_images(60)
    vocab = Vocab.build((words for image in images for words in image.words), 9)
    assert 4 < len(vocab) < 16
    names = []
    for start in range(0, 60, size):
        names.append(f"train-{start:05d}-of-00060.tfrecord")
        known = described_words(images[start : start + size])
        sidecars.write(tmp_path, "digest", {"file": names[-1], "records": 0, "bytes": 0, **known})
    worker = NgramWorker(str(tmp_path), "digest", tuple(vocab.words))
    table = count(Inline().map, worker, names)
    equal(table, document_frequencies([map(vocab.ids, image.words) for image in images]))
    assert len(list((tmp_path / ".shards").iterdir())) == len(names)  # no table is left


def test_a_shard_without_captions_is_an_error(tmp_path):
    sidecars.write(tmp_path, "digest", {"file": "val-0.tfrecord", "records": 0, "bytes": 0})
    worker = NgramWorker(str(tmp_path), "digest", tuple(Vocab.build([["a"]], 1).words))
    for name in ("val-0.tfrecord", "none.tfrecord"):
        with pytest.raises(ValueError, match="must have the captions of the shard"):
            worker(CountTask(name))


def test_tables_with_the_largest_ids_add_up():
    large = 2**31 - 1
    parts = [[[[large, 4], [large, large, large, large]]], [[[large, 4]], [[5]]], [[[]]]]
    whole = document_frequencies([image for part in parts for image in part])
    equal(merged(map(document_frequencies, parts)), whole)
    equal(merged(map(document_frequencies, parts[::-1])), whole)


def test_at_least_one_table_is_needed():
    with pytest.raises(ValueError, match="at least one table"):
        merged([])
    empty = DocumentFrequencies(np.zeros([0, 4], np.int32), np.zeros([0], np.int32), 1)
    assert merged([empty, empty]).images == 2
