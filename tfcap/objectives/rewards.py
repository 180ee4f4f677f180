"""The reward of self-critical training: a weighted sum of terms, computed in the graph.

Letters: B images, S samples per image, C references per image, T length of the samples, U length
of the references, V vocabulary.

Captions are ids without BOS: w1 ... wL EOS PAD ... All values are float32 under any global dtype
policy.
"""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from tfcap.layers.trees import Tree
from tfcap.objectives import ngrams
from tfcap.objectives.ngrams import Bleu4, CiderD


class Convention(NamedTuple):
    """How the released code of a family of systems prepares the references of the reward."""

    reference_length: int | None  # references are cut to so many words and EOS; None: to T
    unknown_matches: bool  # True: UNK is a word like others; False: it equals no word


CONVENTIONS = {
    # X-LAN and X-Transformer: references are training targets; a long one is cut and has no EOS.
    "jdai": Convention(None, True),
    # ExpansionNet: references are whole captions with EOS. They keep words outside the vocabulary,
    # and the UNK of a sample does not equal them.
    "expansionnet": Convention(80, False),
}


class Reward:
    """Computes the weighted sum of the rewards of a sample; terms of weight 0 are not computed.

    * cider: `CiderD`, in 0 ... 10. bleu: `Bleu4`, in 0 ... 1.
    * length, in -1 ... 0: -min(1, abs(L - m) / max(1, m)), where L is the number of words of
      the sample and m the mean number of words of the references, both without EOS [GUESS: no
      released reward has a term for the length].
    * diversity, in 0 ... 1: 1 - the mean overlap of the sample with the other samples of its image;
      0 if there is no other sample, as for a greedy caption. The overlap of two samples is computed
      from their multisets of n-grams of 1 to 4 words without EOS: 2 x common n-grams / sum of both
      sizes, and 1 if both are empty [GUESS: Self-BLEU of Zhu et al. 2018 with this symmetric and
      bounded overlap instead of BLEU].
    * hook: a Python function ``hook(ids, captions)`` for rewards on strings. It gets B image ids,
      list[int], and the captions, list[list[str]] [B, S], and returns numbers [B, S]. It is slow:
      each call leaves the graph, copies from the device, and holds the lock of Python, so that
      replicas wait for each other. It only works in the process that built the graph.

    Args:
      table: document frequencies, see `CiderD`; None if ``cider`` is 0.
      vocab_size: V.
      convention: a name of `CONVENTIONS`. The caller cuts references to its ``reference_length``.
      count_eos: whether CIDEr-D and BLEU count EOS as a word.
      cider, bleu, length, diversity, hook_weight: weights of the terms.
      hook: the Python function, or None.
      detokenize: int32 [..., T] to string [...] tensors; needed by the hook.
    """

    def __init__(
        self,
        table: Any,
        vocab_size: int,
        *,
        convention: str = "jdai",
        count_eos: bool = True,
        cider: float = 1.0,
        bleu: float = 0.0,
        length: float = 0.0,
        diversity: float = 0.0,
        hook: Callable[[list[int], list[list[str]]], Any] | None = None,
        hook_weight: float = 1.0,
        detokenize: Callable[[tf.Tensor], tf.Tensor] | None = None,
    ):
        weights = {"cider": cider, "bleu": bleu, "length": length, "diversity": diversity}
        weights["hook"] = 0.0 if hook is None else hook_weight
        self.weights = {name: float(weight) for name, weight in weights.items() if weight}
        if not self.weights or not all(map(math.isfinite, self.weights.values())):
            raise ValueError(f"The weights of a reward must be finite and not all 0: {weights}.")
        self.hook, self.detokenize = hook, detokenize
        matches = CONVENTIONS[convention].unknown_matches
        self.words = ngrams.Packing(vocab_size, False, True)
        self.scorers: dict[str, CiderD | Bleu4] = {}
        if "cider" in self.weights:
            self.scorers["cider"] = CiderD(table, vocab_size, count_eos, matches)
        if "bleu" in self.weights:
            self.scorers["bleu"] = Bleu4(vocab_size, count_eos, matches)

    def references(self, tokens: tf.Tensor) -> Tree:
        """Computes what the terms need of the references.

        Args:
          tokens: int32 [B, C, U]; a row of only PAD is not a reference.

        Returns:
          A structure of tensors [B, ...] for `__call__`; a data pipeline can compute it.
        """
        count = tf.reduce_sum(tf.cast(self.words.words(tokens) != 0, tf.float32), -1)
        result = {name: scorer.references(tokens) for name, scorer in self.scorers.items()}
        return {**result, "words": ngrams.mean_of_real(count, ngrams.present(tokens))}

    def __call__(
        self, tokens: tf.Tensor, references: Tree, ids: tf.Tensor | None = None
    ) -> tf.Tensor:
        """Computes the rewards float32 [B, S]; they are always finite.

        Args:
          tokens: int32 [B, S, T], PAD after EOS; EOS may be missing.
          references: the result of `references` for the same images.
          ids: int64 [B], image ids; needed for a hook.
        """
        terms = {name: scorer(tokens, references[name]) for name, scorer in self.scorers.items()}
        if "length" in self.weights:
            terms["length"] = self._length(tokens, references["words"][:, tf.newaxis])
        if "diversity" in self.weights:
            terms["diversity"] = _diversity(self.words.keys(tokens))
        if "hook" in self.weights:
            terms["hook"] = self._hook(tokens, ids)
        return tf.add_n([self.weights[name] * term for name, term in terms.items()])

    def _length(self, tokens, wanted):
        """Computes the term `length` [B, S]; `wanted` [B, 1] is the mean length of references."""
        words = tf.reduce_sum(tf.cast(self.words.words(tokens) != 0, tf.float32), -1)
        return -tf.minimum(1.0, tf.abs(words - wanted) / tf.maximum(1.0, wanted))

    def _hook(self, tokens, ids):
        """Calls the hook outside the graph and checks the rewards [B, S] that it returns."""
        hook, detokenize = self.hook, self.detokenize
        assert hook is not None and detokenize is not None, "its weight is 0 without them"

        def call(ids, texts):
            captions = [[text.decode("utf-8") for text in row] for row in texts]
            result = np.asarray(hook(ids.tolist(), captions), np.float32)
            if result.shape != texts.shape or not np.isfinite(result).all():
                raise ValueError(f"The reward hook must return {texts.shape} finite numbers.")
            return result

        inputs = (tf.cast(ids, tf.int64), detokenize(tokens))
        result = tf.numpy_function(call, inputs, tf.float32)
        return tf.ensure_shape(result, tokens.shape[:2])


