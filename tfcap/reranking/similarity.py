"""Computes the similarity of each hypothesis with each of many references.

Letters: B images, S hypotheses of an image, C references of an image, n images of a corpus, N
captions of the corpus, P words of these captions, V different words.

Words are numbered from the captions, not from a model's vocabulary, so that a word outside the
vocabulary counts like any other. This module builds batches of few shapes and limited size;
`ngrams` computes the similarities.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence

import numpy as np
import tensorflow as tf

from tfcap.data import tokens
from tfcap.data.document_frequency import DocumentFrequencies, count_ngrams, ends
from tfcap.ids import PAD
from tfcap.objectives import ngrams

KINDS = ("cider", "bleu")
_FIRST = len(tokens.SPECIALS)
_FRESH = 2048  # numbers for words of one image's hypotheses that are not in the corpus
_GROUP = 32  # references in a row of a batch; more need more padding, fewer are slower
_CELLS = 1 << 23  # comparisons at a time, of 5 bytes each
_WIDTHS = np.array(sorted({8 << i for i in range(20)} | {12 << i for i in range(20)}))
_CHUNK = 16384  # captions tokenized at a time


class Words:
    """Numbers different words. It grows while corpora are read and is fixed afterwards."""

    def __init__(self):
        self._numbers: dict[str, int] = {}

    def __len__(self) -> int:
        """Returns V, including the four marks and the numbers reserved for unknown words."""
        return _FIRST + _FRESH + len(self._numbers)

    def learn(self, words: Sequence[str]) -> list[int]:
        """Returns the numbers of words; a new word gets a new number."""
        numbers = self._numbers
        return [numbers.setdefault(word, _FIRST + _FRESH + len(numbers)) for word in words]

    def look_up(self, sentences: Iterable[Sequence[str]]) -> list[list[int]]:
        """Returns the numbers of the words of one image's captions.

        Different unknown words of an image get different numbers, which no corpus contains.

        Raises:
          ValueError: there are more unknown words than reserved numbers.
        """
        fresh: dict[str, int] = {}
        numbers = [
            [
                self._numbers[word]
                if word in self._numbers
                else fresh.setdefault(word, _FIRST + len(fresh))
                for word in words
            ]
            for words in sentences
        ]
        if len(fresh) > _FRESH:
            raise ValueError(
                f"The captions of one image must have at most {_FRESH} words that are not in the "
                f"corpus. Received: {len(fresh)}. Check that they are captions."
            )
        return numbers


class Corpus:
    """The captions of images as word numbers in one array.

    Attributes:
      flat: int32 [P], the words.
      starts: int64 [N + 1], where each caption begins in `flat`.
      first: int64 [n + 1], the first caption of each image.

    Args:
      images: the captions of each image as word numbers.
    """

    def __init__(self, images: Iterable[Iterable[Sequence[int]]]):
        flat: list[np.ndarray] = []
        lengths: list[int] = []
        counts: list[int] = []
        for sentences in images:
            before = len(lengths)
            for sentence in sentences:
                flat.append(np.array(sentence, np.int32))
                lengths.append(len(sentence))
            counts.append(len(lengths) - before)
        self.flat = np.concatenate([np.zeros([0], np.int32), *flat])
        self.starts = ends(lengths)
        self.first = ends(counts)

    @classmethod
    def read(cls, captions: Mapping[int, Sequence[str]], words: Words) -> "Corpus":
        """Tokenizes raw captions as in training and adds their words to `words`."""

        def numbers() -> Iterator[list[int]]:
            texts = [text for own in captions.values() for text in own]
            for start in range(0, len(texts), _CHUNK):
                for sentence in tokens.tokenize_all(texts[start : start + _CHUNK]):
                    yield words.learn(sentence)

        every = numbers()
        return cls([next(every) for _ in own] for own in captions.values())

    def sentences(self, images: np.ndarray) -> np.ndarray:
        """Returns the positions of the captions of the given images, image after image."""
        parts = [np.arange(self.first[i], self.first[i + 1]) for i in images]
        return np.concatenate([np.zeros([0], np.int64), *parts])

    def document_frequencies(self) -> DocumentFrequencies:
        """Counts the images in which each n-gram occurs, without an end mark, for `ngrams.CiderD`.

        Most n-grams occur in one image. They are left out, because `CiderD` gives unknown n-grams
        the same idf, ln N - ln max(1, df). Images without captions are not counted.

        Raises:
          ValueError: there is no image.
        """
        table = count_ngrams(self.flat, self.starts, self.first, end_mark=False, least=2)
        return table._replace(images=int(np.count_nonzero(np.diff(self.first))))


class Similarity:
    """Computes the similarity of every hypothesis of an image with every reference.

    Args:
      kind: `cider`, CIDEr-D with a single reference (0 to 10), or `bleu`, `ngrams.NgramF1` (0 to
        1). Neither counts an end mark.
      words: the numbered words.
      table: document frequencies for `cider`.

    Raises:
      ValueError: the kind is unknown, or there are too many words for n-grams of 63 bits.
    """

    def __init__(self, kind: str, words: Words, table: DocumentFrequencies | None = None):
        if kind not in KINDS:
            raise ValueError(f"similarity must be one of {', '.join(KINDS)}. Received: {kind!r}")
        if len(words) > ngrams.LARGEST_VOCABULARY:
            raise ValueError(
                "Captions for reranking must have at most "
                f"{ngrams.LARGEST_VOCABULARY - _FIRST - _FRESH} different words, so that four fit "
                f"into one number. Received: {len(words) - _FIRST - _FRESH}. Rerank with fewer "
                "captions."
            )
        scorer: ngrams.CiderD | ngrams.NgramF1 = ngrams.NgramF1(len(words))
        if kind == "cider":
            scorer = ngrams.CiderD(table, len(words), count_eos=False)
        spec = tf.TensorSpec([None, None, None], tf.int32)
        self._compare = tf.function(
            lambda own, others: scorer.similarities(own, scorer.references(others)),
            input_signature=[spec, spec],
            autograph=False,
        )

    def __call__(
        self,
        hypotheses: Sequence[Sequence[Sequence[int]]],
        corpus: Corpus,
        chosen: Sequence[np.ndarray],
    ) -> list[np.ndarray]:
        """Computes the similarities of each image, float32 [S, C].

        A row of a batch has one image with up to 32 references of similar length. `_CELLS` limits
        the size of a batch, so that memory does not grow with the number of images.

        Args:
          hypotheses: for each image S captions as word numbers; S may differ between images.
          corpus: the corpus with the references.
          chosen: for each image the positions of its C references in `corpus`.
        """
        result = [
            np.zeros([len(own), len(others)], np.float32)
            for own, others in zip(hypotheses, chosen, strict=True)
        ]
        longest = max((len(s) for own in hypotheses for s in own), default=0)
        most = max((len(own) for own in hypotheses), default=0)
        if not most:
            return result
        own = np.zeros([len(hypotheses), most, _widths(np.array(longest))], np.int32)
        for image, sentences in enumerate(hypotheses):
            for place, sentence in enumerate(sentences):
                own[image, place, : len(sentence)] = sentence
        for width, rows in sorted(_rows(corpus, chosen).items()):
            group = _group(width)
            cells = ngrams.ORDERS * group * width * max(own[0].size, group * width)
            size = max(1, min(16, _CELLS // cells))
            for start in range(0, len(rows), size):
                batch = rows[start : start + size]
                images = [image for image, _ in batch]
                others = np.zeros([size, group, width], np.int32)
                for row, (image, places) in enumerate(batch):
                    others[row, : len(places)] = _padded(corpus, chosen[image][places], width)
                images += images[-1:] * (size - len(batch))  # few shapes: a full batch every time
                similarities = self._compare(own[images], others).numpy()
                for values, (image, places) in zip(similarities, batch, strict=False):
                    result[image][:, places] = values[: len(result[image]), : len(places)]
        return result


def _rows(corpus: Corpus, chosen: Sequence[np.ndarray]) -> dict[int, list]:
    """Groups references by width into rows: (image, positions among its references)."""
    rows: dict[int, list] = {}
    for image, sentences in enumerate(chosen):
        lengths = corpus.starts[sentences + 1] - corpus.starts[sentences]
        widths = _widths(lengths)
        for width in np.unique(widths):
            places, group = np.flatnonzero(widths == width), _group(width)
            cut = range(0, len(places), group)
            rows.setdefault(int(width), []).extend((image, places[i : i + group]) for i in cut)
    return rows


def _padded(corpus: Corpus, sentences: np.ndarray, width: int) -> np.ndarray:
    """Returns captions of a corpus as int32 [X, width], padded with PAD."""
    places = corpus.starts[sentences][:, None] + np.arange(width)
    inside = places < corpus.starts[sentences + 1][:, None]
    return np.where(inside, corpus.flat[np.where(inside, places, 0)], PAD)


def _widths(lengths: np.ndarray) -> np.ndarray:
    """Returns the padded widths of captions of these lengths: 8, 12, 16, 24, 32, 48, ..."""
    return _WIDTHS[np.searchsorted(_WIDTHS, lengths)]


def _group(width: int) -> int:
    """Returns the number of references in a row of a batch."""
    return max(1, min(_GROUP, _GROUP * 16 // width))
