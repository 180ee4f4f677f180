"""The options of decoding, from the keys `task.decoding` of a configuration to the searches.

Each option is one field of `Options`, with its default, its meaning and its check. The
configuration group `configs.Decoding` is derived from these fields, and the searches take
`Options` as it is. A new option is a new field, and the line that uses it. This module imports no
TensorFlow.
"""

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

LARGEST_BEAM = 500  # a wider one is a mistake: it needs much memory and no caption gets better
MOST_SAMPLES = 1000  # of an image, for the same reason
Words = str | tuple[int, ...]

Check = tuple[Callable[[Any], bool], str]  # a test, and the words that complete "KEY must be ..."
POSITIVE: Check = (lambda value: value > 0), "above 0"
RATE: Check = (lambda value: 0 <= value < 1), "at least 0 and below 1"


def one_of(*names: Any) -> Check:
    """Returns a check that a value is one of `names`."""
    return (lambda value: value in names), f"one of {', '.join(map(str, names))}"


def at_least(low: float) -> Check:
    """Returns a check that a value is a number of at least `low`, or None."""
    return (lambda value: value is None or value >= low), f"at least {low}"


def between(low: float, high: float) -> Check:
    """Returns a check that a value is a number from `low` to `high`."""
    return (lambda value: low <= value <= high), f"from {low} to {high}"


def _key(
    default: Any,
    check: Check | None = None,
    *,
    search: str = "",
    words: bool = False,
    ignorable: bool = False,
) -> Any:
    """Defines an option.

    Args:
      default: its value where nothing else is given; its type is the type of the key.
      check: what its value must satisfy; None accepts any value of the type.
      search: the only search that reads it; empty if every search does.
      words: whether it is text in a configuration and ids in a search.
      ignorable: whether a configuration may give it where it has no effect: a width for a search
        that is not chosen does no harm in a recipe.
    """
    metadata = {"check": check, "search": search, "words": words, "ignorable": ignorable}
    return dataclasses.field(default=default, metadata=metadata)


@dataclasses.dataclass(frozen=True)
class Options:
    """The keys of `task.decoding`: how validation, `evaluate`, `caption` and exports find captions.

    The options `suppress`, `bad_endings` and `prefix` hold text, words separated by spaces, in a
    configuration. A search needs them as ids: `with_ids` looks them up.

    Attributes:
      search: beam or sample.
      beam: K, hypotheses of each image.
      finished: `hold` keeps a finished hypothesis in its beam slot (the released search of X-LAN
        and X-Transformer). `retire` moves it to a list of the K best, and the search goes on with
        K unfinished ones (the older search, which the numbers in X-LAN's paper come from).
      groups: G, groups of K / G beams that are made to differ; divides `beam` (diverse beam
        search, Vijayakumar et al. 2018).
      diversity: penalty for a word that another group has chosen at the same position, in natural
        logarithm.
      samples: S, captions drawn for each image.
      top_k: draw from the k most probable words only (Fan et al. 2018); 0 draws from all.
      top_p: then draw from the smallest set of most probable words whose probabilities sum to at
        least p (nucleus sampling, Holtzman et al. 2020); 1 draws from all.
      order: `probability`, or `consensus`: by the mean CIDEr-D against the other samples of the
        image (minimum Bayes risk).
      temperature: divides the logits. Scores of a beam search are those of the tempered
        distribution; scores of samples are those of the model.
      length_penalty: measure of length that summed log-probabilities are divided by: `average`
        or `gnmt`, see `decoding.normalise_by_length`.
      length_power: exponent of that measure; 0 does not divide.
      suppress_unk: whether the unknown word is never chosen.
      suppress: other words that are never chosen.
      bad_endings: words that are never the last one, neither before the end nor where the longest
        caption is cut ("a man with a"). `default` is a list of articles, prepositions and forms
        of "to be".
      prefix: words that every caption begins with, even if other options exclude them.
      min_length: smallest number of words in a caption, its end not counted.
      max_length: largest number of words in a caption, at most `task.max_length`, which 0 takes. A
        caption that has no end by then is cut.
      no_repeat_ngram: n; no n words in a row occur twice in a caption (Paulus et al. 2018 with
        n = 3); 0 allows repetition.
    """

    search: str = _key("beam", one_of("beam", "sample"))
    beam: int = _key(3, between(1, LARGEST_BEAM), search="beam", ignorable=True)
    finished: str = _key("hold", one_of("hold", "retire"), search="beam")
    groups: int = _key(1, at_least(1), search="beam")
    diversity: float = _key(0.5, at_least(0), search="beam", ignorable=True)
    samples: int = _key(5, between(1, MOST_SAMPLES), search="sample", ignorable=True)
    top_k: int = _key(0, at_least(0), search="sample")
    top_p: float = _key(
        1.0, ((lambda value: 0 < value <= 1), "above 0 and at most 1"), search="sample"
    )
    order: str = _key("probability", one_of("probability", "consensus"), search="sample")
    temperature: float = _key(1.0, POSITIVE)
    length_penalty: str = _key("average", one_of("average", "gnmt"), ignorable=True)
    length_power: float = _key(0.0, at_least(0))
    suppress_unk: bool = _key(True)
    suppress: Words = _key("", words=True)
    bad_endings: Words = _key("", words=True)
    prefix: Words = _key("", words=True)
    min_length: int = _key(0, at_least(0))
    max_length: int = _key(0, at_least(0))
    no_repeat_ngram: int = _key(0, at_least(0))

    def __post_init__(self):
        check(self)

    def ids(self, name: str) -> tuple[int, ...]:
        """Returns the ids of the words in the option `name`.

        Raises:
          ValueError: the words are still text.
        """
        words = getattr(self, name)
        if isinstance(words, str) and words:
            raise ValueError(
                f"{name} must be a tuple of word ids in a search. Received: {words!r}. "
                "Convert them with Options.with_ids."
            )
        return tuple(words)

    def with_ids(self, ids_of: Callable[[str, str], tuple[int, ...]]) -> "Options":
        """Returns a copy of the options with word ids instead of text.

        Args:
          ids_of: returns the ids for the name and the text of an option. It is called only for
            options that hold text.
        """
        texts = {f.name: getattr(self, f.name) for f in _FIELDS if f.metadata["words"]}
        given = {name: text for name, text in texts.items() if text and isinstance(text, str)}
        changes: dict[str, Any] = {name: ids_of(name, given[name]) for name in given}
        return dataclasses.replace(self, **changes)


