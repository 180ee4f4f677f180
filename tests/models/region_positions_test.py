"""Positions of frames: with them the order of the regions matters, without them it does not."""

import numpy as np
import pytest
import tensorflow as tf
from helpers import contract
from helpers.small_models import SHALLOW, make

from tfcap import models
from tfcap.models import registry

READERS = [name for name, cls in models.MODELS.items() if cls.reads_order]
OTHERS = sorted(set(models.MODELS) - set(READERS))


def backwards(batch):
    """The batch with the visible regions of each image in reverse order."""
    counts = tf.reduce_sum(tf.cast(batch["mask"], tf.int32), 1)
    features = tf.reverse_sequence(batch["features"], counts, seq_axis=1)
    return batch | {"features": features}


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=() if n == "updown" else pytest.mark.slow) for n in READERS]
)
def test_the_order_of_regions_matters_only_with_positions(name, batch):
    batch = batch | {"tokens": batch["tokens"][:, :1, :2]}
    layers = dict(encoder_layers=1, decoder_layers=1) if name in SHALLOW else {}
    plain, ordered = (make(name, 1, region_positions=kind, **layers) for kind in ("none", "frames"))
    contract.same(plain(backwards(batch)), plain(batch), 1e-5)
    before, after = ordered(batch), ordered(backwards(batch))
    contract.differ(before[:2], after[:2])  # five and three regions
    contract.same(before[2], after[2], 1e-6)  # one region


@pytest.fixture(scope="module")
def ordered():
    return make("updown", 1, region_positions="frames")


CHECKS = [
    contract.check_step_equals_decode,
    contract.check_no_new_variables,
    contract.check_region_padding,
    contract.check_images_apart,
    contract.check_rows_share_an_image,
]


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_a_model_with_positions_keeps_the_contract(check, ordered, batch):
    check(ordered, batch)


def test_a_gradient_reaches_the_positions(ordered, batch):
    contract.check_gradients(ordered, batch)


@pytest.mark.slow
def test_a_file_of_keras_keeps_the_positions(batch, tmp_path):
    model = make("updown", 1, region_positions="frames")
    contract.check_keras_file(model, {"region_positions": "frames"}, batch, tmp_path)


def test_a_checkpoint_without_positions_has_no_weight_of_them(ordered):
    models_of_both = (make("updown", 1), ordered)
    names = [list(model.checkpoint_items["weights"]) for model in models_of_both]
    added = [f"region_codes/project/{part}" for part in ("kernel", "bias")]
    assert names[1] == [*added, *names[0]]


@pytest.mark.parametrize("name", OTHERS)
def test_a_system_that_reads_the_mean_of_the_regions_has_no_positions(name):
    assert "region_positions" not in [
        option for option, _, _ in registry.options(models.MODELS[name])
    ]
    with pytest.raises(ValueError, match="region_positions must be none for .*Received: 'frames'"):
        make(name, 1, region_positions="frames")


def test_another_kind_of_positions_is_refused():
    with pytest.raises(ValueError, match="must be none or frames for UpDown. Received: 'words'"):
        make("updown", 1, region_positions="words")


def test_positions_are_added_to_the_features_that_the_model_reads(ordered, batch):
    codes = ordered.regions(batch) - batch["features"]
    np.testing.assert_allclose(codes[0], codes[1], atol=1e-5)
