"""Computes log-probabilities of captions: for all pairs of image and caption, and as perplexity.

Letters: B images of a block, S captions of a block, N captions in all, C captions of an image, T
`max_length`, L words of a caption including the end mark, R regions, F feature width, V vocabulary,
U largest number of prefixes of one length.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from tfcap import progress
from tfcap.data.prepared import PreparedData, stored_captions
from tfcap.data.record import inputs_of
from tfcap.data.tokens import Vocab, tokenize_all
from tfcap.decoding.constraints import log_probs
from tfcap.decoding.scores import word_log_probs
from tfcap.ids import BOS, EOS, PAD, UNK
from tfcap.layers.loops import loop
from tfcap.layers.trees import Tree, take
from tfcap.models.captioner import Captioner, RecurrentCaptioner
from tfcap.runs import Run

# Largest number of logits of one call. It bounds the memory of scoring; logits that fit into the
# processor's cache are also faster.
LOGITS = 1 << 23
CHUNK = 16384  # captions turned into ids together
_EXAMPLES = 5  # unknown words that a note names


class EncodedCaptions(NamedTuple):
    """Captions as token ids."""

    tokens: np.ndarray  # int32 [N, T] without BOS: w1 ... wL EOS PAD ...; as `Vocab.encode` cuts
    words: np.ndarray  # int32 [N], L of each caption
    unknown: int  # words outside the vocabulary in all captions; they are scored as UNK
    cut: int  # captions that were cut
    examples: tuple[str, ...] = ()  # some of the unknown words

    def note(self) -> str:
        """One line about unknown words and cut captions; empty if there are none."""
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
    """Converts N raw captions to token ids; T is `max_length`."""
    parts = [
        vocab.encode(tf.constant(captions[start : start + CHUNK]), max_length).numpy()[:, 1:]
        for start in range(0, len(captions), CHUNK)
    ]
    ids = np.concatenate(parts)
    empty = np.flatnonzero(ids[:, 0] == EOS)
    if len(empty):
        raise ValueError(f"The caption {captions[empty[0]]!r} has no word.")
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
    """Yields the images at these positions of a split, in blocks of B.

    A block has `features` float32 [B, R, F] and `mask` bool [B, R], and `image` float32 [B, F2] if
    the data has vectors of whole images. The last block may be smaller. Regions of an image beyond
    `max_regions` are cut off.
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


class Prefixes(NamedTuple):
    """Captions as a tree: all different prefixes of t = 0 ... L - 1 words.

    A prefix that many captions share is computed once. The 5,000 validation captions of Flickr8k
    have 59,206 words but only 40,161 different prefixes.
    """

    tokens: np.ndarray  # int32 [S, L], the captions: w1 ... EOS PAD ...
    words: np.ndarray  # int32 [L, U], the last word of each prefix; BOS for the empty prefix
    parents: np.ndarray  # int32 [L, U], the index in row t - 1 of the prefix without its last word
    counts: np.ndarray  # int32 [L], prefixes of each length; the rest of a row is padding
    places: np.ndarray  # int32 [L, S], the index of each caption's prefix; 0 after its end


def prefix_tree(tokens: np.ndarray) -> Prefixes:
    """Builds the prefixes of captions int32 [S, L]: w1 ... EOS PAD ..."""
    captions, length = tokens.shape
    places = np.zeros((length, captions), np.int32)
    words, parents = [np.array([BOS])], [np.array([0])]
    for t in range(1, length):
        alive = np.flatnonzero(tokens[:, t] != PAD)
        last, before = tokens[alive, t - 1], places[t - 1, alive]
        _, first, places[t, alive] = np.unique(
            np.stack([before, last]), axis=1, return_index=True, return_inverse=True
        )
        words.append(last[first])
        parents.append(before[first])
    counts = np.array([len(row) for row in words], np.int32)

    def padded(rows):
        longest = int(counts.max())
        return np.array([np.pad(row, (0, longest - len(row))) for row in rows], np.int32)

    return Prefixes(tokens, padded(words), padded(parents), counts, places)


