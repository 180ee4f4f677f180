"""What a captioner says of given sentences: perplexity, and the score of every image with each.

Letters: B images of a block, S sentences of a block, N sentences in all, C sentences of an image,
T `max_length`, L words of a sentence with its end, R regions, F feature width, V vocabulary.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from tfcap import decoding
from tfcap.data.prepared import PreparedData
from tfcap.data.record import parse
from tfcap.data.tokens import Vocab
from tfcap.ids import EOS, PAD, UNK
from tfcap.models.captioner import Captioner, RecurrentCaptioner, Tree
from tfcap.runs import Run
from tfcap.scoring import prefixes

# Numbers of one call's logits. They set the memory that scoring takes; where they lie in the
# processor's cache, it is also faster.
LOGITS = 1 << 23
CHUNK = 16384  # captions turned into ids at once


class Sentences(NamedTuple):
    """Sentences as a model reads them.

    Attributes:
      tokens: int32 [N, T] without BOS: w1 ... wL EOS PAD ...; one of more than T - 1 words is cut
        to its first T words and has no EOS, as in training.
      words: int32 [N], L: known and unknown words, the end counted.
      unknown: words outside the vocabulary in all of them; they are scored as UNK.
      cut: how many sentences were cut.
    """

    tokens: np.ndarray
    words: np.ndarray
    unknown: int
    cut: int

    def note(self) -> str:
        """What was done to them, in words; empty if nothing was."""
        parts = []
        if self.unknown:
            total = int(self.words.sum())
            parts.append(f"{self.unknown} of {total} words are outside the vocabulary: <unk>")
        if self.cut:
            longest = self.tokens.shape[1]
            parts.append(f"{self.cut} of {len(self.words)} sentences are cut to {longest} words")
        return "; ".join(parts)


class Perplexities(NamedTuple):
    """Of sentences given their own images, base 2 (Mao et al., ICLR 2015, section 4).

    Attributes:
      image: int64 [N], image ids.
      sentence: int32 [N], the place of a sentence among those of its image.
      log2: float64 [N], log2 P(sentence | image), its end included.
      words: int32 [N], L.
      note: of `Sentences.note`.
    """

    image: np.ndarray
    sentence: np.ndarray
    log2: np.ndarray
    words: np.ndarray
    note: str

    @property
    def each(self) -> np.ndarray:
        """PPL(w_1..L | I) = 2 ** (-(1/L) sum log2 P(w_n | w_1..n-1, I)), float64 [N]."""
        return np.exp2(-self.log2 / self.words)

    @property
    def mean(self) -> float:
        """The mean of `each`: long and short sentences count the same."""
        return float(self.each.mean())

    @property
    def corpus(self) -> float:
        """The same over all words of all sentences: 2 ** (-(sum of log2 P) / (number of words))."""
        return float(np.exp2(-self.log2.sum() / self.words.sum()))


def encode(vocab: Vocab, captions: Sequence[str], max_length: int) -> Sentences:
    """Sentences as ids.

    Raises:
      ValueError: no captions, or one without a single word.
    """
    if not captions:
        raise ValueError("there are no sentences to score")
    parts = [
        vocab.encode(tf.constant(captions[start : start + CHUNK]), max_length).numpy()[:, 1:]
        for start in range(0, len(captions), CHUNK)
    ]
    ids = np.concatenate(parts)
    empty = np.flatnonzero(ids[:, 0] == EOS)
    if len(empty):
        raise ValueError(f"a sentence has no words. Received: {captions[empty[0]]!r}")
    cut = int((~(ids == EOS).any(1)).sum())
    words = np.count_nonzero(ids != PAD, axis=1).astype(np.int32)
    return Sentences(ids, words, int((ids == UNK).sum()), cut)


def images(
    data: PreparedData,
    split: str,
    positions: Sequence[int],
    batch_size: int,
    max_regions: int | None = None,
) -> Iterator[tuple[tf.Tensor, tf.Tensor]]:
    """Yields `features` float32 [B, R, F] and `mask` bool [B, R] of images of a split.

    Args:
      data: the prepared directory.
      split: name of the split.
      positions: places in the split's index, any order.
      batch_size: B; the last block may be smaller.
      max_regions: further regions of an image are cut off; None or 0 for none.

    Raises:
      ValueError: a damaged record.
    """
    most = min(data.max_regions, max_regions or data.max_regions)
    rows = tf.data.Dataset.from_tensor_slices(np.asarray(positions, np.int64))
    blocks = data.examples(split, rows).batch(batch_size)
    blocks = blocks.map(lambda block: parse(block, data.feature_dim, most, None))
    with data.readable_errors():
        for block in blocks.prefetch(1):
            yield block["features"], block["mask"]


def perplexities(
    run: Run,
    data: PreparedData,
    split: str = "val",
    batch_size: int = 10,
    limit: int = 0,
    watch: Callable[[Iterator, int], Iterator] = lambda blocks, total: blocks,
) -> Perplexities:
    """Perplexities of all sentences of a split given their images.

    PAD and BOS are no words and have no probability; the end is a word, as in the authors' later
    code (the paper does not say); a word outside the vocabulary counts as UNK.

    Args:
      run: the captioner, or an ensemble.
      data: the prepared directory.
      split: name of the split.
      batch_size: images at a time.
      limit: only the first so many images; 0: all.
      watch: passes on the blocks, of which there are `total`, to show progress.
    """
    ids = data.index(split).id[: limit or None]
    references = data.references(split)
    places = np.array([i for i, image in enumerate(ids) if references[int(image)]], np.int64)
    if not len(places):
        raise ValueError(
            f"Perplexity needs captions. Received: split {split} of {data.folder}, which has none. "
            "Choose another split."
        )
    ids = ids[places]
    each = [references[int(image)] for image in ids]
    sentences = encode(run.vocab, [c for own in each for c in own], run.params.task.max_length)
    counts = np.array([len(own) for own in each])
    inside = np.arange(counts.max()) < counts[:, None]
    by_image = np.zeros((*inside.shape, sentences.tokens.shape[1]), np.int32)  # [B, C, T]
    by_image[inside] = sentences.tokens
    specs = [
        tf.TensorSpec([None, None, data.feature_dim]),
        tf.TensorSpec([None, None], tf.bool),
        tf.TensorSpec([None, None], tf.int32),
    ]

    @tf.function(input_signature=specs)
    def score(features, mask, tokens):
        context = run.model.encode({"features": features, "mask": mask})
        return decoding.score(run.model, context, tokens)

    blocks = images(data, split, places, batch_size, run.max_regions)
    found, start = [], 0
    for features, mask in watch(blocks, -(-len(ids) // batch_size)):
        part = slice(start, start + len(mask))
        longest = np.count_nonzero(by_image[part], axis=2).max()
        tokens = by_image[part, :, :longest].reshape(-1, longest)  # [B, C, T'] -> [B C, T']
        logps = score(features, mask, tokens).numpy().astype(np.float64).sum(1)
        found.append(logps[inside[part].reshape(-1)])
        start += len(mask)
    return Perplexities(
        image=np.repeat(ids, counts),
        sentence=np.concatenate([np.arange(count, dtype=np.int32) for count in counts]),
        log2=np.concatenate(found) / np.log(2),
        words=sentences.words,
        note=sentences.note(),
    )


class PairScorer:
    """log P(sentence | image) of every image of a block with every sentence.

    An image is encoded once and its context kept for all sentences. As many of them are scored at
    once as the logits of one call may have numbers: the memory depends on neither images nor
    sentences. Nothing is computed twice or for padding: a recurrent system takes a step for each
    beginning that sentences share (`prefixes`); the others, whose caches are too large for that,
    decode sentences of the same length in parallel. One trace serves all of them.

    Args:
      model: the captioner.
      feature_dim: F.
      sentences: what is scored.
      logits: numbers of the logits of one call, at most (but for a single sentence).
    """

    def __init__(
        self, model: Captioner, feature_dim: int, sentences: Sentences, logits: int = LOGITS
    ):
        self.model, self.sentences, self.logits = model, sentences, logits
        members = getattr(model, "members", [model])
        self.recurrent = all(isinstance(member, RecurrentCaptioner) for member in members)
        self._blocks: dict[int, list] = {}  # by B
        features = tf.TensorSpec([None, None, feature_dim])
        mask = tf.TensorSpec([None, None], tf.bool)
        self._encode = tf.function(
            lambda features, mask: model.encode({"features": features, "mask": mask}),
            input_signature=[features, mask],
        )
        context = tf.nest.map_structure(
            lambda leaf: tf.TensorSpec(leaf.shape, leaf.dtype),
            self._encode.get_concrete_function().structured_outputs,
        )
        tokens = tf.TensorSpec([None, None], tf.int32)
        given: tf.TensorSpec | prefixes.Prefixes = tokens
        if self.recurrent:
            given = prefixes.Prefixes(
                tokens, tokens, tokens, tf.TensorSpec([None], tf.int32), tokens
            )
        self._score = tf.function(self._pairs, input_signature=[context, given])

    def _pairs(self, context: Tree, given: tf.Tensor | prefixes.Prefixes) -> tf.Tensor:
        """[B, S] of the tokens [S, L] of sentences of one length, or of their prefixes."""
        if self.recurrent:
            return prefixes.score(self.model, context, given)
        first = tf.nest.flatten(context)[0]
        size = first.shape[0] or tf.shape(first)[0]
        logps = decoding.score(self.model, context, tf.tile(given, (size, 1)))  # image-major
        return tf.reshape(tf.reduce_sum(logps, -1), (size, given.shape[0] or tf.shape(given)[0]))

    def blocks(self, size: int) -> list[tuple[np.ndarray, np.ndarray | prefixes.Prefixes]]:
        """(places [S], tokens [S, L] or prefixes) of sentences scored together with B images.

        They are shared out evenly, so that no block is nearly empty.
        """
        if size not in self._blocks:
            self._blocks[size] = list(
                self._of_same_beginnings(size) if self.recurrent else self._of_same_length(size)
            )
        return self._blocks[size]

    def _of_same_length(self, size):
        tokens, words = self.sentences.tokens, self.sentences.words
        for length in np.unique(words):
            places = np.flatnonzero(words == length)
            most = max(1, self.logits // (size * int(length) * self.model.vocab_size))
            for part in np.array_split(places, -(-len(places) // most)):
                yield part, tokens[part, :length]

    def _of_same_beginnings(self, size):
        tokens, words = self.sentences.tokens, self.sentences.words
        order = np.lexsort(tokens.T[::-1])  # by the first word, then the second, ...
        most = max(1, self.logits // (size * self.model.vocab_size))
        for part in np.array_split(order, -(-len(order) // most)):
            yield part, prefixes.tree(tokens[part, : words[part].max()])

    def scores(self, features: tf.Tensor, mask: tf.Tensor) -> tf.Tensor:
        """As `__call__`, but whatever comes out; also in a graph, where B must be static."""
        eager = tf.executing_eagerly()
        if eager:
            context = self._encode(features, mask)
        else:  # every block is traced, with shapes that are all known
            context = self.model.encode({"features": features, "mask": mask})
        parts, order = [], []
        for places, given in self.blocks(mask.shape[0]):
            with tf.control_dependencies(parts[-1:]):  # in a graph, too, one after the other
                parts.append((self._score if eager else self._pairs)(context, given))
            order.append(places)
        return tf.gather(tf.concat(parts, 1), np.argsort(np.concatenate(order)), axis=1)

    def __call__(self, features: tf.Tensor, mask: tf.Tensor) -> np.ndarray:
        """Scores [B, N] float32, natural logarithm, of `features` [B, R, F] and `mask` [B, R].

        Raises:
          ValueError: if the model gives a sentence no probability at all.
        """
        scores = self.scores(features, mask).numpy()
        if not np.isfinite(scores).all():
            raise ValueError(
                "the model gives a sentence the probability NaN or 0: its training has diverged, "
                "choose another checkpoint"
            )
        return scores
