"""The group of the systems, and the registered experiments."""

import dataclasses

import pytest

from tfcap import configs, pretrained
from tfcap.models.captioner import SMALL, options_of


def test_systems_are_the_keys_of_the_model_group_in_order():
    model = configs.Model()
    names = [field.name for field in dataclasses.fields(model)]
    assert names == ["type", *configs.SYSTEMS] and model.type == "xtransformer"
    for name, cls in configs.SYSTEMS.items():
        defaults = {key: value for key, _, value in options_of(cls)}
        assert configs.Model(type=name).get().as_dict() == defaults


@pytest.mark.parametrize("name", configs.SYSTEMS)
def test_the_registered_experiment_has_the_small_sizes(name):
    found = configs.resolve(name).task.model.get().as_dict()
    full = configs.Model(type=name).get().as_dict()
    changed = {key for key in found if found[key] != full[key]}
    rates = {key: value for key, value in found.items() if key.endswith("_dropout")}
    assert changed - set(rates) <= {*SMALL[name], "standardize"}
    assert set(rates.values()) == {0.1} and found.get("standardize", True)
    assert configs.resolve(f"{name}_scst").task.model.get().as_dict() == found


def test_fine_tuning_has_the_model_of_the_packaged_captioner():
    packaged = configs.load(f"{pretrained.packaged_directory(pretrained.DEFAULT)}/params.yaml").task
    task = configs.resolve("finetune").task
    for key in ("model", "decoding", "max_length"):
        assert task.as_dict()[key] == packaged.as_dict()[key]
    assert task.init_checkpoint == pretrained.DEFAULT and task.remap_vocab
    assert task.model.updown.width != configs.resolve("updown").task.model.updown.width
    second = configs.resolve("finetune_scst").task
    assert second.model.as_dict() == packaged.model.as_dict() and second.objective == "scst"
    assert second.init_checkpoint == "runs/finetune/best_ckpt" and not second.remap_vocab
