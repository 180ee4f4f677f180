"""Computes the log-probability of given captions for every image.

Letters: B images of a block, S captions of a block, N captions in all, T `max_length`, L words of a
caption including the end mark, R regions, F feature width, V vocabulary.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from tfcap import decoding
from tfcap.data.prepared import PreparedData
from tfcap.data.record import inputs_of
from tfcap.data.tokens import Vocab, tokenize_all
from tfcap.ids import EOS, PAD, UNK
from tfcap.models.captioner import Captioner, RecurrentCaptioner
from tfcap.models.rows import Tree
from tfcap.scoring import prefixes

# Largest number of logits of one call. It bounds the memory of scoring; logits that fit into the
# processor's cache are also faster.
LOGITS = 1 << 23
CHUNK = 16384  # captions turned into ids together
_EXAMPLES = 5  # unknown words that a note names


class EncodedCaptions(NamedTuple):
    """Captions as token ids.

    Attributes:
      tokens: int32 [N, T] without BOS: w1 ... wL EOS PAD ...; a caption of more than T - 1 words is
        cut to its first T words and has no EOS, as in training.
      words: int32 [N], L of each caption: known and unknown words and the end mark.
      unknown: number of words outside the vocabulary in all captions; they are scored as UNK.
      cut: number of captions that were cut.
      examples: some of the unknown words.
    """

    tokens: np.ndarray
    words: np.ndarray
    unknown: int
    cut: int
    examples: tuple[str, ...] = ()

    def note(self) -> str:
        """Describes unknown words and cut captions in a line; empty if there are none."""
        parts = []
        if self.unknown:
            total = int(self.words.sum())
            words = ", ".join(self.examples)
            parts.append(f"{self.unknown} of {total} words are outside the vocabulary: {words}")
        if self.cut:
            longest = self.tokens.shape[1]
            parts.append(f"{self.cut} of {len(self.words)} captions are cut to {longest} words")
        return "; ".join(parts)


def encode(vocab: Vocab, captions: Sequence[str], max_length: int) -> EncodedCaptions:
    """Converts raw captions to token ids.

    Args:
      vocab: the vocabulary.
      captions: N raw captions.
      max_length: T.

    Raises:
      ValueError: there are no captions, or one has no words.
    """
    if not captions:
        raise ValueError("captions must not be empty. Received: no captions.")
    parts = [
        vocab.encode(tf.constant(captions[start : start + CHUNK]), max_length).numpy()[:, 1:]
        for start in range(0, len(captions), CHUNK)
    ]
    ids = np.concatenate(parts)
    empty = np.flatnonzero(ids[:, 0] == EOS)
    if len(empty):
        raise ValueError(
            f"A caption must have at least one word. Received: {captions[empty[0]]!r}."
        )
    cut = int((~(ids == EOS).any(1)).sum())
    words = np.count_nonzero(ids != PAD, axis=1).astype(np.int32)
    rows = np.flatnonzero((ids == UNK).any(axis=1))[:_EXAMPLES]
    found = zip(tokenize_all([captions[row] for row in rows]), ids[rows], strict=True)
    pairs = [pair for words_, row in found for pair in zip(words_, row, strict=False)]
    examples = tuple(dict.fromkeys(word for word, number in pairs if number == UNK))[:_EXAMPLES]
    return EncodedCaptions(ids, words, int((ids == UNK).sum()), cut, examples)


def images(
    data: PreparedData,
    split: str,
    positions: Sequence[int] | np.ndarray,
    batch_size: int,
    max_regions: int | None = None,
) -> Iterator[dict[str, tf.Tensor]]:
    """Yields images of a split in blocks of inputs for a captioner.

    A block has `features` float32 [B, R, F] and `mask` bool [B, R], and `image` float32 [B, F2] if
    the data has vectors of whole images.

    Args:
      data: the prepared directory.
      split: name of the split.
      positions: positions in the split's index, in any order.
      batch_size: B; the last block may be smaller.
      max_regions: regions of an image beyond this number are cut off; None keeps all.

    Raises:
      ValueError: a record is damaged.
    """
    most = data.most_regions(max_regions)
    rows = tf.data.Dataset.from_tensor_slices(np.asarray(positions, np.int64))
    blocks = data.examples(split, rows).batch(batch_size)
    # AutoGraph would only rewrite the parser, which takes longer than all other tracing.
    parser = tf.autograph.experimental.do_not_convert(
        lambda block: inputs_of(data.parse(block, most))
    )
    blocks = blocks.map(parser)
    with data.readable_errors():
        for block in blocks.prefetch(1):
            yield data.with_features(block)


class PairScorer:
    """Computes log P(caption | image) for every image of a block and every caption.

    An image is encoded once for all captions. The captions are scored in blocks whose logits stay
    below a fixed number, so that the memory depends neither on the images nor on the captions.
    A recurrent system takes one step for each prefix that captions share (`prefixes`). The caches
    of other systems are too large for that; they decode captions of the same length in parallel,
    without padding. All blocks use one trace.

    Args:
      model: the captioner.
      specs: the inputs of the model, as `PreparedData.input_specs`; or F, for data without vectors
        of whole images.
      captions: the captions to score.
      logits: the largest number of logits in one call; a single caption may exceed it.
    """

    def __init__(
        self,
        model: Captioner,
        specs: Mapping[str, tf.TensorSpec] | int,
        captions: EncodedCaptions,
        logits: int = LOGITS,
    ):
        self.model, self.captions, self.logits = model, captions, logits
        members = getattr(model, "members", [model])
        self.recurrent = all(isinstance(member, RecurrentCaptioner) for member in members)
        self._blocks: dict[int, list] = {}  # by B
        if isinstance(specs, int):
            features = tf.TensorSpec([None, None, specs])
            specs = {"features": features, "mask": tf.TensorSpec([None, None], tf.bool)}
        self._encode = tf.function(
            lambda inputs: model.encode(inputs), input_signature=[dict(specs)], autograph=False
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
        self._score = tf.function(self._pairs, input_signature=[context, given], autograph=False)

    def use(self, captions: EncodedCaptions) -> None:
        """Scores other captions from now on, with the same traces."""
        self.captions, self._blocks = captions, {}

    def _pairs(self, context: Tree, given: tf.Tensor | prefixes.Prefixes) -> tf.Tensor:
        """Scores captions of one length, tokens [S, L], or captions as prefixes; returns [B, S]."""
        if isinstance(given, prefixes.Prefixes):
            return prefixes.score(self.model, context, given)
        first = tf.nest.flatten(context)[0]
        size = first.shape[0] or tf.shape(first)[0]
        logps = decoding.score(self.model, context, tf.tile(given, (size, 1)))  # image-major
        return tf.reshape(tf.reduce_sum(logps, -1), (size, given.shape[0] or tf.shape(given)[0]))

    def blocks(self, size: int) -> list[tuple[np.ndarray, np.ndarray | prefixes.Prefixes]]:
        """Lists the captions scored together for B images: (places [S], tokens [S, L] or prefixes).

        The blocks have about the same size.

        Args:
          size: B.
        """
        if size not in self._blocks:
            self._blocks[size] = list(
                self._of_same_beginnings(size) if self.recurrent else self._of_same_length(size)
            )
        return self._blocks[size]

    def _of_same_length(self, size):
        tokens, words = self.captions.tokens, self.captions.words
        for length in np.unique(words):
            places = np.flatnonzero(words == length)
            most = max(1, self.logits // (size * int(length) * self.model.vocab_size))
            for part in np.array_split(places, -(-len(places) // most)):
                yield part, tokens[part, :length]

    def _of_same_beginnings(self, size):
        tokens, words = self.captions.tokens, self.captions.words
        order = np.lexsort(tokens.T[::-1])  # by the first word, then the second, ...
        most = max(1, self.logits // (size * self.model.vocab_size))
        for part in np.array_split(order, -(-len(order) // most)):
            yield part, prefixes.tree(tokens[part, : words[part].max()])

    def scores(
        self, features: tf.Tensor, mask: tf.Tensor, image: tf.Tensor | None = None
    ) -> tf.Tensor:
        """Computes the scores of `__call__` without checking them.

        This also works inside a graph, where B must be static.
        """
        eager = tf.executing_eagerly()
        inputs = {"features": features, "mask": mask}
        if image is not None:
            inputs["image"] = image
        # In a graph every block is traced on its own, with static shapes.
        context = self._encode(inputs) if eager else self.model.encode(inputs)
        parts: list[tf.Tensor] = []
        order: list[np.ndarray] = []
        for places, given in self.blocks(mask.shape[0]):
            with tf.control_dependencies(parts[-1:]):  # one block after the other
                parts.append((self._score if eager else self._pairs)(context, given))
            order.append(places)
        return tf.gather(tf.concat(parts, 1), np.argsort(np.concatenate(order)), axis=1)

    def __call__(
        self, features: tf.Tensor, mask: tf.Tensor, image: tf.Tensor | None = None
    ) -> np.ndarray:
        """Computes the scores float32 [B, N], natural logarithm.

        Args:
          features: float32 [B, R, F].
          mask: bool [B, R], False for padding.
          image: float32 [B, F2], the vectors of the whole images, or None.

        Raises:
          ValueError: a probability is NaN or 0.
        """
        scores = self.scores(features, mask, image).numpy()
        if not np.isfinite(scores).all():
            raise ValueError(
                "The probability of a caption must be a positive number. Received: NaN or 0. The "
                "training of this model has diverged. Choose another checkpoint."
            )
        return scores
