"""Sentences of images as options say: beam search or samples, and by what they are ordered.

Letters: B images, S samples per image, K sentences of an image (beams or samples), N = B S rows,
T `max_length`.
"""

from collections.abc import Callable
from typing import NamedTuple

import tensorflow as tf

from tfcap.decoding.beams import beam_search
from tfcap.decoding.constraints import Rules
from tfcap.decoding.sampling import sample
from tfcap.decoding.scores import normalised
from tfcap.models.captioner import Captioner, Tree


class Options(NamedTuple):
    """How sentences are found.

    Attributes:
      max_length: T.
      search: `beam` for `beam_search`, `sample` for `sample`.
      beam, groups, diversity, finished: of `beam_search`.
      samples: S, sentences drawn for each image.
      top_k, top_p: of `constraints.truncated`, for `sample`.
      temperature: of both searches.
      rules: of both.
      length_penalty, length_power: of `normalised`, of both.
    """

    max_length: int
    search: str = "beam"
    beam: int = 3
    groups: int = 1
    diversity: float = 0.0
    finished: str = "hold"
    samples: int = 1
    top_k: int = 0
    top_p: float = 1.0
    temperature: float = 1.0
    rules: Rules = Rules()
    length_penalty: str = "average"
    length_power: float = 0.0


class Search(tf.Module):
    """Finds the sentences of images: what validation, evaluation, captioning and serving call.

    Args:
      options: see there; K is its beam, or its number of samples.
      value: a function of tokens int32 [B, K, T] to float32 [B, K] by which sentences are ordered,
        for example `Consensus`; None: by their `normalised` log-probability.

    Raises:
      ValueError: an unknown search; calling it, what `beam_search` refuses.
    """

    def __init__(self, options: Options, value: Callable[[tf.Tensor], tf.Tensor] | None = None):
        super().__init__(name="search")
        if options.search not in ("beam", "sample"):
            raise ValueError(f"search must be beam or sample. Received: {options.search!r}")
        self.options, self.value = options, value

    @property
    def samples(self) -> bool:
        """Whether sentences are drawn, so that every image needs a seed."""
        return self.options.search == "sample"

    def __call__(
        self, model: Captioner, context: Tree, seeds: tf.Tensor | None = None
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """The sentences of B images.

        Args:
          model: the captioner.
          context: of `model.encode`, B images.
          seeds: int64 [B], of samples only: an image with a seed has the same sentences in any
            batch.

        Returns:
          Tokens [B, K, T] int32, PAD after EOS, best first; scores [B, K] float32, by which they
          are ordered.
        """
        tokens, scores = (self._drawn if self.samples else self._searched)(model, context, seeds)
        if self.value is None and not self.samples:
            return tokens, scores  # in order
        if self.value is not None:
            scores = self.value(tokens)
        scores, order = tf.math.top_k(scores, scores.shape[-1])
        return tf.gather(tokens, order, batch_dims=1), scores

    def _searched(self, model, context, seeds):
        del seeds
        options = self.options
        return beam_search(
            model,
            context,
            options.beam,
            options.max_length,
            finished=options.finished,
            groups=options.groups,
            diversity=options.diversity,
            temperature=options.temperature,
            rules=options.rules,
            length_penalty=options.length_penalty,
            length_power=options.length_power,
        )[:2]

    def _drawn(self, model, context, seeds):
        options = self.options
        shape = (options.samples, options.max_length)
        draws = tf.map_fn(
            lambda seed: tf.random.stateless_uniform(shape, tf.stack([seed, 0])),
            tf.cast(seeds, tf.int64),
            fn_output_signature=tf.TensorSpec(shape, tf.float32),
        )
        tokens, logps = sample(
            model,
            context,
            options.max_length,
            tf.reshape(draws, [-1, options.max_length]),  # [B, S, T] -> [N, T]
            options.temperature,
            rules=options.rules,
            top_k=options.top_k,
            top_p=options.top_p,
        )
        tokens = tf.reshape(tokens, [-1, *shape])
        sums = tf.reshape(tf.reduce_sum(logps, -1), [-1, options.samples])
        return tokens, normalised(sums, tokens, options.length_penalty, options.length_power)
