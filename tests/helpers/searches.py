"""Searches without constraints but for the options that a test gives."""

import dataclasses

import tensorflow as tf

from tfcap.decoding import UNCONSTRAINED, beams, sampling


def options(**changes):
    """The options of the model's own distribution, with some changed."""
    return dataclasses.replace(UNCONSTRAINED, **changes)


def beam_search(model, context, beam, max_length, **changes):
    """`beams.beam_search` of so many beams."""
    return beams.beam_search(model, context, max_length, options(beam=beam, **changes))


def sample(model, context, max_length, draws=None, training=False, **changes):
    """`sampling.sample`."""
    changed = options(search="sample", **changes)
    return sampling.sample(model, context, max_length, draws, changed, training)


def traced(function, *args, **options):
    """What a function returns, computed in a graph, where Python runs a loop over words once.

    Without a graph it runs for each word. `goldens_test` searches so.
    """
    return tf.function(lambda: function(*args, **options), autograph=False)()
