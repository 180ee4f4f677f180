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
    * hook: a Python function ``hook(ids, captions)`` for rewards on strings. It gets B image ids,
      list[int], and the captions, list[list[str]] [B, S], and returns numbers [B, S]. It is slow:
      each call leaves the graph, copies from the device, and holds the lock of Python, so that
      replicas wait for each other. It only works in the process that built the graph.

    Args:
      table: document frequencies, see `CiderD`; None if ``cider`` is 0.
      vocab_size: V.
      convention: a name of `CONVENTIONS`. The caller cuts references to its ``reference_length``.
      count_eos: whether CIDEr-D and BLEU count EOS as a word.
      cider, bleu: weights of these terms.
      hook: the Python function, whose weight is 1, or None.
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
        hook: Callable[[list[int], list[list[str]]], Any] | None = None,
        detokenize: Callable[[tf.Tensor], tf.Tensor] | None = None,
    ):
        weights = {"cider": cider, "bleu": bleu, "hook": float(hook is not None)}
        self.weights = {name: float(weight) for name, weight in weights.items() if weight}
        if not self.weights or not all(map(math.isfinite, self.weights.values())):
            raise ValueError(f"The weights of a reward must be finite and not all 0: {weights}.")
        self.hook, self.detokenize = hook, detokenize
        matches = CONVENTIONS[convention].unknown_matches
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
        return {name: scorer.references(tokens) for name, scorer in self.scorers.items()}

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
        if "hook" in self.weights:
            terms["hook"] = self._hook(tokens, ids)
        return tf.add_n([self.weights[name] * term for name, term in terms.items()])

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
