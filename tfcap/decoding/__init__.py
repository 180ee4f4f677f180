"""Finds and scores captions with any captioner: beam search, sampling, teacher forcing.

All loops are loops of stock TensorFlow operations that end as soon as every caption has ended. So
the same functions run in training, in evaluation and inside a SavedModel.
"""

from tfcap.decoding.beams import beam_search
from tfcap.decoding.consensus import Consensus
from tfcap.decoding.constraints import log_probs
from tfcap.decoding.options import PRESETS, UNCONSTRAINED, Options
from tfcap.decoding.sampling import LARGEST_SEED, image_seeds, sample
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
