"""An unknown key is answered with the whole key that is meant."""

import pytest

from tfcap import configs

SCHEDULE = "trainer.optimizer_config.schedule"


@pytest.mark.parametrize(
    ("override", "hint"),
    [
        ("learning_rate=0.0005", f"did you mean {SCHEDULE}.learning_rate?"),
        ("task.learning_rate=0.0005", f"did you mean {SCHEDULE}.learning_rate?"),
        ("lerning_rate=0.0005", f"did you mean {SCHEDULE}.learning_rate?"),
        ("name=adam", f"did you mean trainer.optimizer_config.name or {SCHEDULE}.name?"),
        ("width=8", "did you mean task.model.xtransformer.width?"),
        ("xtransformer.width=8", "did you mean task.model.xtransformer?"),
        ("task.max_lenght=3", "did you mean task.max_length?"),
        ("task.model.xtransformer.zzz=1", "known: width, heads"),
        ("zzz=1", "known: task, trainer, runtime"),
    ],
)
def test_an_unknown_key_names_the_whole_key(override, hint):
    with pytest.raises(ValueError, match="there is no key") as caught:
        configs.resolve("xtransformer", override=override)
    assert hint in str(caught.value)


def test_a_key_that_only_other_models_have_is_not_suggested():
    with pytest.raises(ValueError, match="there is no key variant .*; known: task, trainer"):
        configs.resolve("xtransformer", override="variant=base")
    with pytest.raises(ValueError, match="did you mean task.model.mrnn.variant"):
        configs.resolve("mrnn", override="variant=base")


def test_a_group_must_be_given_as_a_group():
    with pytest.raises(ValueError, match="trainer must be a group of keys. Received: 3.*Write tra"):
        configs.resolve("xtransformer", override="trainer=3")
