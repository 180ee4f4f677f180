"""Finds and scores captions with any captioner: beam search, sampling, teacher forcing.

All loops are loops of stock TensorFlow operations that end as soon as every caption has ended. So
the same functions run in training, in evaluation and inside a SavedModel. The functions, and
TensorFlow with them, are imported at their first use: flags need the presets only.
"""

from typing import TYPE_CHECKING, Any

from tfcap.decoding.options import LARGEST_SEED, PRESETS, UNCONSTRAINED, Options

if TYPE_CHECKING:
    from tfcap.decoding.beams import beam_search
    from tfcap.decoding.consensus import Consensus
    from tfcap.decoding.constraints import log_probs
    from tfcap.decoding.sampling import image_seeds, sample
    from tfcap.decoding.scheduled import scheduled_sampling
    from tfcap.decoding.scores import normalise_by_length, score
    from tfcap.decoding.search import Search

__all__ = [
    "Consensus",
    "LARGEST_SEED",
    "Options",
    "PRESETS",
    "Search",
    "UNCONSTRAINED",
    "beam_search",
    "image_seeds",
    "log_probs",
    "normalise_by_length",
    "sample",
    "scheduled_sampling",
    "score",
]


def __getattr__(name: str) -> Any:
    """Imports the functions when the first of them is used."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from tfcap.decoding import beams, consensus, constraints, sampling, scheduled, scores, search

    for module in (beams, consensus, constraints, sampling, scheduled, scores, search):
        globals().update({key: vars(module)[key] for key in __all__ if key in vars(module)})
    return globals()[name]
