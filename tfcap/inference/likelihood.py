"""Computes log-probabilities of captions: for all pairs of image and caption, and as perplexity.

Letters: B images of a block, S captions of a block, I images in all, N captions in all, C captions
of an image, T `max_length`, L words of a caption including the end mark, R regions, F feature
width, F2 width of a vector of a whole image, V vocabulary, U largest number of prefixes of one
length.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from tfcap import progress, segmentation
from tfcap.data.prepared import PreparedData, stored_captions
from tfcap.data.tokens import Vocab
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
_CHUNK = 16384  # captions turned into ids together
_EXAMPLES = 5  # unknown words that a note names


class EncodedCaptions(NamedTuple):
    """N captions as token ids.

    Attributes:
      tokens: int32 [N, T]. A row holds the words of a caption, then the end mark EOS, then padding
        PAD, but no start mark BOS. A caption that is longer than T tokens is cut and has no EOS.
      words: number of tokens of each caption without padding, EOS included, int32 [N].
      unknown: number of words of all captions together that are outside the vocabulary. These words
        have the token UNK.
      cut: number of captions that were cut.
      examples: some of the words outside the vocabulary.
    """

    tokens: np.ndarray
    words: np.ndarray
    unknown: int
    cut: int
    examples: tuple[str, ...] = ()

    def note(self) -> str:
        """Returns a line of text about unknown words and cut captions; "" if there are neither."""
        parts = []
        if self.unknown:
            total = int(self.words.sum())
            words = ", ".join(self.examples)
            parts.append(f"{self.unknown} of {total} words are outside the vocabulary: {words}")
        if self.cut:
            longest = self.tokens.shape[1]
            parts.append(f"{self.cut} of {len(self.words)} captions are cut to {longest} words")
        return "; ".join(parts)


def encode_captions(vocab: Vocab, captions: Sequence[str], max_length: int) -> EncodedCaptions:
    """Converts captions to token ids.

    Args:
      vocab: the vocabulary.
      captions: N captions, as plain sentences.
      max_length: largest number of tokens of a caption, EOS included, T; longer captions are cut.

    Raises:
      ValueError: a caption has no word.
    """
    raw = captions
    if segmentation.is_cut(vocab.tokens):
        captions = [" ".join(words) for words in vocab.split(captions)]
    parts = [
        vocab.encode(tf.constant(captions[start : start + _CHUNK]), max_length).numpy()[:, 1:]
        for start in range(0, len(captions), _CHUNK)
    ]
    tokens = np.concatenate(parts)
    empty = np.flatnonzero(tokens[:, 0] == EOS)
    if len(empty):
        raise ValueError(f"The caption {raw[empty[0]]!r} has no word. Leave it out.")
    return EncodedCaptions(
        tokens,
        words=np.count_nonzero(tokens != PAD, axis=1).astype(np.int32),
        unknown=int((tokens == UNK).sum()),
        cut=int((~(tokens == EOS).any(axis=1)).sum()),
        examples=_unknown_words(vocab, captions, tokens),
    )


def _unknown_words(vocab: Vocab, captions: Sequence[str], tokens: np.ndarray) -> tuple[str, ...]:
    """Returns some words of the captions that are UNK in `tokens` [N, T]."""
    rows = np.flatnonzero((tokens == UNK).any(axis=1))[:_EXAMPLES]
    unknown: dict[str, None] = {}  # in the order of the captions, each word once
    for words, row in zip(vocab.split([captions[i] for i in rows]), tokens[rows], strict=True):
        pairs = zip(words, row, strict=False)  # a caption may be cut
        unknown |= dict.fromkeys(word for word, token in pairs if token == UNK)
    return tuple(unknown)[:_EXAMPLES]


def read_images(
    data: PreparedData,
    split: str,
    positions: Sequence[int] | np.ndarray,
    batch_size: int,
    max_regions: int | None = None,
) -> Iterator[dict[str, tf.Tensor]]:
    """Reads images of a split in batches, each the inputs of a captioner.

    Args:
      data: the prepared data.
      split: name of the split.
      positions: the positions of the images to read in the split, from 0.
      batch_size: number of images of a batch, B; the last batch may be smaller.
      max_regions: largest number of regions of an image to read; None reads all.

    Yields:
      A dictionary for each batch: `features` float32 [B, R, F], R regions with vectors of width F,
      and `mask` bool [B, R], False for padding; and the further entries of
      `PreparedData.input_specs`.
    """
    pad_regions = data.most_regions(max_regions)
    indices = tf.data.Dataset.from_tensor_slices(np.asarray(positions, np.int64))
    blocks = data.examples(split, indices).batch(batch_size)
    # AutoGraph would only rewrite the parser, which takes longer than all other tracing.
    parse = tf.autograph.experimental.do_not_convert(
        lambda block: data.inputs_of(data.parse(block, pad_regions))
    )
    with data.readable_errors():
        for block in blocks.map(parse).prefetch(1):
            yield data.with_features(block)


class Prefixes(NamedTuple):
    """The beginnings of S captions as a tree, so that a beginning that they share is computed once.

    A prefix is the first t words of a caption, t = 0 ... L - 1, where L is the number of tokens of
    the longest caption. The 5,000 validation captions of Flickr8k have 59,206 words but only 40,161
    different prefixes. Row t of an array with L rows describes the different prefixes of t words. U
    is the number of prefixes in the longest row; shorter rows end with padding.

    Attributes:
      tokens: the captions, int32 [S, L]: words, then the end mark EOS, then padding PAD.
      words: the last word of each prefix, int32 [L, U]; BOS, the start mark, for the empty prefix.
      parents: for each prefix the index, in row t - 1, of the same prefix without its last word,
        int32 [L, U].
      counts: the number of prefixes in each row without padding, int32 [L].
      index_of: the index in row t of the prefix of each caption, int32 [L, S]; 0 after the end of
        the caption.
    """

    tokens: np.ndarray
    words: np.ndarray
    parents: np.ndarray
    counts: np.ndarray
    index_of: np.ndarray


def prefix_tree(tokens: np.ndarray) -> Prefixes:
    """Finds the different prefixes of captions.

    Args:
      tokens: S captions of up to L tokens, int32 [S, L]: words, then the end mark EOS, then padding
        PAD.
    """
    captions, length = tokens.shape
    index_of = np.zeros((length, captions), np.int32)
    words = [np.array([BOS])]
    parents = [np.array([0])]
    for t in range(1, length):
        going_on = np.flatnonzero(tokens[:, t] != PAD)
        last = tokens[going_on, t - 1]
        before = index_of[t - 1, going_on]
        _, first, index_of[t, going_on] = np.unique(
            np.stack([before, last]), axis=1, return_index=True, return_inverse=True
        )
        words.append(last[first])
        parents.append(before[first])
    counts = np.array([len(row) for row in words], np.int32)

    def padded(rows):
        longest = int(counts.max())
        return np.array([np.pad(row, (0, longest - len(row))) for row in rows], np.int32)

    return Prefixes(tokens, padded(words), padded(parents), counts, index_of)


def _score_prefixes(model: Captioner, context: Tree, prefixes: Prefixes) -> tf.Tensor:
    """Computes log P(caption | image) float32 [B, S], natural logarithm, by `model.step`.

    A step has one row for each prefix and image. This works for every system, but a cache that
    grows with the words is copied in every step.

    Args:
      model: the captioner.
      context: the context of B images, a result of `model.encode`.
      prefixes: the captions; its arrays are tensors.
    """
    size = tf.shape(tf.nest.flatten(context)[0])[0]
    images = tf.range(size)[:, tf.newaxis]

    def body(t, before, cache, total):
        number = prefixes.counts[t]
        rows = images * before + prefixes.parents[t, :number]
        cache = take(cache, tf.reshape(rows, [-1]))
        words = tf.tile(prefixes.words[t, :number], [size])  # image-major
        logits, cache = model.step(context, cache, words, t)
        logps = tf.reshape(log_probs(logits), [-1])  # [B U V]
        now = prefixes.tokens[:, t]
        rows = images * number + prefixes.index_of[t]
        chosen = tf.gather(logps, rows * model.vocab_size + now)
        return t + 1, number, cache, total + tf.where(now == PAD, 0.0, chosen)

    cache = model.init_cache(context, model.max_length)
    state = 0, 1, cache, tf.zeros([size, tf.shape(prefixes.tokens)[0]])
    length = tf.shape(prefixes.tokens)[1]
    cache_shapes = tf.nest.map_structure(lambda x: tf.TensorShape([None, *x.shape[1:]]), cache)
    *_, total = loop(
        lambda t, *_: t < length,
        body,
        tf.nest.map_structure(tf.convert_to_tensor, state),
        shape_invariants=(tf.TensorShape([]), tf.TensorShape([]), cache_shapes, state[-1].shape),
        maximum_iterations=length,
    )
    return total


class PairScorer:
    """Computes log P(caption | image) for every pair of an image and a caption.

    `scorer(features, mask)` returns the natural logarithms for B images and N captions, float32
    [B, N]. An image is encoded once for all captions. The captions are scored in blocks, which
    limits the memory. If several captions share a beginning, a recurrent model computes it only
    once (`Prefixes`). Other models would need too much memory for that, and score captions of the
    same length together.

    Args:
      model: the captioner.
      specs: the shapes and types of the model's inputs by name, from `PreparedData.input_specs`. If
        the inputs are only features and their mask, the width of a feature vector is enough.
      captions: the captions to score; the method `use` replaces them.
      logits: the largest number of logits in memory at once; a smaller number makes smaller blocks
        of captions. A single caption may need more.
    """

    def __init__(
        self,
        model: Captioner,
        specs: Mapping[str, tf.TensorSpec] | int,
        captions: EncodedCaptions,
        logits: int = LOGITS,
    ):
        self.model = model
        self.captions = captions
        self.logits = logits
        members = getattr(model, "members", [model])
        self.recurrent = all(isinstance(member, RecurrentCaptioner) for member in members)
        self._blocks: dict[int, list] = {}  # by B
        if isinstance(specs, int):
            features = tf.TensorSpec([None, None, specs])
            specs = {"features": features, "mask": tf.TensorSpec([None, None], tf.bool)}
        self._specs = specs
        self._encode = tf.function(
            lambda inputs: model.encode(inputs), input_signature=[dict(specs)], autograph=False
        )
        context = tf.nest.map_structure(
            lambda leaf: tf.TensorSpec(leaf.shape, leaf.dtype),
            self._encode.get_concrete_function().structured_outputs,
        )
        tokens = tf.TensorSpec([None, None], tf.int32)
        counts = tf.TensorSpec([None], tf.int32)
        block = Prefixes(tokens, tokens, tokens, counts, tokens) if self.recurrent else tokens
        self._score = tf.function(
            self._score_block, input_signature=[context, block], autograph=False
        )

    def use(self, captions: EncodedCaptions) -> None:
        """Replaces the captions that the scorer scores. The model is not traced again.

        Args:
          captions: the new captions.
        """
        self.captions = captions
        self._blocks = {}

    def _score_block(self, context: Tree, captions: tf.Tensor | Prefixes) -> tf.Tensor:
        """Scores captions of one length, tokens [S, L], or prefixes: [B, S]."""
        if isinstance(captions, Prefixes):
            return _score_prefixes(self.model, context, captions)
        size = tf.shape(tf.nest.flatten(context)[0])[0]
        logps = word_log_probs(self.model, context, tf.tile(captions, (size, 1)))  # image-major
        return tf.reshape(tf.reduce_sum(logps, -1), (size, tf.shape(captions)[0]))

    def blocks(self, size: int) -> list[tuple[np.ndarray, np.ndarray | Prefixes]]:
        """Divides the captions into blocks that fit into the memory.

        Args:
          size: number of images for which a block of captions is scored at once.

        Returns:
          For each block a pair: the positions of its captions among all captions of the scorer, and
          these captions. For a recurrent model they are `Prefixes`; otherwise they are tokens int32
          [S, L], S captions of L tokens.
        """
        if size not in self._blocks:
            self._blocks[size] = list(self._prefixes(size) if self.recurrent else self._equal(size))
        return self._blocks[size]

    def _equal(self, size: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Yields blocks of captions of the same length."""
        for length in np.unique(self.captions.words):
            positions = np.flatnonzero(self.captions.words == length)
            most = max(1, self.logits // (size * int(length) * self.model.vocab_size))
            for part in np.array_split(positions, math.ceil(len(positions) / most)):
                yield part, self.captions.tokens[part, :length]

    def _prefixes(self, size: int) -> Iterator[tuple[np.ndarray, Prefixes]]:
        """Yields blocks of captions that begin alike, as prefixes."""
        tokens = self.captions.tokens
        order = np.lexsort(tokens.T[::-1])  # by the first word, then the second, ...
        most = max(1, self.logits // (size * self.model.vocab_size))
        for part in np.array_split(order, math.ceil(len(order) / most)):
            yield part, prefix_tree(tokens[part, : self.captions.words[part].max()])

    def __call__(
        self,
        features: tf.Tensor,
        mask: tf.Tensor,
        image: tf.Tensor | None = None,
        boxes: tf.Tensor | None = None,
    ) -> np.ndarray:
        """Computes log P(caption | image) of all captions for a batch of images.

        Args:
          features: features of the R regions of B images, vectors of width F, float32 [B, R, F].
          mask: bool [B, R], False for padding.
          image: vectors of the whole images, of width F2, float32 [B, F2]; None if the data has
            none.
          boxes: boxes of the regions, float32 [B, R, 4]; None if they are not known.

        Returns:
          Natural logarithms, float32 [B, N], for the N captions of the scorer.

        Raises:
          ValueError: the probability of a caption is 0 or not a number.
        """
        inputs = {"features": features, "mask": mask}
        if image is not None:
            inputs["image"] = image
        if "boxes" in self._specs:
            inputs["boxes"] = tf.zeros((*np.shape(mask), 4)) if boxes is None else boxes
        context = self._encode(inputs)
        scores = np.zeros([len(mask), len(self.captions.words)], np.float32)
        for positions, captions in self.blocks(len(mask)):
            scores[:, positions] = self._score(context, captions)
        if not np.isfinite(scores).all():
            raise ValueError(
                "The probability of a caption is NaN or 0, so the training of this model has "
                "diverged. Choose another checkpoint, or train again with a smaller learning rate."
            )
        return scores


class Perplexities(NamedTuple):
    """The perplexities of N captions, each for its image (Mao et al., ICLR 2015, section 4).

    Attributes:
      image: for each caption the id of its image, int64 [N].
      log2: for each caption log2 P(caption | image), its end mark included, float64 [N].
      words: for each caption its number of words, its end mark included, int32 [N].
      note: a line of text about unknown words and cut captions; "" if there are neither.
    """

    image: np.ndarray
    log2: np.ndarray
    words: np.ndarray
    note: str

    @property
    def each(self) -> np.ndarray:
        """The perplexity of each of N captions, float64 [N].

        It is 2 ** (-log2 P(caption | image) / L) for a caption of L words, the end mark included.
        """
        return np.exp2(-self.log2 / self.words)

    @property
    def mean(self) -> float:
        """The mean of the perplexities of the captions. Long and short captions count the same."""
        return float(self.each.mean())

    @property
    def corpus(self) -> float:
        """The perplexity over the words of all captions together; long captions count more.

        It is 2 ** (-(sum of log2 P(caption | image)) / (number of all words)).
        """
        return float(np.exp2(-self.log2.sum() / self.words.sum()))

    def by_image(self) -> dict[int, list[float]]:
        """Returns image id -> the perplexity of each caption of the image."""
        result: dict[int, list[float]] = {}
        for image, value in zip(self.image.tolist(), self.each.tolist(), strict=True):
            result.setdefault(image, []).append(value)
        return result

    def format(self) -> str:
        """Returns `corpus` and `mean` as a line of text, and the note, if any, as a second line."""
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

    The end mark of a caption counts as a word, as in the later code of Mao et al. (their paper does
    not say). Padding and the start mark do not count. A word outside the vocabulary counts as the
    token UNK.

    Args:
      run: the trained captioner.
      data: prepared data with the vocabulary and the features of the run.
      split: name of the split.
      batch_size: number of images scored together.
      limit: number of images to score, from the start of the split; 0 scores all.
      references: image id -> the captions to score; None scores all captions of the split.

    Raises:
      ValueError: no image has a caption to score, or a caption has no word.
    """
    ids = data.index(split).id[: limit or None]
    if references is None:
        references = stored_captions(data, split)
    positions = np.array([i for i, image in enumerate(ids) if references.get(int(image))], np.int64)
    if not len(positions):
        raise ValueError(
            f"Perplexity needs captions, but split {split} of {data.folder} has none. Name another "
            "split, or leave out `perplexity`."
        )
    ids = ids[positions]
    captions_of = [references[int(image)] for image in ids]
    texts = [caption for captions in captions_of for caption in captions]
    encoded = encode_captions(run.vocab, texts, run.params.task.max_length)
    counts = np.array([len(captions) for captions in captions_of])
    real = np.arange(counts.max()) < counts[:, None]  # [I, C], False for padding
    by_image = np.zeros((*real.shape, encoded.tokens.shape[1]), np.int32)  # [I, C, T]
    by_image[real] = encoded.tokens

    @tf.function(
        input_signature=[data.input_specs, tf.TensorSpec([None, None], tf.int32)], autograph=False
    )
    def score(inputs, tokens):
        return word_log_probs(run.model, run.model.encode(inputs), tokens)

    blocks = read_images(data, split, positions, batch_size, run.max_regions)
    total = math.ceil(len(ids) / batch_size)
    log2 = []
    start = 0
    for inputs in progress.progress(blocks, total, "perplexity, batches"):
        part = slice(start, start + len(inputs["mask"]))
        longest = np.count_nonzero(by_image[part], axis=2).max()
        tokens = by_image[part, :, :longest].reshape(-1, longest)  # [B, C, L] -> [B C, L]
        logps = score(inputs, tokens).numpy().astype(np.float64).sum(1)
        log2.append(logps[real[part].reshape(-1)])
        start = part.stop
    return Perplexities(
        image=np.repeat(ids, counts),
        log2=np.concatenate(log2) / np.log(2),
        words=encoded.words,
        note=encoded.note(),
    )
