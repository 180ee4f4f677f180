"""A captioner with its backbone: what it reads, what is trained, its names in checkpoints."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from helpers import seeds, swins
from helpers.sizes import CAPTIONS, LENGTH, VOCABULARY

from tfcap import models, private_api
from tfcap.backbones.backbone import Backbone
from tfcap.layers import precision
from tfcap.models.end_to_end import EndToEnd
from tfcap.runs.checkpoints import restore_weights

SIZE, REGIONS, WIDTH = 32, 4, 128


def captioner(seed=3):
    seeds.set_seed(seed)
    return models.build("attention_lstm", VOCABULARY, LENGTH, WIDTH, width=8, attention_width=4)


def whole(seed=3, **options):
    return EndToEnd(captioner(seed), Backbone("small_cnn", image_size=SIZE), **options)


@pytest.fixture(scope="module")
def model():
    return whole()


@pytest.fixture(scope="module")
def batch():
    rng = np.random.default_rng(5)
    tokens = rng.integers(2, VOCABULARY, (2, CAPTIONS, LENGTH)).astype(np.int32)
    tokens[..., 0] = 1
    return {
        "pictures": tf.constant(rng.uniform(0, 255, (2, SIZE, SIZE, 3)), tf.float32),
        "mask": tf.ones([2, REGIONS], tf.bool),
        "tokens": tf.constant(tokens),
    }


def test_it_captions_the_features_of_its_backbone(model, batch):
    features = model.backbone.extract(batch["pictures"])
    expected = model.on_features()({**batch, "features": features})
    np.testing.assert_array_equal(model(batch), expected)
    assert model.on_features() is model.captioner and model.captioner.backbone is None
    # A backbone that is not trained rounds its features as the records do.
    rounded = Backbone("small_cnn", image_size=SIZE).extract(batch["pictures"])
    np.testing.assert_array_equal(tf.cast(tf.cast(features, tf.float16), tf.float32), rounded)
    assert np.abs(features - rounded).max() > 0


def test_a_phase_of_images_starts_from_one_of_sentences(tmp_path):
    """The run of sentences has neither the weights of images nor those of the backbone."""
    sizes = dict(width=8, attention_width=4, dictionary=5)
    sentences = models.build("sgae", VOCABULARY, LENGTH, WIDTH + 6, phase="sentence", **sizes)
    images = models.build("sgae", VOCABULARY, LENGTH, WIDTH, **sizes)
    model = EndToEnd(images, Backbone("small_cnn", image_size=SIZE))
    path = tf.train.Checkpoint(**sentences.checkpoint_items).write(str(tmp_path / "ckpt"))
    restore_weights(model, path, start=True)
    np.testing.assert_array_equal(images.dictionary.vectors, sentences.dictionary.vectors)


def test_further_regions_are_cut_off(model, batch):
    short = {**batch, "mask": batch["mask"][:, :3]}
    features = model.backbone.extract(batch["pictures"])[:, :3]
    expected = model.on_features()({**short, "features": features})
    np.testing.assert_array_equal(model(short), expected)


def test_gradients_reach_the_pixels_side_of_the_network(model, batch):
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(model(batch) ** 2)
    gradients = tape.gradient(loss, model.network.trainable_variables)
    assert len(gradients) == 10 and all(np.abs(g).max() > 0 for g in gradients)
    assert len(model.trainable_variables) == 10 + len(model.captioner.trainable_variables)


def test_the_captioners_weights_keep_their_names(model):
    items, own = model.checkpoint_items, model.captioner.checkpoint_items
    assert own["weights"].items() <= items["weights"].items()
    assert items["seeds"].keys() == own["seeds"].keys()
    added = items["weights"].keys() - own["weights"].keys()
    assert {"backbone/0/kernel", "backbone/9/bias"} < added and len(added) == 10
    assert len(items["weights"]) == len(model.trainable_variables)
    assert model.vocabulary_axes == model.captioner.vocabulary_axes


def test_a_checkpoint_without_a_backbone_is_only_a_start(tmp_path):
    path, model = str(tmp_path / "ckpt-1"), whole(seed=4)
    tf.train.Checkpoint(weights=captioner(5).checkpoint_items["weights"]).write(path)
    with pytest.raises(ValueError, match="backbone/0/kernel"):
        restore_weights(model, path)
    restore_weights(model, path, start=True)
    for name, weight in captioner(5).checkpoint_items["weights"].items():
        np.testing.assert_array_equal(model.checkpoint_items["weights"][name], weight, name)


def test_mixed_precision_reaches_the_network(batch):
    with precision.using("mixed_bfloat16"):
        model = whole()
        logits = model(batch)
    layer = model.network.layers[-1]
    assert (layer.compute_dtype, layer.variable_dtype) == ("bfloat16", "float32")
    expected = whole()(batch)
    assert 0 < np.abs(logits - expected).max() < 0.1
    assert model.backbone.features(batch["pictures"]).dtype == tf.float32


def test_a_swin_that_is_trained_on_a_processor_stays_float32(tmp_path, monkeypatch):
    swins.add(monkeypatch)
    with precision.using(precision.policy("bfloat16", accelerated=False)):
        backbone = Backbone(swins.NAME, weights=swins.write(tmp_path / "swin.pth"))
        model = EndToEnd(captioner(), backbone)
    policies = {layer.dtype_policy.name for layer in private_api.all_layers(model.network)}
    assert policies == {"float32"}
    assert "bfloat16_products" in {layer.dtype_policy.name for layer in model.captioner.layers}


def test_batch_normalisation_keeps_its_statistics_and_trains_its_scales(batch):
    inputs = x = keras.Input([SIZE, SIZE, 5])
    for layer in (
        keras.layers.Conv2D(WIDTH, 16, 16),
        keras.layers.BatchNormalization(momentum=0.5),
        keras.layers.Dropout(0.5),
    ):
        x = layer(x)
    backbone = Backbone("small_cnn", image_size=SIZE)
    backbone.model = keras.Model(inputs, x)
    model = EndToEnd(captioner(), backbone)
    statistics = [v for v in model.network.variables if v.name.startswith("moving_")]
    before = [v.numpy() for v in statistics]
    with tf.GradientTape() as tape:
        features = model.backbone.features(batch["pictures"])
        loss = tf.reduce_sum(model.encode(batch, training=True)["regions"] ** 2)
    trained = model.network.trainable_variables
    assert [v.name for v in trained] == ["kernel", "bias", "gamma", "beta"]
    assert all(np.abs(gradient).max() > 0 for gradient in tape.gradient(loss, trained))
    for old, new in zip(before, statistics, strict=True):
        np.testing.assert_array_equal(old, new)
    np.testing.assert_array_equal(features, model.backbone.extract(batch["pictures"]))
    assert "backbone/6/seed_generator_state" in model.checkpoint_items["seeds"]


def test_a_swin_has_drop_path_only_while_it_is_trained(tmp_path, monkeypatch):
    """Its generators are saved, so that a resumed run draws the same numbers."""
    swins.add(monkeypatch)
    file = swins.write(tmp_path / "swin.pth")
    pictures = tf.constant(swins.arrays_of()["in/pixels"], tf.float32)
    inputs = {"pictures": pictures, "mask": tf.ones((3, 16), tf.bool)}
    sizes = dict(width=8, attention_width=4, word_dropout=0.0, region_dropout=0.0)
    seeds.set_seed(3)
    reader = models.build("attention_lstm", VOCABULARY, LENGTH, 32, **sizes)
    trained, frozen = (
        EndToEnd(reader, Backbone(swins.NAME, weights=file), trainable=trainable)
        for trainable in (True, False)
    )

    def regions(model, training):
        return model.encode(inputs, training)["regions"]

    quiet = regions(trained, False)
    for model, training in ((trained, False), (frozen, False), (frozen, True)):
        np.testing.assert_array_equal(regions(model, training), quiet)
    states = trained.checkpoint_items["seeds"]
    before = {name: state.numpy() for name, state in states.items()}
    assert sum(name.startswith("backbone/") for name in states) == 12  # the first block has none
    first = regions(trained, True)
    assert np.abs(first - quiet).max() > 0.01 and np.abs(regions(trained, True) - first).max() > 0
    for name, state in states.items():
        state.assign(before[name])
    np.testing.assert_array_equal(regions(trained, True), first)
