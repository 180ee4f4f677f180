"""The table of metrics: those of pycocoevalcap, and further ones. A decorator adds a metric.

Letters: B images.
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

import numpy as np

# References of each image and one caption for each, as tokens in a text -> a score of each image.
Metric = Callable[[Sequence[Sequence[str]], Sequence[str]], Sequence[float]]

METRICS = ["BLEU", "METEOR", "ROUGE-L", "CIDEr", "SPICE"]  # what --scores and task.metrics name
KEYS = ["BLEU-1", "BLEU-2", "BLEU-3", "BLEU-4", "METEOR", "ROUGE-L", "CIDEr", "SPICE"]  # of scores
LOWER = ("loss", "perplexity", "CHAIRi", "CHAIRs")  # values of a validation; a lower one is better
FURTHER: dict[str, Metric] = {}  # in the order of registration


class Unavailable(RuntimeError):
    """A metric cannot be computed; the message is one line that says what to install or give."""


class Encoder(Protocol):
    """Two networks that map pictures and texts into one space, such as those of CLIP."""

    def pictures(self, paths: Sequence[str]) -> np.ndarray:
        """Returns a vector of each picture file, float32 [B, D].

        Raises:
            ValueError: A file is no picture that can be read.
        """

    def texts(self, texts: Sequence[str]) -> np.ndarray:
        """Returns a vector of each text, float32 [B, D]."""


@dataclasses.dataclass(frozen=True)
class Options:
    """The inputs that some metrics need besides captions. The flags of the commands set them.

    Attributes:
        instances: COCO's files of labelled objects, instances_*.json, for CHAIR.
        pictures: Image id -> path of the picture file, for CLIPScore.
        clip: The encoder of CLIPScore; None if no weights are given.
    """

    instances: Sequence[str] = ()
    pictures: Mapping[int, str] = dataclasses.field(default_factory=dict)
    clip: Encoder | None = None


@dataclasses.dataclass(frozen=True)
class Inputs:
    """What a metric of `register_on_request` scores, for B images in one order.

    Attributes:
        images: Ids of the images.
        references: Tokenized references of each image.
        captions: The tokenized caption of each image; may be empty.
        raw_references: References of each image as they were given.
        raw_captions: The caption of each image as it was given.
        options: The inputs besides captions.
    """

    images: Sequence[int]
    references: Sequence[Sequence[str]]
    captions: Sequence[str]
    raw_references: Sequence[Sequence[str]]
    raw_captions: Sequence[str]
    options: Options


@dataclasses.dataclass(frozen=True)
class Values:
    """The values of one score, from 0 to 1.

    Attributes:
        each: The value of each image, B values.
        counts: Float64 [B, 2]: the score of any set of images is the sum of the first column
            divided by the sum of the second. If None, the score is the mean of `each`.
    """

    each: Sequence[float]
    counts: np.ndarray | None = None

    @property
    def corpus(self) -> float:
        """The score of all images."""
        if self.counts is None:
            return float(np.mean(self.each))
        part, whole = np.sum(self.counts, axis=0)
        return float(part / whole) if whole else 0.0


@dataclasses.dataclass(frozen=True)
class Requested:
    """A metric that is computed only where its name is given.

    Attributes:
        keys: The keys of its scores.
        compute: Returns the values of each key, and notes to show with them.
    """

    keys: Sequence[str]
    compute: Callable[[Inputs], tuple[dict[str, Values], list[str]]]


ON_REQUEST: dict[str, Requested] = {}


def defaults() -> list[str]:
    """Returns the metrics that are computed where no names are given."""
    return [name for name in METRICS if name not in ON_REQUEST]


def register(name: str) -> Callable[[Metric], Metric]:
    """Returns a decorator that registers a metric, which is then computed with all others.

    The metric gets the references and the caption of every image, both tokenized, and returns a
    score from 0 to 1 for each image. The score of the whole set is the mean.

    Args:
      name: the name in tables, files and flags.

    Raises:
      ValueError: another metric has the name.
    """

    def decorate(metric: Metric) -> Metric:
        before = FURTHER.get(name)
        again = before is not None and before.__qualname__ == metric.__qualname__  # in a notebook
        if not again:
            _add(name, [name])
        FURTHER[name] = metric
        return metric

    return decorate


def register_on_request(name: str, keys: Sequence[str]) -> Callable:
    """Returns a decorator that registers a metric which is computed only where it is named.

    The metric gets `Inputs` and returns the `Values` of each key, and a list of notes. It raises
    `Unavailable` if a package or a file is missing.

    Args:
        name: The name in flags.
        keys: The names of its scores in tables and files.

    Raises:
        ValueError: Another metric has the name or a key.
    """

    def decorate(compute):
        before = ON_REQUEST.get(name)
        if before is None or before.compute.__qualname__ != compute.__qualname__:
            _add(name, keys)
        ON_REQUEST[name] = Requested(tuple(keys), compute)
        return compute

    return decorate


def _add(name: str, keys: Sequence[str]) -> None:
    """Adds a metric to the tables. Raises ValueError if a name is taken."""
    for new in {name, *keys}:
        if new in METRICS or new in KEYS:
            raise ValueError(f"The name of a metric must be new. Received: {new!r}.")
    METRICS.append(name)
    KEYS.extend(keys)