def score_prefixes(model: Captioner, context: Tree, given: Prefixes) -> tf.Tensor:
    """Computes log P(caption | image) float32 [B, S], natural logarithm, by `model.step`.

    A step has one row for each prefix and image. This works for every system, but a cache that
    grows with the words is copied in every step. `context` is the context of B images; the prefixes
    `given` are tensors.
    """
    size = tf.shape(tf.nest.flatten(context)[0])[0]
    images = tf.range(size)[:, tf.newaxis]

    def body(t, before, cache, total):
        number = given.counts[t]
        rows = images * before + given.parents[t, :number]
        cache = take(cache, tf.reshape(rows, [-1]))
        words = tf.tile(given.words[t, :number], [size])  # image-major
        logits, cache = model.step(context, cache, words, t)
        logps = tf.reshape(log_probs(logits), [-1])  # [B U V]
        now = given.tokens[:, t]
        chosen = tf.gather(logps, (images * number + given.places[t]) * model.vocab_size + now)
        return t + 1, number, cache, total + tf.where(now == PAD, 0.0, chosen)

    cache = model.init_cache(context, model.max_length)
    state = 0, 1, cache, tf.zeros([size, tf.shape(given.tokens)[0]])
    length = tf.shape(given.tokens)[1]
    rows = tf.nest.map_structure(lambda leaf: tf.TensorShape([None, *leaf.shape[1:]]), cache)
    *_, total = loop(
        lambda t, *_: t < length,
        body,
        tf.nest.map_structure(tf.convert_to_tensor, state),
        shape_invariants=(tf.TensorShape([]), tf.TensorShape([]), rows, state[-1].shape),
        maximum_iterations=length,
    )
    return total


