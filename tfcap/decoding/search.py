"""Runs the configured search (beam search or sampling) and orders the captions.

Letters: B images, S samples per image, K captions of an image (beams or samples), N = B S rows,
T `max_length`.
"""

from collections.abc import Callable
from typing import NamedTuple

import tensorflow as tf

from tfcap.decoding.beams import beam_search
from tfcap.decoding.options import Options
from tfcap.decoding.sampling import sample
from tfcap.decoding.scores import length_measure, normalise_by_length
from tfcap.layers.trees import Tree
from tfcap.models.captioner import Captioner
from tfcap.objectives.ngrams import CiderD


class Found(NamedTuple):
    """The K captions that a search found for each of B images, best first.

    Attributes:
      tokens: int32 [B, K, T] for up to T tokens, PAD after EOS.
      scores: what the captions are ordered by, float32 [B, K]: `log_probs` after
        `normalise_by_length`, or the results of a `Consensus`.
      log_probs: the summed natural log-probabilities of the words and of the end mark, float32
        [B, K]; those of a beam search come from the logits divided by the temperature.
      word_log_probs: the natural log-probability of each word and of the end mark under the model,
        float32 [B, K, T], 0 at PAD.
    """

    tokens: tf.Tensor
    scores: tf.Tensor
    log_probs: tf.Tensor
    word_log_probs: tf.Tensor


class Consensus(tf.Module):
    """Scores each sampled caption by its mean CIDEr-D against the other samples of its image.

    This is minimum Bayes risk decoding (Kumar and Byrne 2004) with CIDEr-D as the gain. The other
    samples stand for the unknown true caption, so the sample with the highest score has the highest
    expected CIDEr-D. A caption that was drawn twice counts twice. An object is called with the
    samples of several images and returns their scores.

    Args:
      cider: computes CIDEr-D, with the document frequencies of the training captions.
    """

    def __init__(self, cider: CiderD):
        super().__init__(name="consensus")
        self.cider = cider
        self.table = cider.idf  # an attribute of the module, so that a SavedModel keeps it

    def __call__(self, tokens: tf.Tensor) -> tf.Tensor:
        """Computes the mean CIDEr-D of each sample against the other samples of its image.

        Args:
          tokens: S samples of each of B images, int32 [B, S, T] for up to T tokens. S is at least
            2.

        Returns:
          The scores, float32 [B, S], from 0 to 10.
        """
        similarities = self.cider.similarities(tokens, self.cider.references(tokens))  # [B, S, S]
        others = tf.reduce_sum(similarities, -1) - tf.linalg.diag_part(similarities)
        return others / tf.cast(tf.shape(tokens)[1] - 1, tf.float32)


class Search(tf.Module):
    """Finds the K best captions of each image, by beam search or by sampling, as the options say.

    Validation, evaluation, captioning and serving all use this class. An object is called with a
    model, encoded images and, for sampling, a random seed for each image. It returns captions and
    their scores, best first. K is `options.beam` or, for sampling, `options.samples`.

    Args:
      options: the options, with ids in place of words (`Options.with_ids`).
      max_length: largest length of a caption in tokens, T. If `options.max_length` is not 0, it
        replaces this value. A longer caption is cut and has no end mark.
      consensus: a function that scores samples, such as a `Consensus`. It gets the tokens int32 [B,
        K, T] for B images and returns float32 [B, K]. The samples are ordered by these scores. None
        orders the samples by probability.
    """

    def __init__(
        self,
        options: Options,
        max_length: int,
        consensus: Callable[[tf.Tensor], tf.Tensor] | None = None,
    ):
        super().__init__(name="search")
        self.options = options
        self.consensus = consensus
        self.max_length = options.max_length or max_length

    @property
    def samples(self) -> bool:
        """Whether captions are sampled. Then the call needs a random seed for every image."""
        return self.options.search == "sample"

    def __call__(
        self,
        model: Captioner,
        context: Tree,
        seeds: tf.Tensor | None = None,
    ) -> Found:
        """Finds the K best captions of each of B images.

        Args:
          model: the captioner.
          context: what `model.encode` returned for the images.
          seeds: a random seed for each image, int64 [B], which sampling needs, see
            `sampling.image_seeds`. With the same seed, an image has the same captions in any batch.

        Returns:
          The captions, best first, with their scores.
        """
        if not self.samples:
            return self.from_draws(model, context, None)
        shape = (self.options.samples, self.max_length)
        draws = tf.map_fn(
            lambda seed: tf.random.stateless_uniform(shape, tf.stack([seed, 0])),
            tf.cast(seeds, tf.int64),
            fn_output_signature=tf.TensorSpec(shape, tf.float32),
        )
        return self.from_draws(model, context, draws)

    def from_draws(self, model: Captioner, context: Tree, draws: tf.Tensor | None) -> Found:
        """Finds the captions of B images as a call does, with random numbers in place of seeds.

        Args:
          model: the captioner.
          context: what `model.encode` returned for the images.
          draws: random numbers, uniform in [0, 1), one for each word: float32 [B, S, T]. None for a
            beam search.

        Returns:
          The captions as the call returns them.
        """
        if draws is None:
            tokens, scores, _, of_words = beam_search(model, context, self.max_length, self.options)
            sums = scores * length_measure(tokens, self.options)
            return Found(tokens, scores, sums, of_words)
        shape = (self.options.samples, self.max_length)
        rows = tf.reshape(draws, [-1, self.max_length])  # [B, S, T] -> [N, T]
        tokens, logps = sample(model, context, self.max_length, rows, self.options)
        tokens, of_words = tf.reshape(tokens, [-1, *shape]), tf.reshape(logps, [-1, *shape])
        sums = tf.reshape(tf.reduce_sum(logps, -1), [-1, self.options.samples])
        if self.consensus is not None:
            scores = self.consensus(tokens)
        else:
            scores = normalise_by_length(sums, tokens, self.options)
        scores, order = tf.math.top_k(scores, self.options.samples)
        tokens, sums, of_words = (
            tf.gather(values, order, batch_dims=1) for values in (tokens, sums, of_words)
        )
        return Found(tokens, scores, sums, of_words)
