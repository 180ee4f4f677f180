"""Makes the prefix of each image's captions from the first reference of the image.

Letters: B images, P words of the longest prefix.
"""

from collections.abc import Mapping, Sequence

import numpy as np

from tfcap.data import tokens
from tfcap.ids import PAD, UNK


def first_words(
    references: Mapping[int, Sequence[str]], vocab: tokens.Vocab, words: int
) -> dict[int, list[int]]:
    """Returns the ids of the first words of the first reference of each image.

    A prefix ends before a word that the vocabulary lacks. An image without references has none.

    Args:
      references: reference captions by image id, as `stored_captions` returns them.
      vocab: the vocabulary.
      words: the largest number of words.
    """
    firsts = {image: own[0] for image, own in references.items() if own}
    prefixes: dict[int, list[int]] = {}
    for image, text in zip(firsts, tokens.tokenize_all(list(firsts.values())), strict=True):
        ids = list(vocab.ids(text[:words]))
        prefixes[image] = ids[: ids.index(UNK)] if UNK in ids else ids
    return prefixes


def rows(prefixes: Mapping[int, Sequence[int]], images: Sequence[int], length: int) -> np.ndarray:
    """Returns the prefixes of B images as int32 [B, P], with PAD after each."""
    result = np.full([len(images), length], PAD, np.int32)
    for row, image in enumerate(images):
        own = prefixes.get(int(image), ())
        result[row, : len(own)] = own
    return result
