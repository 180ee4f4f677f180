"""GCN-LSTM against its released code; dropout sites, and labels of relations that do not count."""

import numpy as np
from helpers import golden, systems

from tfcap import models

SIZES = dict(width=12, attention_width=7, regions=3, labels=4)
SITES = {
    "word_dropout": ("word_dropout", 0.5),
    "region_dropout": ("region_dropout", 0.5),
    "attention/dropout": ("attention_dropout", 0.5),
    "input_dropout": ("input_dropout", 0.5),
    "head_dropout": ("head_dropout", 0.5),
}


def test_the_released_code_gives_the_same_numbers():
    golden.check("gcn_lstm", "xmodaler", regions=5)


def test_dropout_layers_and_rates():
    systems.check_dropout("gcn_lstm", SITES, **SIZES)


def test_relations_are_whole_numbers_between_visible_regions():
    """Four regions, one hidden, three columns; labels are cut to those that there are."""
    model = models.MODELS["gcn_lstm"](13, 6, 6, name="gcn_lstm", **SIZES)
    columns = np.array([[[1.0, 2.0, 3.0], [9.0, 0.0, 1.2], [-4.0, 1e9, 1.0], [3.0, 3.0, 3.0]]])
    found = model._relations(columns.astype("float32"), np.array([[True, True, False, True]]))
    expected = [[1, 2, 0, 0], [3, 0, 0, 0], [0, 0, 0, 0], [3, 3, 0, 0]]
    np.testing.assert_array_equal(found[0], expected)
