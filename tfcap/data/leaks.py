"""Finds what several splits share: pictures that are nearly the same, and equal captions.

A picture is described by the differences between neighbouring parts of a small copy of it, as in a
difference hash. They stay numbers, because their signs alone confuse pictures with an even
background. Two descriptions are compared by their cosine.

Measured on 7,000 photographs of Flickr8k, 24.5 million pairs: one pair is above 0.9, a photograph
that is there twice; the next pair, of one scene, has 0.71. 500 of the photographs were changed:
saved as JPEG of quality 20, halved, enlarged, made lighter by 30 %, or cut by 2 % of their size.
All but one of the lighter ones stay above 0.9. So do 95 % of those that were cut by 5 %, and 2 % of
those that were cut by 10 %.

Features are compared in the same way. With those of MobileNetV2 the same pair is the only one above
0.9, and the next one has 0.85. Of 250 photographs all are found that were saved with quality 50,
but 3 % of the halved ones.

Letters: n and m images of two splits, D numbers in a description, at most 384.
"""

import functools
import heapq
import itertools
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent import futures
from typing import BinaryIO, NamedTuple

import numpy as np
from PIL import Image

from tfcap import segmentation
from tfcap.data import tokens
from tfcap.images import upright

SAME = 0.9  # least cosine of two images that are nearly the same
_SIDE = 12  # parts in a row of the small copy of a picture
_WIDTH = 384  # most numbers in a description, D
_ROWS = 1024  # images that are compared at once with _COLUMNS others
_COLUMNS = 8192
_CHUNK = 16384  # captions split into words at once
_SENTENCE_END = re.compile(r"(?<=[.!?])\s+|(?<=[\u3002\uff01\uff1f])")
_SHOWN = 3


def describe_pictures(pictures: Iterable[str | BinaryIO]) -> Iterator[np.ndarray]:
    """Yields the description of each picture, float16 [D], of length 1.

    All numbers are 0 if the file cannot be read as a picture, or if the picture has one colour.
    Then it resembles no other.

    Args:
      pictures: paths of picture files, or open files.
    """
    pictures = iter(pictures)
    with futures.ThreadPoolExecutor() as threads:
        while block := list(itertools.islice(pictures, _ROWS)):
            yield from _of_length_one(_projected(np.stack(list(threads.map(_changes, block)))))


def _changes(file: str | BinaryIO) -> np.ndarray:
    """Returns the differences between neighbouring parts of a picture, to the right and below."""
    size = _SIDE + 1, _SIDE + 1
    try:
        with Image.open(file) as picture:
            picture.draft("RGB", (4 * _SIDE, 4 * _SIDE))  # lets JPEG decode a smaller picture
            small = upright(picture).convert("RGB").resize(size, Image.Resampling.BOX)
    except Exception:  # Pillow raises many kinds of errors for damaged files
        small = Image.new("RGB", size)
    parts = np.asarray(small, np.float32)
    changes = np.stack([parts[:-1, 1:] - parts[:-1, :-1], parts[1:, :-1] - parts[:-1, :-1]])
    return (np.sign(changes) * np.sqrt(np.abs(changes))).ravel()  # so that no edge outweighs all


def describe_features(features: np.ndarray, mask: np.ndarray) -> np.ndarray:
    """Describes images by their features, by the mean over the regions.

    Args:
      features: features of up to R regions of n images, float32 [n, R, F].
      mask: which of the regions an image has, bool [n, R].

    Returns:
      float32 [n, D]. `centred` makes them comparable.
    """
    weights = (mask / mask.sum(axis=1, keepdims=True)).astype(np.float32)
    return _projected(np.einsum("nrf,nr->nf", features, weights, optimize=True))


def _projected(values: np.ndarray) -> np.ndarray:
    """Projects vectors [n, F] on D drawn directions, which keeps their cosines to about 0.01.

    Vectors that are not longer than D stay as they are.
    """
    return values if values.shape[1] <= _WIDTH else values @ _directions(values.shape[1])


@functools.cache
def _directions(width: int) -> np.ndarray:
    return np.random.default_rng(0).normal(size=(width, _WIDTH)).astype(np.float32)


