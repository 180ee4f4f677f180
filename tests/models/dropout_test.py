"""Where each system drops, by which option, and at which rate by default (docs/systems.md 2.5)."""

import json
import pathlib

import pytest
from helpers.sizes import FEATURES, LENGTH, VOCABULARY

from tfcap import models

# Of a case: `system`, `options` of its size, and `sites`, which has for the path of each Dropout
# layer the option that sets its rate, and the rate by default.
CASES = json.loads(pathlib.Path(__file__).parents[1].joinpath("goldens/dropout.json").read_text())


@pytest.mark.parametrize("name", CASES)
def test_dropout_layers_and_rates(name):
    system, options, sites = CASES[name].values()
    arguments = sorted({argument for argument, _ in sites.values()})
    rates = {argument: 0.01 * (i + 1) for i, argument in enumerate(arguments)}
    for values in ({}, rates):
        model = models.MODELS[system](
            VOCABULARY, LENGTH, FEATURES, name=system, **options, **values
        )
        result = {site: layer_at(model, site).rate for site in sites}
        assert result == {site: values.get(a, rate) for site, (a, rate) in sites.items()}
        seeds = {f"{site}/seed_generator_state" for site, rate in result.items() if rate}
        assert seeds == set(model.checkpoint_items["seeds"])


def layer_at(model, path):
    """The layer that the chain of attributes `path` leads to."""
    for key in path.split("/"):
        if isinstance(model, dict):
            model = model[key]
        else:
            model = model[int(key)] if key.isdigit() else getattr(model, key)
    return model
