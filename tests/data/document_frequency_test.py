"""Document frequencies count images, and EOS is a word."""

import collections

import numpy as np
import pytest

from tfcap.data.document_frequency import (
    count_ngrams,
    document_frequencies,
    ends,
    load_document_frequencies,
    write_document_frequencies,
)
from tfcap.ids import EOS, UNK


def as_dict(table):
    """The counts by n-gram; the rows are sorted."""
    rows = [tuple(row) for row in table.ngrams.tolist()]
    assert rows == sorted(rows) and table.ngrams.dtype == table.counts.dtype == np.int32
    return {
        tuple(i for i in row if i): int(count)
        for row, count in zip(rows, table.counts, strict=True)
    }


def test_document_frequencies_by_hand(tmp_path):
    table = document_frequencies([[[4, 5], [4, 4]], [[4, 5]]])
    both = [(4,), (5,), (2,), (4, 5), (5, 2), (4, 5, 2)]
    assert as_dict(table) == dict.fromkeys(both, 2) | {(4, 4): 1, (4, 2): 1, (4, 4, 2): 1}
    write_document_frequencies(tmp_path, table)
    loaded = load_document_frequencies(tmp_path)
    assert as_dict(loaded) == as_dict(table) and loaded.images == table.images == 2
    with pytest.raises(ValueError, match="at least one image"):
        document_frequencies([])


def counted_word_by_word(images, end):
    counts = collections.Counter()
    for captions in images:
        ngrams = set()
        for caption in captions:
            words = [*caption, *end]
            ngrams |= {
                tuple(words[i : i + n]) for n in range(1, 5) for i in range(len(words) - n + 1)
            }
        counts.update(ngrams)
    return dict(counts)


@pytest.mark.parametrize("vocabulary", [2, 30, 2**31 - 10])
def test_document_frequencies_equal_a_literal_count(vocabulary):
    rng = np.random.default_rng(vocabulary)
    images = [
        [rng.integers(UNK, UNK + vocabulary, rng.integers(0, 9)).tolist() for _ in range(number)]
        for number in rng.integers(0, 5, 60)
    ]
    assert as_dict(document_frequencies(images)) == counted_word_by_word(images, [EOS])
    captions = [caption for own in images for caption in own]
    words = np.array([word for caption in captions for word in caption], np.int32)
    flat = (words, ends(list(map(len, captions))), ends(list(map(len, images))))
    without = counted_word_by_word(images, [])
    assert as_dict(count_ngrams(*flat, end_mark=False)) == without
    common = {ngram: count for ngram, count in without.items() if count >= 2}
    assert as_dict(count_ngrams(*flat, end_mark=False, least=2)) == common
