"""Backbones inside the graph."""

import io

import keras
import numpy as np
import pytest
import tensorflow as tf
from helpers import seeds
from PIL import Image

from tfcap.backbones.backbone import Backbone
from tfcap.files import file_sha256


def _encoded(array, form):
    buffer = io.BytesIO()
    Image.fromarray(array).save(buffer, form)
    return buffer.getvalue()


def _random_pixels(shape, seed=0):
    return np.random.default_rng(seed).integers(0, 256, shape, np.uint8)


@pytest.fixture(scope="module")
def weights(tmp_path_factory):
    """A file of random weights of VGG-16, which has few layers and is built quickly."""
    seeds.set_seed(1)
    path = tmp_path_factory.mktemp("weights") / "vgg.weights.h5"
    shape = (64, 64, 3)
    keras.applications.VGG16(weights=None, include_top=False, input_shape=shape).save_weights(path)
    return path


@pytest.fixture(scope="module")
def vgg(weights):
    return Backbone("vgg16", weights=weights, image_size=64)


def _bgr(pictures):
    """Pictures as Keras scales them for VGG-16."""
    return pictures[..., ::-1] - np.array([103.939, 116.779, 123.68], np.float32)


@pytest.fixture(scope="module")
def pixels():
    return Backbone("pixels")


def test_pixels_are_cell_averages_and_position(pixels):
    picture = _random_pixels([2, 96, 96, 3]).astype(np.float32)
    result = pixels.extract(tf.constant(picture)).numpy()
    assert result.shape == (2, 36, 194) == (2, pixels.num_regions, pixels.feature_dim)
    for row in range(6):
        for column in range(6):
            cell = picture[1, row * 16 : row * 16 + 16, column * 16 : column * 16 + 16]
            small = cell.reshape(8, 2, 8, 2, 3).mean((1, 3)) / 127.5 - 1
            place = [(column + 0.5) / 3 - 1, (row + 0.5) / 3 - 1]
            expected = np.concatenate([small.ravel(), place])
            np.testing.assert_allclose(result[1, row * 6 + column], expected, atol=1e-3)


@pytest.mark.slow
def test_network_equals_keras_and_is_rounded_to_half(vgg):
    picture = tf.constant(_random_pixels([3, 64, 64, 3]), tf.float32)
    result = vgg.extract(picture).numpy()
    expected = vgg.model(_bgr(picture.numpy()), training=False).numpy()
    assert result.shape == (3, 4, 512) and np.abs(expected).max() > 0
    np.testing.assert_array_equal(result, result.astype(np.float16))
    np.testing.assert_allclose(result, expected.reshape(3, 4, 512), rtol=1e-3, atol=1e-3)


@pytest.mark.slow
def test_bulk_extractor_gives_the_same_numbers(vgg, pixels):
    for backbone in (vgg, pixels):
        side = backbone.image_size
        picture = tf.constant(_random_pixels([5, side, side, 3]), tf.float32)
        bulk = backbone.bulk_extractor()
        np.testing.assert_allclose(bulk(picture), backbone.extract(picture), rtol=1e-3, atol=1e-6)
        np.testing.assert_allclose(bulk(picture[:2]), bulk(picture)[:2], rtol=1e-3, atol=1e-6)


def test_smaller_grid_averages_adaptively():
    backbone = Backbone("small_cnn", 4, image_size=112)
    picture = tf.constant(_random_pixels([1, 112, 112, 3]), tf.float32)
    whole = backbone.model(backbone.network.scale(picture), training=False).numpy()[0]
    assert whole.shape == (7, 7, 128)
    result = backbone.extract(picture).numpy()[0]
    cuts = [(0, 2), (1, 4), (3, 6), (5, 7)]
    for row, (top, bottom) in enumerate(cuts):
        for column, (left, right) in enumerate(cuts):
            mean = whole[top:bottom, left:right].mean((0, 1))
            np.testing.assert_allclose(result[row * 4 + column], mean, rtol=2e-3, atol=1e-5)
            box = np.array([left, top, right, bottom]) / 7
            np.testing.assert_allclose(backbone.boxes[row * 4 + column], box, rtol=1e-6)


@pytest.mark.slow
def test_mixed_precision_of_the_captioner_leaves_features_in_float32(weights, vgg):
    picture = tf.constant(_random_pixels([1, 64, 64, 3]), tf.float32)
    keras.config.set_dtype_policy("mixed_bfloat16")
    try:
        backbone = Backbone("vgg16", weights=weights, image_size=64)
        assert keras.config.dtype_policy().name == "mixed_bfloat16"
        result = backbone.extract(picture)
    finally:
        keras.config.set_dtype_policy("float32")
    np.testing.assert_array_equal(result, vgg.extract(picture))


