"""Scheduled sampling in a training step: its ramp, and the draws of replicas."""

import json

import numpy as np
import pytest
from helpers import events
from helpers.steps import batch as a_batch
from helpers.steps import update

from tfcap import configs

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def short(data):
    """A batch of captions of at most five words: each word is a step."""
    result = a_batch(data, [5, 3, 4, 5], 0)
    return result | {"tokens": result["tokens"][..., :7]}


def options(small, **ramp):
    """Up-Down, which is traced quickly, without dropout and with `scheduled_sampling`."""
    sizes = dict(width=16, attention_width=8)
    sizes |= {f"{name}_dropout": 0.0 for name in ("word", "region", "head")}
    extra = {"task": {"model": {"updown": sizes}, "scheduled_sampling": ramp}}
    overrides = events.merged(small, extra)
    del overrides["task"]["model"]["attention_lstm"]
    return configs.resolve("updown", override=json.dumps(overrides))


def test_sampled_words_enter_only_after_the_start_of_the_ramp(small, data, short):
    """Teacher forcing before the ramp; then drawn words, the same for the same step only."""
    inputs = [short]
    ramp = options(small, increase=1.0, start=10, every=5, maximum=0.6)
    _, plain, _, [loss] = update(options(small), data, inputs)
    size = np.abs(plain).max()
    _, change, _, [result] = update(ramp, data, inputs, done=14)
    np.testing.assert_allclose(change, plain, atol=1e-5 * size)
    assert result == pytest.approx(loss, rel=1e-5)
    _, drawn, _, [other] = update(ramp, data, inputs, done=15)
    assert np.abs(drawn - plain).max() > 0.01 * size and abs(other - loss) > 1e-4
    _, again, _, [same] = update(ramp, data, inputs, done=15)
    np.testing.assert_array_equal(again, drawn)  # nothing but seed, step and replica counts
    assert same == other
    assert update(ramp, data, inputs, done=16)[3] != [other]


def test_replicas_sample_different_words(small, data, short):
    """The same batch on both: the first draws as one replica does, the second other words."""
    inputs = [short] * 2
    ramp = options(small, increase=0.6, every=1, maximum=0.6)
    _, _, _, [alone] = update(ramp, data, inputs[:1], done=1)
    _, _, _, [first, second] = update(ramp, data, inputs, done=1)
    assert first == pytest.approx(alone, rel=1e-5)
    assert abs(first - second) > 1e-4
