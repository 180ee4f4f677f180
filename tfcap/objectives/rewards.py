"""The reward of self-critical training: a weighted sum, inside the graph.

Letters: B images, S samples per image, C references per image, T length of the samples, U length
of the references, V vocabulary.

Captions are ids without BOS: w1 ... wL EOS PAD ... Everything is float32 whatever the global
policy is.
"""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from tfcap.models.captioner import Tree
from tfcap.objectives import ngrams
from tfcap.objectives.ngrams import Bleu4, CiderD


class Convention(NamedTuple):
    """How a released reward sees its references."""

    reference_length: int | None  # words and EOS kept of a reference; None: T, as in the samples
    unknown_matches: bool  # UNK is a word like others; False: it equals nothing


CONVENTIONS = {
    # X-LAN and X-Transformer: references are training targets, cut and without EOS if too long.
    "jdai": Convention(None, True),
    # ExpansionNet: references are whole sentences, EOS at the end of each. They keep the words
    # outside the vocabulary, which the UNK of a sample does not equal.
    "expansionnet": Convention(80, False),
}


class Reward:
    """Weighted sum of the rewards of a sample; a term of weight 0 costs nothing.

    * cider: `CiderD`, in 0 ... 10. bleu: `Bleu4`, in 0 ... 1.
    * length, in -1 ... 0: -min(1, abs(L - m) / max(1, m)) of a sample of L words where the
      references of its image have m on average, EOS not counted [GUESS: no released reward has a
      term for the length; this one is bounded].
    * diversity, in 0 ... 1: 1 - the mean over the other samples of the image of their overlap
      with this one; 0 if there is no other, as for a greedy caption. The overlap of two samples
      is that of their bags of n-grams of 1 to 4 words (without EOS), 2 common / (sum of their
      sizes), and 1 if both are empty [GUESS: Self-BLEU of Zhu et al. 2018 with a symmetric,
      bounded overlap in place of BLEU].
    * hook: the slow way, for rewards on strings. ``hook(ids, captions)`` is a Python function on
      image ids, list[int] of B, and sentences, list[list[str]] of B times S; it returns B times S
      numbers. Each call leaves the graph, copies from the device, holds Python's lock (replicas
      wait for one another) and works in the process that built the graph only.

    Args:
      table: of `CiderD`; None if ``cider`` is 0.
      vocab_size: V.
      convention: a name of `CONVENTIONS`. References come cut to its ``reference_length``.
      count_eos: EOS is a word for CIDEr-D and BLEU.
      cider, bleu, length, diversity, hook_weight: the weights.
      hook: the Python function, or None.
      detokenize: int32 [..., T] to string [...] tensors; needed by the hook.

    Raises:
      ValueError: an unknown convention, a weight that is not finite, nothing to reward, a hook
        without ``detokenize``, or what `CiderD` refuses.
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
        if convention not in CONVENTIONS:
            raise ValueError(
                f"convention must be one of {', '.join(CONVENTIONS)}. Received: {convention!r}."
            )
        weights = {"cider": cider, "bleu": bleu, "length": length, "diversity": diversity}
        weights["hook"] = 0.0 if hook is None else hook_weight
        self.weights = {name: float(weight) for name, weight in weights.items() if weight}
        if not self.weights or not all(map(math.isfinite, self.weights.values())):
            raise ValueError(
                "The weights of a reward must be finite and not all 0. Received: "
                f"{', '.join(f'{name}={weight}' for name, weight in weights.items())}."
            )
        if "cider" in self.weights and table is None:
            raise ValueError("CIDEr-D needs a table of document frequencies. Received: None.")
        if "hook" in self.weights and detokenize is None:
            raise ValueError("A reward hook reads sentences: give detokenize. Received: None.")
        self.convention, self.count_eos = convention, count_eos
        self.hook, self.detokenize = hook, detokenize
        matches = CONVENTIONS[convention].unknown_matches
        self.words = ngrams.Packing(vocab_size, False, True)
        self.scorers: dict[str, CiderD | Bleu4] = {}
        if "cider" in self.weights:
            self.scorers["cider"] = CiderD(table, vocab_size, count_eos, matches)
        if "bleu" in self.weights:
            self.scorers["bleu"] = Bleu4(vocab_size, count_eos, matches)

    @property
    def signature(self) -> str:
        """See `signature`."""
        return signature(self.convention, self.count_eos, **self.weights)

    def references(self, tokens: tf.Tensor) -> Tree:
        """What the terms need of the references int32 [B, C, U]; every leaf is [B, ...]."""
        count = tf.reduce_sum(tf.cast(self.words.words(tokens) != 0, tf.float32), -1)
        result = {name: scorer.references(tokens) for name, scorer in self.scorers.items()}
        return {**result, "words": ngrams.mean_of_real(count, ngrams.present(tokens))}

    def __call__(
        self, tokens: tf.Tensor, references: Tree, ids: tf.Tensor | None = None
    ) -> tf.Tensor:
        """Rewards [B, S] float32, always finite.

        Args:
          tokens: int32 [B, S, T], PAD after EOS, maybe without EOS.
          references: of `references`, for the same images.
          ids: int64 [B], image ids, needed by a hook.
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
        words = tf.reduce_sum(tf.cast(self.words.words(tokens) != 0, tf.float32), -1)
        return -tf.minimum(1.0, tf.abs(words - wanted) / tf.maximum(1.0, wanted))

    def _hook(self, tokens, ids):
        if ids is None:
            raise ValueError("A reward hook needs the image ids of the batch. Received: None.")

        def call(ids, sentences):
            captions = [[sentence.decode("utf-8") for sentence in row] for row in sentences]
            found = np.asarray(self.hook(ids.tolist(), captions), np.float32)
            if found.shape != sentences.shape or not np.isfinite(found).all():
                raise ValueError(
                    f"The reward hook must return finite numbers of shape {sentences.shape}. "
                    f"Received: shape {found.shape}, {np.sum(~np.isfinite(found))} not finite."
                )
            return found

        inputs = (tf.cast(ids, tf.int64), self.detokenize(tokens))
        found = tf.numpy_function(call, inputs, tf.float32)
        return tf.ensure_shape(found, tokens.shape[:2])


