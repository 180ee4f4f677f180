"""Finds and scores captions with any captioner: beam search, sampling, teacher forcing.

All loops are TensorFlow operations, so the same functions run in training, in evaluation and inside
a SavedModel. A loop ends as soon as every caption has ended. This file itself imports no
TensorFlow, because the flags of commands need only the options and the presets.

* `options.Options`: the options of all searches.
* `search.Search`: the search that the options describe, which finds captions for images.
* `beams.beam_search`, `sampling.sample`: the two kinds of search.
* `sampling.scheduled_sampling`: teacher forcing with some inputs replaced by words of the model.
* `scores`: log-probabilities of captions, and their normalisation by length.
* `constraints`: words that may not stand at a position.
"""

from tfcap.decoding.options import LARGEST_SEED, PRESETS, UNCONSTRAINED, Options

__all__ = ["LARGEST_SEED", "PRESETS", "UNCONSTRAINED", "Options"]
