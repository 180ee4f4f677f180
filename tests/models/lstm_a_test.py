"""LSTM-A against its released code; dropout sites, and where attributes stand."""

import numpy as np
import pytest
from helpers import golden, systems

SIZES = dict(width=12, attributes=2)
SITES = {
    "word_dropout": ("word_dropout", 0.3),
    "region_dropout": ("region_dropout", 0.3),
    "attribute_dropout": ("attribute_dropout", 0.3),
    "head_dropout": ("head_dropout", 0.5),
}


def test_the_released_code_gives_the_same_numbers():
    golden.check("lstm_a", "xmodaler")


def test_dropout_layers_and_rates():
    systems.check_dropout("lstm_a", SITES, **SIZES)


@pytest.mark.parametrize("attributes", [0, 6])
def test_features_without_image_or_attributes_are_refused(attributes):
    with pytest.raises(ValueError, match=rf"width of the features \(6\)\. Received: {attributes}"):
        systems.start("lstm_a", width=12, attributes=attributes)


def test_layers_of_another_system_are_not_left():
    """The map of the image reads the features before the attributes, and there is no other one."""
    w = systems.start("lstm_a", **SIZES)
    shapes = {name: value.shape for name, value in w.items() if name.endswith("embed/kernel")}
    assert shapes == {"region_embed/kernel": (4, 12), "attribute_embed/kernel": (2, 12)}
    assert np.abs(w["region_embed/kernel"]).max() <= 0.5