def centred(descriptions: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Subtracts the mean over all images from descriptions, and scales them to the length 1.

    Args:
      descriptions: name of the split -> descriptions of its images, float32 [n, D].

    Returns:
      Name of the split -> descriptions, float16 [n, D].
    """
    mean = np.concatenate(list(descriptions.values())).mean(axis=0)
    return {split: _of_length_one(values - mean) for split, values in descriptions.items()}


def _of_length_one(values: np.ndarray) -> np.ndarray:
    lengths = np.linalg.norm(values, axis=1, keepdims=True)
    return np.divide(values, lengths, out=np.zeros_like(values), where=lengths > 0).astype("f2")


def most_alike(first: np.ndarray, second: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Finds the image of one split that is most like each image of another split.

    Args:
      first: descriptions of n images, [n, D].
      second: descriptions of m images, [m, D].

    Returns:
      For each of the n images the position of the other image, int64 [n], and their cosine, float32
      [n].
    """
    place = np.zeros(len(first), np.int64)
    alike = np.full(len(first), -1, np.float32)
    for row in range(0, len(first), _ROWS):
        rows = slice(row, row + _ROWS)
        block = first[rows].astype(np.float32)
        for column in range(0, len(second), _COLUMNS):
            cosines = block @ second[column : column + _COLUMNS].astype(np.float32).T
            best = cosines.argmax(axis=1)
            values = np.take_along_axis(cosines, best[:, None], axis=1)[:, 0]
            place[rows] = np.where(values > alike[rows], column + best, place[rows])
            alike[rows] = np.maximum(values, alike[rows])
    return place, alike


class Shared(NamedTuple):
    """Texts of a split that another split has as well.

    Attributes:
      repeated: number of these texts; a text that stands twice in the split counts twice.
      total: number of all texts of the split.
      examples: at most three different ones, those with the most words first.
    """

    repeated: int
    total: int
    examples: list[str]


def shared_captions(
    references: Callable[[str], Mapping[int, Sequence[str]]],
    splits: Sequence[str],
    way: str = segmentation.RAW,
) -> dict[tuple[str, str], Shared]:
    """Finds captions that stand word for word in two splits.

    Case and punctuation make no difference. Captions without a word are left out.

    Args:
      references: a function that returns the captions of a split by image id, such as
        `PreparedData.references`.
      splits: names of the splits.
      way: how the data cuts captions into words, one of `segmentation.WAYS`.

    Returns:
      Names of two splits -> the captions of the second one that the first one has as well, for each
      pair, in the order of `splits`.
    """
    counts: dict[str, Counter[str]] = {}
    for split in splits:
        texts = itertools.chain.from_iterable(references(split).values())
        counts[split] = Counter(filter(None, _in_words(texts, way)))
    result = {}
    for first, second in itertools.combinations(splits, 2):
        both = counts[first].keys() & counts[second].keys()
        examples = heapq.nlargest(_SHOWN, both, key=lambda text: (text.count(" "), text))
        number = sum(counts[second][text] for text in both)
        result[first, second] = Shared(number, counts[second].total(), examples)
    return result


class Sentences(NamedTuple):
    """How often the captions of different images have the same sentence.

    Attributes:
      total: number of sentences; one that stands twice in a caption counts once.
      repeated: number of those that another caption has as well.
      examples: at most three sentences that most captions have, with the number of these captions.
    """

    total: int
    repeated: int
    examples: list[tuple[str, int]]


def repeated_sentences(captions: Iterable[str], way: str = segmentation.RAW) -> Sentences:
    """Counts sentences that stand word for word in several captions, such as reports.

    Args:
      captions: the captions, one for each image.
      way: how the data cuts captions into words, one of `segmentation.WAYS`.
    """
    counts: Counter[str] = Counter()
    captions = iter(captions)
    while chunk := list(itertools.islice(captions, _CHUNK)):
        for sentences in _in_sentences(chunk, way):
            counts.update(set(sentences) - {""})
    repeated = sum(count for count in counts.values() if count > 1)
    examples = [(text, count) for text, count in counts.most_common(_SHOWN) if count > 1]
    return Sentences(counts.total(), repeated, examples)


def _in_sentences(captions: Sequence[str], way: str) -> Iterator[list[str]]:
    """Yields the sentences of each caption in the form of `_in_words`; some may be empty."""
    if way in segmentation.REPORTS:
        for report in segmentation.words_of(captions, way):
            yield [sentence.strip() for sentence in " ".join(report).split(".")]
        return
    parts = [_SENTENCE_END.split(caption) for caption in captions]
    words = _in_words(itertools.chain.from_iterable(parts), way)
    for part in parts:
        yield list(itertools.islice(words, len(part)))


def _in_words(texts: Iterable[str], way: str) -> Iterator[str]:
    """Yields the words of each text in lower case, with single spaces between them or joined."""
    if segmentation.has_no_spaces(way):  # joined words are equal whatever segmenter cuts them
        way = segmentation.CHARACTERS
    join = segmentation.joined if segmentation.is_cut(way) else " ".join
    texts = iter(texts)
    while chunk := list(itertools.islice(texts, _CHUNK)):
        yield from map(join, tokens.tokenize_all(chunk, way))