def _diversity(keys: tf.Tensor) -> tf.Tensor:
    """One minus the mean overlap with the other samples [B, S]; see `Reward`."""
    counts = tf.where(keys == ngrams.NONE, 1.0, ngrams.own_counts(keys))
    real = tf.cast(keys != ngrams.NONE, tf.float32)
    batch, samples = ngrams.axis_size(keys, 0), ngrams.axis_size(keys, 2)
    found = tf.minimum(
        ngrams.occurrences(ngrams.merged(keys), keys), ngrams.merged(counts)[:, :, tf.newaxis]
    )
    common = found * ngrams.merged(real / counts)[:, :, tf.newaxis]  # [B, 4, S, S T]
    common = tf.reshape(common, [batch, ngrams.ORDERS, samples, samples, ngrams.axis_size(keys, 3)])
    common = tf.reduce_sum(common, [1, 4])  # [B, S, S]
    sizes = tf.reduce_sum(real, [1, 3])
    sizes = sizes[:, :, tf.newaxis] + sizes[:, tf.newaxis]
    different = tf.where(sizes > 0, 1.0 - tf.math.divide_no_nan(2.0 * common, sizes), 0.0)
    others = tf.cast(samples - 1, tf.float32)  # a sample differs from itself by 0
    return tf.clip_by_value(tf.math.divide_no_nan(tf.reduce_sum(different, -1), others), 0.0, 1.0)


def signature(convention: str, count_eos: bool, **weights: float) -> str:
    """The settings in the form of SacreEOS (Hu et al. 2023), to be written beside scores."""
    names = {"cider": "Cider-D[n4,s6.0]", "bleu": "BLEU-4"}
    terms = ["STANDARD_wInit" if count_eos else "NO<EOS>_wInit"]
    for name, weight in weights.items():
        if weight:
            terms.append(("" if weight == 1 else f"{weight}*") + names.get(name, name))
    if convention != "jdai":
        terms.append(convention)
    return "+".join(terms)
