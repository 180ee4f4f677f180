"""The options of decoding, from the keys `task.decoding` of a configuration to the searches.

The configuration group `configs.Decoding` is derived from the fields of `Options`. Options that the
chosen search does not read are ignored, see `READ_BY`. This module imports no TensorFlow.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

LARGEST_BEAM = 500  # a wider one is a mistake: it needs much memory and no caption gets better
MOST_SAMPLES = 1000  # of an image, for the same reason
CHOICES = {
    "search": ("beam", "sample"),
    "finished": ("hold", "retire"),
    "order": ("probability", "consensus"),
    "length_penalty": ("average", "gnmt"),
}
_NUMBERS = {"length_penalty": " (the number is length_power)"}
# The search that reads an option; both read the others.
READ_BY = dict.fromkeys(("beam", "finished", "groups", "diversity"), "beam")
READ_BY |= dict.fromkeys(("samples", "top_k", "top_p", "order"), "sample")
# What does the work of the options of Transformers' generate() and of similar programs.
ELSEWHERE = {
    "num_beams": "beam",
    "beam_size": "beam",
    "beam_width": "beam",
    "do_sample": "search=sample",
    "num_return_sequences": "samples search=sample",
    "num_beam_groups": "groups",
    "diversity_penalty": "diversity",
    "best_of": "samples search=sample",
    "repetition_penalty": "no_repeat_ngram",
    "presence_penalty": "no_repeat_ngram",
    "frequency_penalty": "no_repeat_ngram",
    "no_repeat_ngram_size": "no_repeat_ngram",
    "max_new_tokens": "max_length",
    "max_tokens": "max_length",
    "min_new_tokens": "min_length",
    "min_tokens": "min_length",
    "bad_words_ids": "suppress",
    "suppress_tokens": "suppress",
    "sequence_bias": "suppress",
    "forced_bos_token_id": "prefix",
}
Words = str | tuple[int, ...]


@dataclasses.dataclass(frozen=True)
class Options:
    """The keys of `task.decoding`: how validation, `evaluate`, `caption` and exports find captions.

    The options `suppress`, `bad_endings` and `prefix` hold text, words separated by spaces, in a
    configuration. A search needs them as ids: `with_ids` looks them up.

    Attributes:
      search: beam or sample.
      beam: K, hypotheses of each image.
      finished: `hold` keeps a finished hypothesis in its beam slot (the released search of X-LAN
        and X-Transformer). `retire` moves it to a list of the K best, and the search goes on with K
        unfinished hypotheses (the older search, which gave the numbers in X-LAN's paper).
      groups: G, number of groups of K / G beams; words that another group chose get a penalty.
        `beam` must be a multiple of G (diverse beam search, Vijayakumar et al. 2018).
      diversity: penalty for a word that another group has chosen at the same position, in natural
        logarithm.
      samples: S, captions drawn for each image.
      top_k: draw from the k most probable words only (Fan et al. 2018); 0 draws from all.
      top_p: then draw from the smallest set of most probable words whose probabilities sum to at
        least p (nucleus sampling, Holtzman et al. 2020); 1 draws from all.
      order: `probability`, or `consensus`: by the mean CIDEr-D against the other samples of the
        image (minimum Bayes risk).
      temperature: divides the logits. Scores of a beam search come from the tempered distribution;
        scores of samples come from the distribution of the model.
      length_penalty: measure of length that summed log-probabilities are divided by: `average`
        or `gnmt`, see `decoding.normalise_by_length`.
      length_power: exponent of that measure; 0 does not divide.
      suppress_unk: whether the unknown word is never chosen.
      suppress: other words that are never chosen.
      bad_endings: words that are never the last word of a caption ("a man with a"), also of a
        caption that is cut at `max_length`. `default` is a list of articles, prepositions and forms
        of "to be".
      prefix: words that every caption begins with, even if other options exclude them.
      min_length: smallest number of words in a caption, its end not counted.
      max_length: largest number of words in a caption; a longer caption is cut. At most
        `task.max_length`; 0 takes `task.max_length`.
      no_repeat_ngram: n; no n words in a row occur twice in a caption (Paulus et al. 2018 with
        n = 3); 0 allows repetition.
    """

    search: str = "beam"
    beam: int = 3
    finished: str = "hold"
    groups: int = 1
    diversity: float = 0.5
    samples: int = 5
    top_k: int = 0
    top_p: float = 1.0
    order: str = "probability"
    temperature: float = 1.0
    length_penalty: str = "average"
    length_power: float = 0.0
    suppress_unk: bool = True
    suppress: Words = ""
    bad_endings: Words = ""
    prefix: Words = ""
    min_length: int = 0
    max_length: int = 0
    no_repeat_ngram: int = 0

    def __post_init__(self):
        check(self)

    def ids(self, name: str) -> tuple[int, ...]:
        """Returns the ids of the words in the option `name`, after `with_ids`."""
        words = getattr(self, name)
        if isinstance(words, str) and words:
            raise ValueError(f"A search needs ids for {name}: convert them with Options.with_ids.")
        return tuple(words)

    def with_ids(self, ids_of: Callable[[str, str], tuple[int, ...]]) -> "Options":
        """Returns a copy with ids in place of text; `ids_of(name, text)` looks up the ids."""
        texts = {name: getattr(self, name) for name in ("suppress", "bad_endings", "prefix")}
        changes: dict[str, Any] = {
            name: ids_of(name, text)
            for name, text in texts.items()
            if text and isinstance(text, str)
        }
        return dataclasses.replace(self, **changes)


def check(options: Any, prefix: str = "") -> None:
    """Raises ValueError for an impossible value; `prefix` precedes the option in the error."""
    consensus = options.search == "sample" and options.order == "consensus"
    rules = [
        (
            name,
            getattr(options, name) in known,
            f"one of {', '.join(known)}{_NUMBERS.get(name, '')}",
        )
        for name, known in CHOICES.items()
    ]
    rules += [
        ("beam", 1 <= options.beam <= LARGEST_BEAM, f"from 1 to {LARGEST_BEAM}"),
        ("samples", 1 <= options.samples <= MOST_SAMPLES, f"from 1 to {MOST_SAMPLES}"),
        ("samples", options.samples > 1 or not consensus, "at least 2 for a consensus among them"),
        ("groups", options.groups >= 1, "at least 1"),
        ("top_p", 0 < options.top_p <= 1, "above 0 and at most 1"),
        # Outside of these limits, float32 has infinite or no differences between words.
        ("temperature", 1e-6 <= options.temperature <= 1e6, "above 0, from 1e-6 to 1e6"),
        ("diversity", 0 <= options.diversity <= 1e6, "from 0 to 1e6"),
        ("length_power", -10 <= options.length_power <= 10, "from -10 to 10"),
    ]
    for name in ("top_k", "min_length", "max_length", "no_repeat_ngram"):
        rules.append((name, getattr(options, name) >= 0, "at least 0"))
    for name, right, wanted in rules:
        if not right:
            value = getattr(options, name)
            raise ValueError(f"{prefix}{name} must be {wanted}, not {value!r}.")
    if options.search == "beam" and options.beam % options.groups:
        raise ValueError(
            f"{prefix}beam must be a multiple of groups ({options.groups}), not {options.beam}."
        )


def meant(name: str) -> list[str]:
    """Returns the options that `name` means: itself, or those that do the work of `ELSEWHERE`."""
    fields = {field.name for field in dataclasses.fields(Options)}
    return [name] if name in fields else ELSEWHERE.get(name, "").split()


LARGEST_SEED = 2**22  # of sampling; `first_seed` leaves room for ids of up to 40 bits


def first_seed(seed: int) -> int:
    """Returns the seed of image 0. The seed of image n is n higher."""
    return int(seed) << 40  # an integer of NumPy may have fewer than 40 bits


# Decodes from the model's own distribution: no word is excluded.
UNCONSTRAINED = Options(suppress_unk=False)

PRESETS = {  # the searches behind published numbers
    # The older search of X-LAN's code, which its paper used.
    "xlan_paper": Options(beam=3, finished="retire"),
    # The search of the released X-LAN, X-Transformer and X-modaler.
    "released": Options(beam=3, suppress_unk=False),
    # ExpansionNet after self-critical training; after cross-entropy beam 2.
    "expansionnet": Options(beam=5, length_power=1.0, suppress_unk=False),
    # m-RNN's released code: the paper keeps 5 captions, and 10 to rerank them.
    "mrnn": Options(beam=5, finished="retire", suppress_unk=False),
}
