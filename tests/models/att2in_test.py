"""Att2in and Att2all against their released code; dropout sites."""

import pytest
from helpers import golden, systems

SITES = {
    "word_dropout": ("word_dropout", 0.5),
    "region_dropout": ("region_dropout", 0.5),
    "head_dropout": ("head_dropout", 0.5),
}


@pytest.mark.parametrize("name", ["att2in", "att2all"])
def test_the_released_code_gives_the_same_numbers(name):
    golden.check(name, "self_critical")


def test_dropout_layers_and_rates():
    systems.check_dropout("att2in", SITES, width=12, attention_width=7)


def test_another_place_for_the_attended_regions_is_refused():
    with pytest.raises(ValueError, match="attend must be one of in, all. Received: 'out'"):
        systems.make("att2in", attend="out")
