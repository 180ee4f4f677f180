"""Att2in and Att2all against their released code; dropout sites."""

import pytest
from helpers import golden, systems


@pytest.mark.parametrize("name", ["att2in", "att2all"])
def test_the_released_code_gives_the_same_numbers(name):
    golden.check(name, "self_critical")


def test_dropout_layers_and_rates():
    """The layers are those of `attention_lstm_test`; its arguments go through two constructors."""
    names = ("word_dropout", "region_dropout", "head_dropout")
    sites = {name: (name, 0.5) for name in names}
    systems.check_dropout("att2in", sites, width=12, attention_width=7)
