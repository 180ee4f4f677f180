"""The words with the nearest embeddings are those of the smallest Euclidean distance."""

import numpy as np
import pytest

from tfcap import cli
from tfcap.data.tokens import SPECIALS, Vocab
from tfcap.retrieving.embeddings import nearest_words

VOCAB = Vocab([*SPECIALS, "red", "blue", "circle", "square"])
TABLE = np.zeros([8, 2], np.float16)
# The special rows are copies of "red", which would be the nearest of all.
TABLE[:4], TABLE[4], TABLE[5], TABLE[6], TABLE[7] = [1, 0], [1, 0], [9, 1], [0, 2], [-1, 3]


def test_nearness_is_the_euclidean_distance_and_special_entries_do_not_count():
    """The angle would put "blue" first beside "red", of which it is nearly a multiple."""
    red, circle = nearest_words(TABLE, VOCAB, ["red", "circle"], 2)
    assert [word for word, _ in red] == ["circle", "square"]
    assert red[0][1] == pytest.approx(5**0.5) and red[1][1] == pytest.approx(13**0.5)
    assert circle[0] == ("square", pytest.approx(2**0.5))
    assert len(nearest_words(TABLE, VOCAB, ["red"], 9)[0]) == 3


@pytest.mark.parametrize("word", ["zebra", "<unk>"])
def test_a_word_that_the_vocabulary_lacks_is_refused(word):
    with pytest.raises(cli.UsageError, match=f"must be a word of the .*Received: '{word}'"):
        nearest_words(TABLE, VOCAB, ["red", word], 2)
