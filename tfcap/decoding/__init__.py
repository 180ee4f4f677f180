"""Finds and scores captions with any captioner: beam search, sampling, teacher forcing.

All loops are TensorFlow operations and end as soon as every caption has ended. So the same
functions run in training, in evaluation and inside a SavedModel. TensorFlow is imported when a
function is first used, because the flags of commands need the presets only.
"""

import importlib
from typing import TYPE_CHECKING, Any

from tfcap.decoding.options import LARGEST_SEED, PRESETS, UNCONSTRAINED, Options

if TYPE_CHECKING:
    from tfcap.decoding.beams import beam_search
    from tfcap.decoding.constraints import log_probs
    from tfcap.decoding.sampling import image_seeds, sample, scheduled_sampling
    from tfcap.decoding.scores import normalise_by_length, score
    from tfcap.decoding.search import Consensus, Search

_MODULES = ("beams", "constraints", "sampling", "scores", "search")
__all__ = ["LARGEST_SEED", "PRESETS", "UNCONSTRAINED", "Options"]
__all__ += ["Consensus", "Search", "beam_search", "image_seeds", "log_probs"]
__all__ += ["normalise_by_length", "sample", "scheduled_sampling", "score"]


def __getattr__(name: str) -> Any:
    if name in __all__:
        for module in _MODULES:
            found = vars(importlib.import_module(f"{__name__}.{module}"))
            if name in found:
                return found[name]
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
