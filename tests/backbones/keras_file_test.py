"""Weights that Keras wrote are read as Keras reads them."""

import h5py
import keras
import numpy as np
import pytest
from helpers import swins

from tfcap.backbones import keras_file, swin
from tfcap.backbones.backbone import Backbone
from tfcap.layers import precision


@pytest.fixture(scope="module", autouse=True)
def narrow():
    with pytest.MonkeyPatch.context() as patch:
        swins.add(patch)
        yield


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    folder = tmp_path_factory.mktemp("weights")
    path = folder / "swin.weights.h5"
    Backbone(swins.NAME, weights=swins.write(folder / "swin.pth")).network.save(str(path))
    return str(path)


@pytest.fixture
def by_keras(path):
    model = swin.build(swins.SIZE, 64)
    model.load_weights(path)
    return model.get_weights()


def same(model, expected):
    for weight, value in zip(model.weights, expected, strict=True):
        np.testing.assert_array_equal(weight, value, weight.path)


def test_the_weights_are_those_that_keras_reads(path, by_keras, monkeypatch):
    monkeypatch.delattr(keras.Model, "load_weights")  # which is used for other files
    same(Backbone(swins.NAME, weights=path).model, by_keras)


def test_weights_in_bfloat16_are_those_of_float32_rounded(path, by_keras):
    with precision.using(precision.of_frozen(precision.Products("bfloat16_products"))):
        model = Backbone(swins.NAME, weights=path).model
    dtypes = [weight.dtype for weight in model.weights]
    assert set(dtypes) == {"bfloat16", "float32"}
    same(model, [np.asarray(v, dtype) for v, dtype in zip(by_keras, dtypes, strict=True)])


def test_a_file_of_another_layout_is_left_to_keras(path, by_keras, tmp_path):
    """The weights of this one are float64."""
    other = str(tmp_path / "other.weights.h5")
    with h5py.File(path) as source, h5py.File(other, "w") as target:

        def copy(name, item):
            if isinstance(item, h5py.Dataset):
                target.create_dataset(name, data=item[()].astype("float64"))
            else:
                target.require_group(name).attrs.update(item.attrs)

        source.visititems(copy)
    with pytest.raises(ValueError, match="is float64"):
        keras_file.load(other, swin.build(swins.SIZE, 64))
    same(Backbone(swins.NAME, weights=other).model, by_keras)


def test_a_missing_weight_is_refused(path, tmp_path):
    other = str(tmp_path / "other.weights.h5")
    with h5py.File(path) as source, h5py.File(other, "w") as target:
        source.copy("layers", target)
        del target["layers/block_2/norm1"]
    with pytest.raises(ValueError, match="lacks 2 weights of swin"):
        keras_file.load(other, swin.build(swins.SIZE, 64))
    with pytest.raises(ValueError, match="do not fit swin_narrow"):
        Backbone(swins.NAME, weights=other)
