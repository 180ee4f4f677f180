"""The prefix of an image is the first words of its first reference, as ids."""

import numpy as np

from tfcap.data.tokens import SPECIALS, Vocab
from tfcap.scoring import begun

VOCAB = Vocab([*SPECIALS, "a", "red", "circle"])
REFERENCES = {7: ["A red, red circle.", "circle"], 5: ["a zebra circle"], 3: [], 2: ["zebra"]}


def test_a_prefix_ends_before_an_unknown_word():
    assert begun.first_words(REFERENCES, VOCAB, 3) == {7: [4, 5, 5], 5: [4], 2: []}
    assert begun.first_words(REFERENCES, VOCAB, 1) == {7: [4], 5: [4], 2: []}


def test_the_rows_of_a_batch_are_padded():
    prefixes = begun.first_words(REFERENCES, VOCAB, 3)
    wanted = [[4, 0, 0], [0, 0, 0], [4, 5, 5]]
    np.testing.assert_array_equal(begun.rows(prefixes, [5, 3, 7], 3), wanted)
    assert begun.rows({}, [5, 3], 0).shape == (2, 0)