def _diversity(keys: tf.Tensor) -> tf.Tensor:
    """Computes the term `diversity` [B, S] of `Reward` from n-grams `keys` [B, 4, S, T]."""
    counts = tf.where(keys == ngrams.NONE, 1.0, ngrams.own_counts(keys))
    real = tf.cast(keys != ngrams.NONE, tf.float32)
    batch, samples = ngrams.axis_size(keys, 0), ngrams.axis_size(keys, 2)
    clipped_counts = tf.minimum(
        ngrams.occurrences(ngrams.merged(keys), keys), ngrams.merged(counts)[:, :, tf.newaxis]
    )
    common = clipped_counts * ngrams.merged(real / counts)[:, :, tf.newaxis]  # [B, 4, S, S T]
    common = tf.reshape(common, [batch, ngrams.ORDERS, samples, samples, ngrams.axis_size(keys, 3)])
    common = tf.reduce_sum(common, [1, 4])  # [B, S, S]
    sizes = tf.reduce_sum(real, [1, 3])
    sizes = sizes[:, :, tf.newaxis] + sizes[:, tf.newaxis]
    different = tf.where(sizes > 0, 1.0 - tf.math.divide_no_nan(2.0 * common, sizes), 0.0)
    others = tf.cast(samples - 1, tf.float32)  # a sample differs from itself by 0
    return tf.clip_by_value(tf.math.divide_no_nan(tf.reduce_sum(different, -1), others), 0.0, 1.0)


def signature(convention: str, count_eos: bool, **weights: float) -> str:
    """Returns the settings as text, as SacreEOS (Hu et al. 2023) does, to report with scores."""
    names = {"cider": "Cider-D[n4,s6.0]", "bleu": "BLEU-4"}
    terms = ["STANDARD_wInit" if count_eos else "NO<EOS>_wInit"]
    for name, weight in weights.items():
        if weight:
            terms.append(("" if weight == 1 else f"{weight}*") + names.get(name, name))
    if convention != "jdai":
        terms.append(convention)
    return "+".join(terms)
