"""The options of a system: arguments of its constructor, and those that it shares."""

import pytest

from tfcap import models
from tfcap.models import captioner

SHARING = [name for name, cls in models.MODELS.items() if cls.defaults]

SHARED = ("region_positions", "standardize")  # of every system that reads regions in order


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


def test_a_subclass_has_its_own_options_and_not_the_defaults_of_its_base():
    class Mine(models.MODELS["att2in"]):
        def __init__(self, *sizes: int, width: int = 256, **kwargs):
            super().__init__(*sizes, width=width, **kwargs)

    options = [(one.name, one.default) for one in captioner.options_of(Mine)]
    assert [option for option in options if option[0] not in SHARED] == [("width", 256)]
