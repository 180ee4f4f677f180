"""What boxes change in the Object Relation Transformer; `parity_test` compares its numbers."""

import numpy as np
import pytest
import tensorflow as tf
from helpers import contract, searches, small_models
from helpers.sizes import LENGTH

from tfcap import models
from tfcap.layers import precision
from tfcap.layers.geometry import relation_codes


@pytest.fixture(scope="module")
def model():
    return small_models.make("ort", seed=1)


@pytest.fixture(scope="module")
def batch(batch):
    """With boxes in rising order of their corners."""
    corners = np.random.default_rng(0).random((*batch["mask"].shape, 2, 2))
    boxes = np.concatenate([corners.min(-2), corners.max(-2)], -1).astype(np.float32)
    return batch | {"boxes": tf.constant(boxes), "tokens": batch["tokens"][..., :4]}


def test_boxes_matter_but_not_those_of_padding(model, batch):
    logits = model(batch)
    hidden = ~batch["mask"].numpy()
    loud = contract.changed(batch, "boxes", lambda x: x.__setitem__(hidden, 7.0))
    contract.same(model(loud), logits, 1e-5)
    moved = contract.changed(batch, "boxes", lambda x: x.__setitem__((0, 0), [0.1, 0.2, 0.9, 0.8]))
    result = model(moved)
    contract.differ(result[0], logits[0])
    contract.same(result[1:], logits[1:], 1e-5)


def test_regions_have_no_order(model, batch):
    """With their boxes they can change places; a grid's cells cannot."""
    order = tf.argsort(tf.cast(~batch["mask"], tf.int32))[:, ::-1]
    swapped = {k: tf.gather(batch[k], order, batch_dims=1) for k in ("features", "mask", "boxes")}
    contract.same(model(batch | swapped), model(batch), 1e-4)
    del swapped["boxes"]
    grid = {key: value for key, value in batch.items() if key != "boxes"}
    contract.differ(model(grid | swapped)[0], model(grid)[0])


def test_boxes_keep_their_digits_in_half_precision(batch):
    """1 + 0.001 is 1 in bfloat16: both ways into the model give the same logits."""
    with precision.using("mixed_bfloat16"):
        low = small_models.make("ort", seed=1)
    tokens = contract.rows_of(batch)
    called = tf.reshape(low(batch), (*tokens.shape, -1))
    contract.same(called, low.decode(low.encode(batch), tokens), 1e-6)


def test_an_ensemble_reads_boxes_if_a_member_does(model, batch):
    other = small_models.make("show_tell", seed=1)
    ensemble = models.Ensemble([model, other])
    assert ensemble.reads_boxes and not models.Ensemble([other]).reads_boxes
    moved = contract.changed(batch, "boxes", lambda x: x.__setitem__((0, 0), [0.1, 0.2, 0.9, 0.8]))
    contract.differ(ensemble(moved)[0], ensemble(batch)[0])


def test_the_extra_connection_adds_the_normalised_regions_before_the_last_map(model, batch):
    other = small_models.make("ort", seed=1, extra_skip=True)
    tokens = searches.beam_search(other, other.encode(batch), 2, LENGTH)[0]
    assert tokens.shape == (len(batch["mask"]), 2, LENGTH)
    layers = []
    for each in (model, other):
        layer = each.encoder[0]
        kernel = layer.fc2.kernel.numpy()
        layer.fc2.kernel.assign(np.zeros_like(kernel))  # no feed-forward block, but for its bias
        x = 3 * tf.random.stateless_normal((*batch["mask"].shape, each.width), (0, 1)) + 1
        layers.append(layer(x, relation_codes(batch["boxes"]), batch["mask"][:, None]))
        layer.fc2.kernel.assign(kernel)
    normal = model.encoder[0].self_norm(x)
    expected = tf.matmul(normal, model.encoder[0].output_map.kernel)
    np.testing.assert_allclose(layers[1] - layers[0], expected, atol=1e-5)
