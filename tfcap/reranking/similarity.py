"""How alike sentences are, word by word: each hypothesis against each of many references.

Letters: B images, S hypotheses of an image, C references of an image, n images of a corpus, N its
sentences, P their words, V different words.

The words are those of the sentences and not of a model's vocabulary: one that no model knows
counts like every other. The kernels are those of `ngrams`; here sentences become batches of few
shapes for them, of bounded size.
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
_FRESH = 2048  # numbers for words of one image's sentences that no corpus holds
_GROUP = 32  # references in a row of a batch; more would be padding, fewer are slower
_CELLS = 1 << 23  # comparisons at a time, of 5 bytes each
_WIDTHS = np.array(sorted({8 << i for i in range(20)} | {12 << i for i in range(20)}))
_CHUNK = 16384  # captions tokenized at a time


class Words:
    """Different words with their numbers; grows while corpora are read, then stands."""

    def __init__(self):
        self._numbers: dict[str, int] = {}

    def __len__(self) -> int:
        """V with the four marks and the numbers kept for unknown words."""
        return _FIRST + _FRESH + len(self._numbers)

    def learn(self, words: Sequence[str]) -> list[int]:
        """Numbers of words, new ones for those not seen before."""
        numbers = self._numbers
        return [numbers.setdefault(word, _FIRST + _FRESH + len(numbers)) for word in words]

    def look_up(self, sentences: Iterable[Sequence[str]]) -> list[list[int]]:
        """Numbers of the words of one image's sentences.

        Unknown words are told apart within the image, and equal nothing of any corpus.

        Raises:
          ValueError: more unknown words than there are numbers.
        """
        fresh: dict[str, int] = {}
        found = [
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
                f"the sentences of one image hold {len(fresh)} words that are in no caption of the "
                f"corpus, at most {_FRESH} can be told apart: are they captions?"
            )
        return found


class Corpus:
    """The captions of images as numbers, one behind the other.

    Attributes:
      flat: int32 [P], the words.
      starts: int64 [N + 1], where each sentence begins in `flat`.
      first: int64 [n + 1], the first sentence of each image.

    Args:
      images: per image its sentences, as numbers.
    """

    def __init__(self, images: Iterable[Iterable[Sequence[int]]]):
        flat, lengths, counts = [], [], []
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
        """Raw captions, tokenized as everywhere; `words` learns theirs. Images in their order."""

        def numbers() -> Iterator[list[int]]:
            texts = [text for own in captions.values() for text in own]
            for start in range(0, len(texts), _CHUNK):
                for found in tokens.tokenize_all(texts[start : start + _CHUNK]):
                    yield words.learn(found)

        every = numbers()
        return cls([next(every) for _ in own] for own in captions.values())

    def sentences(self, images: np.ndarray) -> np.ndarray:
        """Numbers of the sentences of images at the given positions, image after image."""
        parts = [np.arange(self.first[i], self.first[i + 1]) for i in images]
        return np.concatenate([np.zeros([0], np.int64), *parts])

    def document_frequencies(self) -> DocumentFrequencies:
        """In how many images each n-gram occurs, without an end mark, for `ngrams.CiderD`.

        N-grams of a single image, which most are, are left out: `CiderD` gives those that it does
        not know the same idf, ln N - ln max(1, df). Images without captions are not counted.

        Raises:
          ValueError: no image.
        """
        table = count_ngrams(self.flat, self.starts, self.first, end_mark=False, least=2)
        return table._replace(images=int(np.count_nonzero(np.diff(self.first))))


class Similarity:
    """Similarity of every hypothesis of an image with every reference of it.

    Args:
      kind: `cider`, CIDEr-D with a single reference (0 ... 10), or `bleu`, `ngrams.NgramF1` (0 ...
        1); neither counts an end mark.
      words: what the numbers stand for.
      table: document frequencies for `cider`.

    Raises:
      ValueError: an unknown kind, or too many words for n-grams of 63 bits.
    """

    def __init__(self, kind: str, words: Words, table: DocumentFrequencies | None = None):
        if kind not in KINDS:
            raise ValueError(f"similarity must be one of {', '.join(KINDS)}. Received: {kind!r}")
        if len(words) > ngrams.LARGEST_VOCABULARY:
            raise ValueError(
                f"the captions hold {len(words) - _FIRST - _FRESH} different words, "
                f"{ngrams.LARGEST_VOCABULARY - _FIRST - _FRESH} are the most that n-grams of four "
                "can be packed from: rerank against fewer captions"
            )
        if kind == "cider":
            scorer = ngrams.CiderD(table, len(words), count_eos=False)
        else:
            scorer = ngrams.NgramF1(len(words))
        spec = tf.TensorSpec([None, None, None], tf.int32)
        self._compare = tf.function(
            lambda own, others: scorer.similarities(own, scorer.references(others)),
            input_signature=[spec, spec],
        )

    def __call__(
        self,
        hypotheses: Sequence[Sequence[Sequence[int]]],
        corpus: Corpus,
        chosen: Sequence[np.ndarray],
    ) -> list[np.ndarray]:
        """Similarities float32 [S, C] per image.

        References of about the same length share rows of a batch: a row is one image with up to 32
        of them. Batches are as large as `_CELLS` allows, so memory does not grow with the images.

        Args:
          hypotheses: per image S sentences as numbers; S may differ.
          corpus: where the references are.
          chosen: per image the numbers of its C references in `corpus`.
        """
        result = [
            np.zeros([len(own), len(others)], np.float32)
            for own, others in zip(hypotheses, chosen, strict=True)
        ]
        longest = max((len(s) for own in hypotheses for s in own), default=0)
        most = max((len(own) for own in hypotheses), default=0)
        if not most:
            return result
        own = np.zeros([len(hypotheses), most, _widths(longest)], np.int32)
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
                found = self._compare(own[images], others).numpy()
                for values, (image, places) in zip(found, batch, strict=False):
                    result[image][:, places] = values[: len(result[image]), : len(places)]
        return result


def _rows(corpus: Corpus, chosen: Sequence[np.ndarray]) -> dict[int, list]:
    """Per width: (image, places among its references) of at most a group each."""
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
    """Sentences of a corpus as int32 [X, width], PAD behind them."""
    places = corpus.starts[sentences][:, None] + np.arange(width)
    inside = places < corpus.starts[sentences + 1][:, None]
    return np.where(inside, corpus.flat[np.where(inside, places, 0)], PAD)


def _widths(lengths: np.ndarray) -> np.ndarray:
    """What sentences of the given lengths are padded to: 8, 12, 16, 24, 32, 48, ..."""
    return _WIDTHS[np.searchsorted(_WIDTHS, lengths)]


def _group(width: int) -> int:
    """References in a row of a batch."""
    return max(1, min(_GROUP, _GROUP * 16 // width))
