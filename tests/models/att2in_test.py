"""Att2in and Att2all against their released code; dropout sites."""

import pytest
from helpers import golden, systems

from tfcap import models


@pytest.mark.parametrize("name", ["att2in", "att2all"])
def test_the_released_code_gives_the_same_numbers(name):
    golden.check(name, "self_critical")


def test_dropout_layers_and_rates():
    """The layers are those of `attention_lstm_test`."""
    names = ("word_dropout", "region_dropout", "head_dropout")
    rates = dict(zip(names, (0.1, 0.2, 0.3), strict=True))
    model = models.MODELS["att2in"](13, 6, 6, name="att2in", width=12, **rates)
    assert {name: getattr(model, name).rate for name in names} == rates
    assert len(model.checkpoint_items["seeds"]) == len(rates)


def test_another_place_for_the_attended_regions_is_refused():
    with pytest.raises(ValueError, match="attend must be one of in, all. Received: 'out'"):
        systems.make("att2in", attend="out")
