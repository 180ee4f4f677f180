"""AoANet against its released code; its start and dropout sites."""

import numpy as np
from helpers import golden, systems

SIZES = dict(width=16, heads=2, refiner_layers=1)
SITES = {
    "word_dropout": ("word_dropout", 0.5),
    "region_dropout": ("region_dropout", 0.5),
    "refiner/0/self_att/weight_dropout": ("weight_dropout", 0.1),
    "refiner/0/self_att/aoa_dropout": ("aoa_dropout", 0.3),
    "refiner/0/dropout": ("block_dropout", 0.1),
    "attention/weight_dropout": ("weight_dropout", 0.1),
    "context_dropout": ("context_dropout", 0.5),
    "head_dropout": ("head_dropout", 0.5),
}


def test_the_released_code_gives_the_same_numbers():
    golden.check("aoanet", "aoanet", heads=2)


def test_layers_start_as_copies_of_the_first():
    """The released code copies one layer, and in it one map for query, key and value."""
    sizes = SIZES | dict(refiner_layers=2)
    w = systems.start("aoanet", **sizes)
    first = w["refiner/0/self_att/query/kernel"]
    for layer in (0, 1):
        for name in ("query", "key", "value"):
            np.testing.assert_array_equal(w[f"refiner/{layer}/self_att/{name}/kernel"], first)
    aoa = [w[f"refiner/{layer}/self_att/aoa/kernel"] for layer in (0, 1)]
    np.testing.assert_array_equal(*aoa)
    assert np.abs(w["attention/query/kernel"] - w["attention/key/kernel"]).max() > 0.1


def test_dropout_layers_and_rates():
    systems.check_dropout("aoanet", SITES, **SIZES)
