"""The options of decoding: the keys `task.decoding` of a configuration, as the searches read them.

`configs.Decoding`, the group of these keys, is made from the fields of `Options`. Some options have
an effect on one kind of search only, see `READ_BY`. This module imports no TensorFlow.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

LARGEST_BEAM = 500  # a wider beam is a mistake: it needs much memory, and no caption gets better
MOST_SAMPLES = 1000  # of one image, for the same reason
CHOICES = {
    "search": ("beam", "sample"),
    "finished": ("hold", "retire"),
    "order": ("probability", "consensus"),
    "length_penalty": ("average", "gnmt"),
}
# Remarks on what an option accepts: `length_penalty` is a number in other programs.
_REMARKS = {"length_penalty": " (length_power is the exponent)"}
# Option -> the search that reads it; options that are not here are read by both.
READ_BY = dict.fromkeys(("beam", "finished", "groups", "diversity"), "beam")
READ_BY |= dict.fromkeys(("samples", "top_k", "top_p", "order"), "sample")
# Option of Transformers' generate() or of a similar program -> the options that do its work here.
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
Words = str | tuple[int, ...]  # text in a configuration, ids after `with_ids`


@dataclasses.dataclass(frozen=True)
class Options:
    """The keys of `task.decoding`: how validation, `evaluate`, `caption` and exports find captions.

    In a configuration, `suppress`, `bad_endings` and `prefix` are text: words separated by spaces.
    A search needs the ids of these words: `with_ids` looks them up.

    Attributes:
      search: kind of search: `beam` or `sample`.
      beam: number of hypotheses of each image, K.
      finished: what a beam search does with a finished hypothesis. `hold` keeps it as one of the K
        hypotheses (the released search of X-LAN and X-Transformer). `retire` moves it to a list of
        the K best finished ones, and the search goes on with K unfinished hypotheses (the older
        search, which gave the numbers in X-LAN's paper).
      groups: number of groups of hypotheses, G, with K / G hypotheses each; a word that an earlier
        group chose gets a penalty (diverse beam search, Vijayakumar et al. 2018). `beam` must be a
        multiple of `groups`; 1 means no groups.
      diversity: penalty of a word for each time that an earlier group has chosen it at the same
        position; it is subtracted from the log-probability (natural logarithm).
      samples: number of captions drawn for each image, S.
      top_k: a word is drawn from this number of most probable words (Fan et al. 2018); 0 means all
        words.
      top_p: a word is drawn from the smallest set of most probable words whose probabilities sum
        to at least this number (nucleus sampling, Holtzman et al. 2020). It applies after `top_k`;
        1 means all words.
      order: what the samples of an image are ordered by, best first: `probability`, or
        `consensus`, the mean CIDEr-D against the other samples of the image (minimum Bayes risk).
      temperature: number by which the logits are divided. Scores of a beam search come from the
        divided logits; scores of samples come from the logits of the model.
      length_penalty: measure of length by which summed log-probabilities are divided: `average`
        or `gnmt`, see `decoding.scores.normalise_by_length`.
      length_power: exponent of the measure of length; 0 keeps the plain sums.
      suppress_unk: whether the unknown word is excluded, so that no caption contains it.
      suppress: other words that are never chosen.
      bad_endings: words that are never the last word of a caption ("a man with a"), even
        if the caption is cut at `max_length`. The text `default` stands for a list of articles,
        prepositions and forms of "to be".
      prefix: words with which every caption begins, even if other options exclude them.
      min_length: smallest number of words in a caption, the end mark not counted.
      max_length: largest number of words in a caption, the end mark counted, at most
        `task.max_length`; a longer caption is cut and has no end mark. 0 means `task.max_length`.
      no_repeat_ngram: length n of word sequences that occur at most once in a caption (Paulus et
        al. 2018 with n = 3); 0 allows repetition.
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
        """Returns the ids of the words of an option.

        Args:
          name: `suppress`, `bad_endings` or `prefix`.

        Raises:
          ValueError: the option is still text; `with_ids` replaces it.
        """
        words = getattr(self, name)
        if isinstance(words, str) and words:
            raise ValueError(
                f"The option `{name}` is text, but a search needs the ids of its words. Convert "
                "the options with `Options.with_ids`."
            )
        return tuple(words)

    def with_ids(self, ids_of: Callable[[str, str], tuple[int, ...]]) -> "Options":
        """Returns a copy with ids in place of the text of `suppress`, `bad_endings` and `prefix`.

        Args:
          ids_of: a function that gets the name of one of these options and its text, and returns
            the ids of the words.
        """
        texts = {name: getattr(self, name) for name in ("suppress", "bad_endings", "prefix")}
        changes: dict[str, Any] = {
            name: ids_of(name, text)
            for name, text in texts.items()
            if text and isinstance(text, str)
        }
        return dataclasses.replace(self, **changes)


def check(options: Options, prefix: str = "") -> None:
    """Checks that every option has an allowed value.

    Args:
      options: the options, or the group `task.decoding` of a configuration.
      prefix: text before the name of the option in the error, such as "task.decoding.".

    Raises:
      ValueError: a value is not allowed; the message names the option and the allowed values.
    """
    consensus = options.search == "sample" and options.order == "consensus"
    rules = []  # name of the option, whether its value is allowed, and which values are
    for name, allowed in CHOICES.items():
        accepted = f"one of {', '.join(allowed)}{_REMARKS.get(name, '')}"
        rules.append((name, getattr(options, name) in allowed, accepted))
    rules += [
        ("beam", 1 <= options.beam <= LARGEST_BEAM, f"from 1 to {LARGEST_BEAM}"),
        ("samples", 1 <= options.samples <= MOST_SAMPLES, f"from 1 to {MOST_SAMPLES}"),
        ("samples", options.samples > 1 or not consensus, "at least 2 with order=consensus"),
        ("groups", options.groups >= 1, "at least 1"),
        ("top_p", 0 < options.top_p <= 1, "above 0 and at most 1"),
        # Outside of these limits, float32 has infinite or no differences between words.
        ("temperature", 1e-6 <= options.temperature <= 1e6, "from 1e-6 to 1e6"),
        ("diversity", 0 <= options.diversity <= 1e6, "from 0 to 1e6"),
        ("length_power", -10 <= options.length_power <= 10, "from -10 to 10"),
    ]
    for name in ("top_k", "min_length", "max_length", "no_repeat_ngram"):
        rules.append((name, getattr(options, name) >= 0, "at least 0"))
    for name, is_allowed, accepted in rules:
        if not is_allowed:
            value = getattr(options, name)
            raise ValueError(f"{prefix}{name} must be {accepted}, not {value!r}.")
    if options.search == "beam" and options.beam % options.groups:
        raise ValueError(
            f"{prefix}beam must be a multiple of groups ({options.groups}), not {options.beam}."
        )


def meant(name: str) -> list[str]:
    """Translates the name of an option in another library to the names of options here.

    Args:
      name: a name such as "num_beams" of Transformers, or a name that is used here, such as "beam".

    Returns:
      The options to set here, as "name" or "name=value": ["beam"] for both examples, ["samples",
      "search=sample"] for "best_of". An unknown name gives an empty list.
    """
    fields = {field.name for field in dataclasses.fields(Options)}
    return [name] if name in fields else ELSEWHERE.get(name, "").split()


LARGEST_SEED = 2**22  # of sampling; `first_seed` leaves room for ids of up to 40 bits


def first_seed(seed: int) -> int:
    """Returns the random seed of the image with the id 0. The seed of image n is n higher.

    Args:
      seed: the seed of the whole set of images, from 0 to `LARGEST_SEED`.
    """
    return int(seed) << 40  # an integer of NumPy may have fewer than 40 bits


# The model's own distribution: no word is excluded.
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
