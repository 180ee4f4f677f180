"""Captions of a split follow the decoding options."""

import numpy as np
import pytest

from tfcap.inference.decode import decode_split

pytestmark = pytest.mark.slow


def decode(run, data, changes, batch_size=8, seed=1, limit=0):
    changed = run.with_decoding(changes)
    return decode_split(changed, data, "val", batch_size, limit=limit, seed=seed)


def test_samples_of_an_image_do_not_depend_on_the_batch(run, data):
    """The consensus uses the document frequencies of the training data."""
    values = "search=sample,samples=3,temperature=1.5,order=consensus"
    result = decode(run, data, values)
    first = decode(run, data, values, batch_size=5, limit=7)
    assert first.captions == dict(list(result.captions.items())[:7])
    assert first.scores == dict(list(result.scores.items())[:7])
    assert decode(run, data, values, seed=2, limit=7) != first
    assert all((np.diff(scores) <= 0).all() for scores in result.scores.values())
    assert len(set(map(tuple, result.captions.values()))) == 12
