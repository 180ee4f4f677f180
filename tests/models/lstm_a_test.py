"""LSTM-A against its released code; dropout sites, and where attributes stand."""

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


def test_features_without_image_are_refused():
    with pytest.raises(ValueError, match="attributes must be in 1..5"):
        systems.start("lstm_a", width=12, attributes=6)