class PairScorer:
    """Computes log P(caption | image) for every image of a block and every caption.

    An image is encoded once for all captions. The captions are scored in blocks whose logits stay
    below a fixed number, so that the memory depends neither on the images nor on the captions. A
    recurrent system computes one step for each prefix (`Prefixes`). The caches of other systems are
    too large for that; they decode captions of the same length in parallel, without padding. All
    blocks use one trace.

    Args:
      model, captions: the captioner, and the captions to score.
      specs: the result of `PreparedData.input_specs`; or F, for data without vectors of whole
        images.
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
        given: tf.TensorSpec | Prefixes = tokens
        if self.recurrent:
            given = Prefixes(tokens, tokens, tokens, tf.TensorSpec([None], tf.int32), tokens)
        self._score = tf.function(self._pairs, input_signature=[context, given], autograph=False)

    def use(self, captions: EncodedCaptions) -> None:
        self.captions, self._blocks = captions, {}

    def _pairs(self, context: Tree, given: tf.Tensor | Prefixes) -> tf.Tensor:
        """Scores captions of one length, tokens [S, L], or prefixes: [B, S]."""
        if isinstance(given, Prefixes):
            return score_prefixes(self.model, context, given)
        size = tf.shape(tf.nest.flatten(context)[0])[0]
        logps = word_log_probs(self.model, context, tf.tile(given, (size, 1)))  # image-major
        return tf.reshape(tf.reduce_sum(logps, -1), (size, tf.shape(given)[0]))

    def blocks(self, size: int) -> list[tuple[np.ndarray, np.ndarray | Prefixes]]:
        """Divides the captions into blocks: (positions [S], tokens [S, L] or prefixes)."""
        if size not in self._blocks:
            self._blocks[size] = list(self._prefixes(size) if self.recurrent else self._equal(size))
        return self._blocks[size]

    def _equal(self, size):
        tokens, words = self.captions.tokens, self.captions.words
        for length in np.unique(words):
            places = np.flatnonzero(words == length)
            most = max(1, self.logits // (size * int(length) * self.model.vocab_size))
            for part in np.array_split(places, -(-len(places) // most)):
                yield part, tokens[part, :length]

    def _prefixes(self, size):
        tokens, words = self.captions.tokens, self.captions.words
        order = np.lexsort(tokens.T[::-1])  # by the first word, then the second, ...
        most = max(1, self.logits // (size * self.model.vocab_size))
        for part in np.array_split(order, -(-len(order) // most)):
            yield part, prefix_tree(tokens[part, : words[part].max()])

    def __call__(
        self, features: tf.Tensor, mask: tf.Tensor, image: tf.Tensor | None = None
    ) -> np.ndarray:
        """Computes the scores float32 [B, N], natural logarithm.

        `features` are float32 [B, R, F], `mask` is bool [B, R], False for padding, and `image`
        float32 [B, F2] the vectors of the whole images.
        """
        inputs = {"features": features, "mask": mask}
        if image is not None:
            inputs["image"] = image
        context = self._encode(inputs)
        scores = np.zeros([len(mask), len(self.captions.words)], np.float32)
        for places, given in self.blocks(len(mask)):
            scores[:, places] = self._score(context, given)
        if not np.isfinite(scores).all():
            raise ValueError(
                "The probability of a caption is NaN or 0, so the training of this model has "
                "diverged. Choose another checkpoint."
            )
        return scores


class Perplexities(NamedTuple):
    """Perplexities of captions of images, base 2 (Mao et al., ICLR 2015, section 4)."""

    image: np.ndarray  # int64 [N], image ids
    log2: np.ndarray  # float64 [N], log2 P(caption | image), the end mark included
    words: np.ndarray  # int32 [N], L
    note: str  # that of `EncodedCaptions`

    @property
    def each(self) -> np.ndarray:
        """Perplexity of each caption: 2 ** (-(1/L) sum log2 P(w_n | w_1..n-1, I)), float64 [N]."""
        return np.exp2(-self.log2 / self.words)

    @property
    def mean(self) -> float:
        """Mean of `each`: long and short captions have the same weight."""
        return float(self.each.mean())

    @property
    def corpus(self) -> float:
        """Perplexity over all words: 2 ** (-(sum of log2 P) / (number of words))."""
        return float(np.exp2(-self.log2.sum() / self.words.sum()))

    def by_image(self) -> dict[int, list[float]]:
        result: dict[int, list[float]] = {}
        for image, value in zip(self.image.tolist(), self.each.tolist(), strict=True):
            result.setdefault(image, []).append(value)
        return result

    def format(self) -> str:
        """Returns `mean` and `corpus` as text, and the note, if any, on a second line."""
        line = (
            f"perplexity: {self.corpus:.2f} per word (base 2), mean over "
            f"{len(self.words)} references: {self.mean:.2f}"
        )
        return f"{line}\nnote: {self.note}" if self.note else line


def perplexities_of_split(
    run: Run,
    data: PreparedData,
    split: str = "val",
    batch_size: int = 10,
    limit: int = 0,
    references: Mapping[int, Sequence[str]] | None = None,
) -> Perplexities:
    """Computes the perplexity of each caption of a split for its image.

    PAD and BOS are not words and have no probability. The end mark counts as a word, as in the
    authors' later code (the paper does not say). A word outside the vocabulary counts as UNK.
    `limit` is the number of images to read from the start of the split; 0 reads all. `references`
    are captions by image id; None takes all captions of the split.
    """
    ids = data.index(split).id[: limit or None]
    known = stored_captions(data, split) if references is None else references
    places = np.array([i for i, image in enumerate(ids) if known.get(int(image))], np.int64)
    if not len(places):
        raise ValueError(f"Perplexity needs captions, and split {split} of {data.folder} has none.")
    ids = ids[places]
    each = [known[int(image)] for image in ids]
    texts = [caption for own in each for caption in own]
    captions = encode(run.vocab, texts, run.params.task.max_length)
    counts = np.array([len(own) for own in each])
    inside = np.arange(counts.max()) < counts[:, None]
    by_image = np.zeros((*inside.shape, captions.tokens.shape[1]), np.int32)  # [B, C, T]
    by_image[inside] = captions.tokens
    specs = [data.input_specs, tf.TensorSpec([None, None], tf.int32)]

    @tf.function(input_signature=specs, autograph=False)
    def score(inputs, tokens):
        return word_log_probs(run.model, run.model.encode(inputs), tokens)

    blocks = images(data, split, places, batch_size, run.max_regions)
    log2, start = [], 0
    for inputs in progress.progress(blocks, -(-len(ids) // batch_size), "perplexity, batches"):
        part = slice(start, start + len(inputs["mask"]))
        longest = np.count_nonzero(by_image[part], axis=2).max()
        tokens = by_image[part, :, :longest].reshape(-1, longest)  # [B, C, T'] -> [B C, T']
        logps = score(inputs, tokens).numpy().astype(np.float64).sum(1)
        log2.append(logps[inside[part].reshape(-1)])
        start += len(inputs["mask"])
    return Perplexities(
        image=np.repeat(ids, counts),
        log2=np.concatenate(log2) / np.log(2),
        words=captions.words,
        note=captions.note(),
    )
