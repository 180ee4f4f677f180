"""Positions of frames: with them the order of the regions matters, without them it does not."""

import pytest
import tensorflow as tf
from helpers import contract
from helpers.small_models import make

from tfcap import models

READERS = [name for name, cls in models.MODELS.items() if cls.reads_order]


def backwards(batch):
    """The batch with the visible regions of each image in reverse order, and their boxes."""
    counts = tf.reduce_sum(tf.cast(batch["mask"], tf.int32), 1)
    names = ("features", "boxes")
    return batch | {n: tf.reverse_sequence(batch[n], counts, seq_axis=1) for n in names}


def with_boxes(batch):
    """The batch with a box for each region; without boxes ORT reads the places of regions."""
    corners = tf.random.stateless_uniform([*batch["mask"].shape, 2], (1, 2), 0.0, 0.5)
    return batch | {"boxes": tf.concat([corners, corners + 0.3], -1)}


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=() if n == "updown" else pytest.mark.slow) for n in READERS]
)
def test_the_order_of_regions_matters_only_with_positions(name, batch):
    batch = with_boxes(batch) | {"tokens": batch["tokens"][:, :1, :2]}
    plain, ordered = (make(name, 1, region_positions=kind) for kind in ("none", "frames"))
    contract.same(plain(backwards(batch)), plain(batch), 1e-5)
    before, after = ordered(batch), ordered(backwards(batch))
    contract.differ(before[:2], after[:2])  # five and three regions
    contract.same(before[2], after[2], 1e-6)  # one region


def test_a_model_with_positions_keeps_the_contract(batch):
    ordered = make("updown", 1, region_positions="frames")
    contract.check_gradients(ordered, batch)
    contract.check_step_equals_decode(ordered, batch)
    contract.check_region_padding(ordered, batch, ordered(batch))