@pytest.fixture(scope="module")
def small():
    return Backbone("small_cnn", image_size=64)


@pytest.fixture(scope="module")
def ten():
    return Backbone("small_cnn", image_size=64, crops=10)


@pytest.mark.slow
def test_a_fingerprint_brings_the_backbone_back(vgg, tmp_path):
    path = tmp_path / "backbone.weights.h5"
    vgg.network.save(path)
    made_by = {"name": "vgg16", "grid": 2, "image_size": 64, "weights": path.name,
               "weights_sha256": file_sha256(path)}  # fmt: skip
    again = Backbone.from_fingerprint({"backbone": made_by}, tmp_path)
    picture = tf.constant(_random_pixels([1, 64, 64, 3]), tf.float32)
    np.testing.assert_array_equal(again.extract(picture), vgg.extract(picture))
    with pytest.raises(ValueError, match="from ready-made features"):
        Backbone.from_fingerprint({"backbone": None}, tmp_path)
    pixel = {"name": "pixels", "grid": 6, "image_size": 96, "weights": None, "weights_sha256": None}
    assert Backbone.from_fingerprint({"backbone": pixel}, tmp_path).feature_dim == 194


def _cut(picture, size):
    """Ten crops of an array [H, W, 3], as the papers describe them."""
    height, width, _ = picture.shape
    middle = (height - size) // 2, (width - size) // 2
    corners = [(0, 0), (0, width - size), (height - size, 0), (height - size, width - size), middle]
    crops = [picture[y : y + size, x : x + size] for y, x in corners]
    return np.stack(crops + [crop[:, ::-1] for crop in crops])


def test_ten_crops_are_cut_from_corners_and_middle_and_mirrored(ten):
    assert ten.decoded_shape == [10, 64, 64, 3]
    for shape in ([73, 73, 3], [73, 100, 3], [131, 73, 3]):  # the shorter side is right already
        picture = _random_pixels(shape)
        decoded = ten.decode(tf.constant(_encoded(picture, "PNG")))
        assert decoded.dtype == tf.float32
        np.testing.assert_array_equal(decoded, _cut(picture, 64))


@pytest.mark.slow
def test_the_vector_is_the_mean_of_ten(ten, small):
    pictures = [_random_pixels([73, 90, 3], i) for i in range(2)]
    decoded = tf.stack([ten.decode(tf.constant(_encoded(p, "PNG"))) for p in pictures])
    result = ten.extract(decoded).numpy()
    assert result.shape == (2, 1, 128) and (ten.num_regions, ten.grid) == (1, 1)
    np.testing.assert_array_equal(ten.boxes, [[0, 0, 1, 1]])
    for picture, vector in zip(pictures, result, strict=True):
        crops = small.network.scale(tf.constant(_cut(picture, 64), tf.float32))
        grids = small.model(crops, training=False).numpy()
        np.testing.assert_allclose(vector[0], grids.mean((0, 1, 2)), rtol=2e-3, atol=1e-6)
    np.testing.assert_allclose(ten.bulk_extractor()(decoded), result, rtol=1e-3, atol=1e-6)
    np.testing.assert_array_equal(ten.extract(decoded[1:]), result[1:])


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"name": "resnet999"}, "not 'resnet999'.* `features`"),
        ({"name": "alexnet", "weights": "imagenet"}, "imagenet` cannot be used for alexnet"),
        ({"name": "vgg16", "weights": "noise.h5", "image_size": 32}, "do not fit"),
        ({"name": "vgg16", "weights": "imagenet", "image_size": 100}, "multiple of 32"),
        ({"name": "small_cnn", "grid": 3, "vector": True}, "`grid` cannot be used with"),
        ({"name": "resnet50", "weights": "noise.pth", "image_size": 32}, "do not fit"),
        ({"name": "small_cnn", "grid": 9}, "`grid` of small_cnn must be from 1 to 6"),
        ({"name": "pixels", "weights": "imagenet"}, "has no weights"),
    ],
)
def test_what_cannot_be_a_backbone_is_refused(options, reason, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("noise.h5", "noise.pth"):
        (tmp_path / name).write_bytes(b"noise" * 100)
    with pytest.raises(ValueError, match=reason):
        Backbone(**options)
