"""The options of a system: arguments of its constructor, and those that it shares."""

import pytest

from tfcap import models
from tfcap.models import captioner

SHARING = [name for name, cls in models.MODELS.items() if cls.defaults]


@pytest.mark.parametrize("name", SHARING)
def test_defaults_are_options_and_reach_the_base_class(name):
    cls = models.MODELS[name]
    options = {option.name: option.default for option in captioner.options_of(cls)}
    assert options.items() >= cls.defaults.items()
    for changed in ({}, {"width": 64, "word_dropout": 0.25}):
        model = cls(20, 5, 1500, **changed)
        expected = options | changed
        assert model.width == expected["width"]
        assert model.word_dropout.rate == expected["word_dropout"]
        assert model.get_config().items() >= changed.items()


def test_a_default_that_no_base_class_has_is_an_error():
    wrong = type("Wrong", (models.MODELS["att2in"],), {"defaults": {"depth": 3}})
    with pytest.raises(
        TypeError, match="Wrong: `defaults` has the option `depth`, but the base class"
    ):
        captioner.options_of(wrong)
