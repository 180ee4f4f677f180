"""The vector of a sentence equals a literal computation over all captions."""

import collections
import math

import numpy as np
import pytest

from tfcap.nearest.sentences import SentenceVectors

CAPTIONS = [
    ["A dog runs on the beach.", "the dog runs"],
    ["Two dogs play in the snow"],
    [],
    ["a red car", "A red car on the beach", "a dog in a red car"],
    ["a man plays a red guitar"],
]
VECTORS = np.random.default_rng(0).normal(size=(5, 3)).astype(np.float32)


def _terms(text):
    words = text.lower().replace(".", "").split()
    return collections.Counter([*words, *zip(words, words[1:], strict=False)])


def _literal(text, best):
    """The weighted mean of vectors, by dictionaries."""
    frequency = collections.Counter()
    for own in CAPTIONS:
        frequency.update({term for caption in own for term in _terms(caption)})

    def weighed(text):
        return {
            t: n * math.log(4 / frequency[t]) for t, n in _terms(text).items() if t in frequency
        }

    query, found = weighed(text), []
    for image, own in enumerate(CAPTIONS):
        for caption in own:
            other = weighed(caption)
            product = sum(weight * other.get(term, 0) for term, weight in query.items())
            found.append((product / math.sqrt(sum(w * w for w in other.values())), image))
    found = sorted(found, reverse=True)[:best]
    return sum(w * VECTORS[i].astype(float) for w, i in found) / sum(w for w, _ in found)


@pytest.mark.parametrize("best", [1, 2, 4, 99])
def test_a_vector_is_the_mean_of_images_with_similar_captions(best):
    vectors = SentenceVectors(CAPTIONS, VECTORS, best)
    texts = ["A dog runs!", "red car on the zebra", "two red guitar man plays in the snow"]
    found = vectors(texts)
    assert found.shape == (3, 3) and found.dtype == np.float32
    np.testing.assert_allclose(
        found, [_literal(t.replace("!", ""), best) for t in texts], rtol=1e-5
    )


def test_a_sentence_of_unknown_words_gets_the_mean_of_all_images():
    vectors = SentenceVectors(CAPTIONS, VECTORS)
    np.testing.assert_allclose(vectors(["zebras everywhere", ""]), [VECTORS.mean(0)] * 2, rtol=1e-6)
    assert vectors([]).shape == (0, 3)


def test_images_without_captions_are_refused():
    with pytest.raises(ValueError, match="have no captions"):
        SentenceVectors([[], []], VECTORS[:2])
