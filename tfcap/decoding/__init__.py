"""Finding and scoring sentences: functions over the Captioner interface.

All loops are `tf.while_loop`s of stock operations that end as soon as every sentence has ended,
so that the same functions run in training, in evaluation and inside a SavedModel.
"""

from tfcap.decoding.beams import beam_search
from tfcap.decoding.consensus import Consensus
from tfcap.decoding.constraints import Rules, log_probs
from tfcap.decoding.sampling import LARGEST_SEED, image_seeds, sample
from tfcap.decoding.scheduled import scheduled
from tfcap.decoding.scores import normalised, score
from tfcap.decoding.search import Options, Search

__all__ = [
    "Consensus",
    "LARGEST_SEED",
    "Options",
    "Rules",
    "Search",
    "beam_search",
    "image_seeds",
    "log_probs",
    "normalised",
    "sample",
    "scheduled",
    "score",
]