_FIELDS = dataclasses.fields(Options)


class Described(NamedTuple):
    """One option of decoding, as a form on a web page shows it.

    Attributes:
      name: its name.
      kind: `choice`, `flag`, `integer`, `number` or `text`.
      choices: the values of a `choice`.
      search: the only search that reads it; empty if every search does.
      wanted: what the value must be, for example "above 0"; empty if any value will do.
    """

    name: str
    kind: str
    choices: list[str]
    search: str
    wanted: str


def described() -> list[Described]:
    """Returns all options in their order."""
    kinds = {bool: "flag", int: "integer", float: "number", str: "text"}
    listed = []
    for field in _FIELDS:
        _, wanted = field.metadata["check"] or (None, "")
        choices = wanted.removeprefix("one of ").split(", ") if wanted.startswith("one of") else []
        kind = "choice" if choices else kinds[type(field.default)]
        wanted = "" if choices else wanted
        listed.append(Described(field.name, kind, choices, field.metadata["search"], wanted))
    return listed


def check(options: Any, prefix: str = "") -> None:
    """Raises ValueError for an option that no search can work with, or that has no effect.

    Args:
      options: `Options`, or the group of keys that is derived from it.
      prefix: stands before the name of an option in the message, for example `task.decoding.`.
    """
    for field in _FIELDS:
        value = getattr(options, field.name)
        accepts, wanted = field.metadata["check"] or (lambda _: True, "")
        if not accepts(value):
            raise ValueError(f"{prefix}{field.name} must be {wanted}. Received: {value!r}.")
    for part in WITHOUT_EFFECT:
        for field in _FIELDS:
            value, why = getattr(options, field.name), part(options).get(field.name)
            if why and not field.metadata["ignorable"] and value != field.default:
                raise ValueError(f"{prefix}{field.name} {why}. Received: {value!r}.")
    if options.search == "beam" and options.beam % options.groups:
        raise ValueError(
            f"{prefix}beam must be a multiple of groups ({options.groups}). "
            f"Received: {options.beam}."
        )
    if options.order == "consensus" and options.samples < 2:
        raise ValueError(
            f"{prefix}samples must be at least 2 for a consensus among them. "
            f"Received: {options.samples}."
        )


def _of_another_search(options: Any) -> dict[str, str]:
    """Maps each option that the chosen search does not read to what it needs."""
    needs = {field.name: field.metadata["search"] for field in _FIELDS}
    return {n: f"needs search {s}" for n, s in needs.items() if s not in ("", options.search)}


def _without_effect(options: Any) -> dict[str, str]:
    """Maps each option that the other values leave without effect to what it needs."""
    unused = {}
    if options.search == "beam" and options.groups == 1:
        unused["diversity"] = "needs groups above 1"
    if options.order == "consensus":
        why = "needs order probability"
        return unused | dict.fromkeys(("length_power", "length_penalty"), why)
    if not options.length_power:
        unused["length_penalty"] = "needs a length_power above 0"
    return unused


# The second function needs options from which those of another search are removed.
WITHOUT_EFFECT = (_of_another_search, _without_effect)

LARGEST_SEED = 2**22  # of sampling; `first_seed` leaves room for ids of up to 40 bits


def first_seed(seed: int) -> int:
    """Returns the seed of the image 0; image n has this seed plus n."""
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
