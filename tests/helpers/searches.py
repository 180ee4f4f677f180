"""Searches without constraints but for the options that a test gives."""

import dataclasses

from tfcap import decoding
from tfcap.decoding import UNCONSTRAINED


def options(**given):
    """The options of the model's own distribution, changed as `given`."""
    return dataclasses.replace(UNCONSTRAINED, **given)


def beam_search(model, context, beam, max_length, **given):
    """`decoding.beam_search` of so many beams."""
    return decoding.beam_search(model, context, max_length, options(beam=beam, **given))


def sample(model, context, max_length, draws=None, training=False, **given):
    """`decoding.sample`."""
    given = options(search="sample", **given)
    return decoding.sample(model, context, max_length, draws, given, training)
