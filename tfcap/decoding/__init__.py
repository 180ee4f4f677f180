"""Finds and scores captions with any captioner: beam search, sampling, teacher forcing.

All loops are TensorFlow operations and end as soon as every caption has ended. So the same
functions run in training, in evaluation and inside a SavedModel. This file itself imports no
TensorFlow: the flags of commands need the presets only.

* `search.Search`: the configured search, of captions for images.
* `beams.beam_search`, `sampling.sample`: the two kinds of search.
* `sampling.scheduled_sampling`: teacher forcing with some inputs replaced by words of the model.
* `scores`: log-probabilities of captions, and their normalisation by length.
* `constraints`: words that may not stand at a position.
"""

from tfcap.decoding.options import LARGEST_SEED, PRESETS, UNCONSTRAINED, Options

__all__ = ["LARGEST_SEED", "PRESETS", "UNCONSTRAINED", "Options"]
