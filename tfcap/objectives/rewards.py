"""The reward of self-critical training: a weighted sum of terms, computed in the graph.

Captions are ids without BOS: w1 ... wL EOS PAD ... All values are float32 under any global dtype
policy.

Letters: B images, S samples per image, C references per image, T length of the samples, U length
of the references, V vocabulary.
"""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from tfcap.layers.trees import Tree
from tfcap.objectives.ngrams import Bleu4, CiderD, Frequencies


class Convention(NamedTuple):
    """How the released code of a family of systems prepares the references for the reward.

    Attributes:
      reference_length: largest number of words of a reference, the end mark included; a longer
        reference is cut. None means the largest length of a caption in training.
      unknown_matches: whether the unknown word in a sample matches an unknown word in a reference.
    """

    reference_length: int | None
    unknown_matches: bool


CONVENTIONS = {
    # X-LAN and X-Transformer: references are training targets; a long one is cut and has no EOS.
    "jdai": Convention(None, True),
    # ExpansionNet: references are whole captions with EOS. They keep words outside the vocabulary,
    # and the UNK of a sample does not equal them.
    "expansionnet": Convention(80, False),
}


class Reward:
    """Computes the reward of sampled captions: a weighted sum of up to three terms.

    * ``cider``: CIDEr-D, see `CiderD`, from 0 to 10. With the weight 0 it is not computed.
    * ``bleu``: BLEU-4, see `Bleu4`, from 0 to 1. With the weight 0 it is not computed.
    * ``hook``: a Python function ``hook(ids, captions)`` for rewards on strings. It gets the ids of
      B images, list[int], and S captions of each image, list[list[str]], and returns numbers
      [B, S]. A hook is slow: each call leaves the graph, copies from the device, and holds Python's
      global lock, so that replicas wait for each other. It only works in the process that built the
      graph.

    Args:
      table: document frequencies of n-grams, as in `CiderD`; may be None if ``cider`` is 0.
      vocab_size: number of words of the vocabulary, PAD, BOS, EOS and UNK included.
      convention: the released code that the reward follows, `jdai` (X-LAN and X-Transformer) or
        `expansionnet`. It decides how long references are, and whether unknown words match, see
        `Convention`. The caller cuts the references to the `reference_length` of the convention.
      count_eos: whether CIDEr-D and BLEU count the end mark (EOS) as a word. If False, they ignore
        it.
      cider, bleu: weights of these terms.
      hook: the Python function, whose weight is 1; None leaves this term out.
      detokenize: a function that turns captions of up to T tokens, int32 [..., T], into texts,
        string [...]. It is only needed for the hook.

    Raises:
      ValueError: a weight is not finite. Both weights are 0 and there is no hook. `table` is None,
        but ``cider`` is not 0. The vocabulary is too large for `CiderD` or `Bleu4`.
    """

    def __init__(
        self,
        table: Frequencies | None,
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
            listed = ", ".join(f"{name} {weight}" for name, weight in weights.items())
            raise ValueError(
                "The weights `cider` and `bleu` of a reward must be finite, and without a hook one "
                f"of them must not be 0. The weights are: {listed}."
            )
        self.hook = hook
        self.detokenize = detokenize
        matches = CONVENTIONS[convention].unknown_matches
        self.scorers: dict[str, CiderD | Bleu4] = {}
        if "cider" in self.weights:
            if table is None:
                raise ValueError(
                    "A reward with CIDEr-D needs document frequencies of n-grams: give them as "
                    "`table`, or set the weight `cider` to 0."
                )
            self.scorers["cider"] = CiderD(table, vocab_size, count_eos, matches)
        if "bleu" in self.weights:
            self.scorers["bleu"] = Bleu4(vocab_size, count_eos, matches)

    def references(self, tokens: tf.Tensor) -> Tree:
        """Computes what depends only on the references, so that a data pipeline can do it.

        Args:
          tokens: C references of each of B images, int32 [B, C, U] for up to U tokens; a row of
            only PAD is not a reference.

        Returns:
          Name of the term, `cider` or `bleu` -> dictionary of tensors [B, ...]. The call of this
          object takes this result.
        """
        return {name: scorer.references(tokens) for name, scorer in self.scorers.items()}

    def __call__(
        self, tokens: tf.Tensor, references: Tree, ids: tf.Tensor | None = None
    ) -> tf.Tensor:
        """Computes the reward of each sample.

        Args:
          tokens: S samples of each of B images, int32 [B, S, T] for up to T tokens, PAD after EOS;
            EOS may be missing.
          references: the result of the method `references` for the same images.
          ids: image ids, int64 [B]. Only a hook needs them.

        Returns:
          float32 [B, S], always finite.
        """
        terms = {name: scorer(tokens, references[name]) for name, scorer in self.scorers.items()}
        if "hook" in self.weights:
            terms["hook"] = self._hook(tokens, ids)
        return tf.add_n([self.weights[name] * term for name, term in terms.items()])

    def _hook(self, tokens, ids):
        """Calls the hook outside the graph and checks the rewards [B, S] that it returns."""
        hook = self.hook
        detokenize = self.detokenize
        assert hook is not None and detokenize is not None, "its weight is 0 without them"

        def call(ids, texts):
            captions = [[text.decode("utf-8") for text in row] for row in texts]
            result = np.asarray(hook(ids.tolist(), captions), np.float32)
            if result.shape != texts.shape or not np.isfinite(result).all():
                raise ValueError(
                    "The hook of the reward must return a finite number for each caption, in an "
                    f"array of the shape {texts.shape}."
                )
            return result

        inputs = (tf.cast(ids, tf.int64), detokenize(tokens))
        result = tf.numpy_function(call, inputs, tf.float32)
        return tf.ensure_shape(result, tokens.shape[:2])


def signature(convention: str, count_eos: bool, **weights: float) -> str:
    """Returns the settings of a reward as text, for example "STANDARD_wInit+Cider-D[n4,s6.0]".

    Such a text is reported with the scores of a model. The form is that of SacreEOS (Hu et al.
    2023), and consists of these parts:

    * "STANDARD" if the end mark counts as a word, else "NO<EOS>";
    * "_wInit": document frequencies come from a corpus;
    * each term after a "+", with its weight in front if this is not 1. In "Cider-D[n4,s6.0]", n4
      says that n-grams have up to 4 words, and s6.0 that the length penalty has the standard
      deviation 6;
    * the convention after a "+", if it is not `jdai`.

    Args:
      convention, count_eos: as in `Reward`.
      weights: weight of each term by its name, `cider`, `bleu` or `hook`. A term of weight 0 is
        left out.
    """
    names = {"cider": "Cider-D[n4,s6.0]", "bleu": "BLEU-4"}
    terms = ["STANDARD_wInit" if count_eos else "NO<EOS>_wInit"]
    for name, weight in weights.items():
        if weight:
            terms.append(("" if weight == 1 else f"{weight}*") + names.get(name, name))
    if convention != "jdai":
        terms.append(convention)
    return "+".join(terms)
