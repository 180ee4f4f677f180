"""Computes how well a captioner predicts reference captions: perplexity.

Letters: B images of a block, N captions in all, C captions of an image, T `max_length`, L words of
a caption including the end mark.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from tfcap import decoding
from tfcap.data.prepared import PreparedData, stored_captions
from tfcap.runs import Run
from tfcap.scoring import likelihood


class Perplexities(NamedTuple):
    """Perplexities of captions given their own images, base 2 (Mao et al., ICLR 2015, section 4).

    Attributes:
      image: int64 [N], image ids.
      caption: int32 [N], the position of a caption among the captions of its image.
      log2: float64 [N], log2 P(caption | image), the end mark included.
      words: int32 [N], L.
      note: the note of `EncodedCaptions.note`.
    """

    image: np.ndarray
    caption: np.ndarray
    log2: np.ndarray
    words: np.ndarray
    note: str

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
        """Perplexities of the captions of each image, by image id."""
        result: dict[int, list[float]] = {}
        for image, value in zip(self.image.tolist(), self.each.tolist(), strict=True):
            result.setdefault(image, []).append(value)
        return result

    def format(self) -> str:
        """Returns `mean` and `corpus` as text, and the note on a second line if there is one."""
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
    watch: Callable[[Iterator, int], Iterator] = lambda blocks, total: blocks,
) -> Perplexities:
    """Computes the perplexity of each caption of a split, given its image.

    PAD and BOS are not words and have no probability. The end mark counts as a word, as in the
    authors' later code (the paper does not say). A word outside the vocabulary counts as UNK.

    Args:
      run: the captioner, or an ensemble.
      data: the prepared directory.
      split: name of the split.
      batch_size: B.
      limit: number of images from the start of the split; 0 takes all.
      references: the captions by image id, as `stored_captions` returns them; None takes all that
        the split has.
      watch: wraps the iterator of blocks, given their number, for example to show progress.

    Raises:
      ValueError: no image of the split has a caption.
    """
    ids = data.index(split).id[: limit or None]
    known = stored_captions(data, split) if references is None else references
    places = np.array([i for i, image in enumerate(ids) if known.get(int(image))], np.int64)
    if not len(places):
        raise ValueError(
            f"Perplexity needs captions. Received: split {split} of {data.folder}, which has none. "
            "Choose another split."
        )
    ids = ids[places]
    each = [known[int(image)] for image in ids]
    texts = [caption for own in each for caption in own]
    captions = likelihood.encode(run.vocab, texts, run.params.task.max_length)
    counts = np.array([len(own) for own in each])
    inside = np.arange(counts.max()) < counts[:, None]
    by_image = np.zeros((*inside.shape, captions.tokens.shape[1]), np.int32)  # [B, C, T]
    by_image[inside] = captions.tokens
    specs = [data.input_specs, tf.TensorSpec([None, None], tf.int32)]

    @tf.function(input_signature=specs, autograph=False)
    def score(inputs, tokens):
        context = run.model.encode(inputs)
        return decoding.score(run.model, context, tokens)

    regions = run.max_regions
    blocks = likelihood.images(data, split, places, batch_size, regions)
    log2, start = [], 0
    for inputs in watch(blocks, -(-len(ids) // batch_size)):
        part = slice(start, start + len(inputs["mask"]))
        longest = np.count_nonzero(by_image[part], axis=2).max()
        tokens = by_image[part, :, :longest].reshape(-1, longest)  # [B, C, T'] -> [B C, T']
        logps = score(inputs, tokens).numpy().astype(np.float64).sum(1)
        log2.append(logps[inside[part].reshape(-1)])
        start += len(inputs["mask"])
    return Perplexities(
        image=np.repeat(ids, counts),
        caption=np.concatenate([np.arange(count, dtype=np.int32) for count in counts]),
        log2=np.concatenate(log2) / np.log(2),
        words=captions.words,
        note=captions.note(),
    )
