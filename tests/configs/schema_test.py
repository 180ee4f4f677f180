"""The group of the systems, and the registered experiments."""

import ast
import dataclasses
import inspect
import pathlib

import pytest

from tfcap import configs, pretrained
from tfcap.configs import schema
from tfcap.models.captioner import SMALL, options_of
from tfcap.objectives import rewards

TFCAP = pathlib.Path(configs.__file__).parents[1]
# Names that a group of keys has in the code, after the last point.
HOLDERS = set("config options params ramp runtime task task_config trainer train_data".split())
HOLDERS |= {"schedule", "optimizer_config", "self_critical", "backbone", "teacher"}


def test_systems_are_the_keys_of_the_model_group_in_order():
    model = configs.Model()
    names = [field.name for field in dataclasses.fields(model)]
    assert names == ["type", *configs.SYSTEMS] and model.type == "xtransformer"
    for name, cls in configs.SYSTEMS.items():
        defaults = {key: value for key, _, value in options_of(cls)}
        assert configs.Model(type=name).get().as_dict() == defaults


@pytest.mark.parametrize("name", configs.SYSTEMS)
def test_the_registered_experiment_has_the_small_sizes(name):
    result = configs.resolve(name).task.model.get().as_dict()
    full = configs.Model(type=name).get().as_dict()
    changed = {key for key in result if result[key] != full[key]}
    rates = {key: value for key, value in result.items() if key.endswith("_dropout")}
    assert changed - set(rates) <= {*SMALL[name], "standardize"}
    assert set(rates.values()) == {0.1} and result.get("standardize", True)
    assert configs.resolve(f"{name}_scst").task.model.get().as_dict() == result


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


def keys_that_are_read():
    """The names that code outside of `configs` reads of a group of keys."""
    for path in TFCAP.rglob("*.py"):
        if path.parent.name == "configs":
            continue
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load):
                holder = node.value
                name = getattr(holder, "attr", getattr(holder, "id", ""))
                if name in HOLDERS:
                    yield node.attr
            # getattr(params.task, name) for name in ("train_data", "validation_data")
            elif isinstance(node, ast.For) and isinstance(node.iter, ast.Tuple):
                yield from (e.value for e in node.iter.elts if isinstance(e, ast.Constant))


@pytest.mark.parametrize(
    "group",
    [
        *(schema.Data, schema.ScheduledSampling, schema.SelfCritical, schema.Backbone),
        *(schema.Task, schema.Schedule, schema.Optimizer, schema.Trainer, schema.Runtime),
        schema.Teacher,
    ],
)
def test_every_key_is_read_somewhere(group):
    keys = {field.name for field in dataclasses.fields(group)}
    assert keys <= set(keys_that_are_read())


def test_the_reward_takes_every_key_of_its_group():
    keys = {field.name for field in dataclasses.fields(schema.Reward)}
    assert keys <= set(inspect.signature(rewards.Reward.__init__).parameters)


def test_the_documentation_says_what_every_key_means(monkeypatch):
    monkeypatch.syspath_prepend(TFCAP.parent / "docs")
    import tables

    for group in (schema.Task, schema.Data, schema.Trainer, schema.Runtime, schema.Optimizer):
        keys = [field.name for field in dataclasses.fields(group)]
        meanings = tables.described(inspect.getdoc(group), "Attributes")
        assert set(keys) - set(meanings) <= {"train_data", "validation_data", "decoding"}
