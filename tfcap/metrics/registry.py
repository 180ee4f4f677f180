"""The table of metrics: those of tfcap, and those that `register` adds.

Letters: B images.
"""

import dataclasses
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Protocol

import numpy as np

# References of each image and one caption for each, as tokens in a text -> a score of each image.
Metric = Callable[[Sequence[Sequence[str]], Sequence[str]], Sequence[float]]

# Metrics that are computed only where they are named, and the keys of their scores.
ON_REQUEST = {
    "CHAIR": ("CHAIRi", "CHAIRs", "CHAIR-recall"),
    "CLIPScore": ("CLIPScore", "RefCLIPScore"),
}
METRICS = ["BLEU", "METEOR", "ROUGE-L", "CIDEr", "SPICE", *ON_REQUEST]  # what --scores names
KEYS = ["BLEU-1", "BLEU-2", "BLEU-3", "BLEU-4", "METEOR", "ROUGE-L", "CIDEr", "SPICE"]  # of scores
KEYS += [key for keys in ON_REQUEST.values() for key in keys]
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
        labels: Image id -> its labelled classes, for CHAIR; see `chair.read_labels`.
        pictures: Image id -> path of the picture file, for CLIPScore.
        clip: The encoder of CLIPScore; None if no weights are given.
    """

    labels: Mapping[int, Collection[str]] | None = None
    pictures: Mapping[int, str] = dataclasses.field(default_factory=dict)
    clip: Encoder | None = None


def defaults() -> list[str]:
    """Returns the metrics that are computed where no names are given."""
    return [name for name in METRICS if name not in ON_REQUEST]


def register(name: str) -> Callable[[Metric], Metric]:
    """Returns a decorator that registers a metric, which is then computed with all others.

    The metric gets the references and the caption of every image, both tokenized, and returns a
    score from 0 to 1 for each image. The score of the whole set is the mean.

    Args:
        name: The name in tables, files and flags.

    Raises:
        ValueError: Another metric has the name.
    """

    def decorate(metric: Metric) -> Metric:
        before = FURTHER.get(name)
        again = before is not None and before.__qualname__ == metric.__qualname__  # in a notebook
        if not again:
            if name in METRICS or name in KEYS:
                raise ValueError(f"There is a metric {name} already; give yours another name.")
            METRICS.append(name)
            KEYS.append(name)
        FURTHER[name] = metric
        return metric

    return decorate
