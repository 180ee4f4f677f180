"""Recipes: found by name, listed, what they resolve to, and the scores in their headers."""

import functools
import json
import os
import pathlib
import re

import numpy as np
import pytest
import yaml
from helpers import commands

from docs import published
from tfcap import configs, decoding, models, train
from tfcap.configs import recipes
from tfcap.training import optim

NAMES = recipes.names()
SELF_CRITICAL = [name for name in NAMES if name.endswith("_scst.yaml")]
LAST_STAGE = "coco/expansionnet_v2_end_to_end_scst.yaml"
# Keys that a schedule does not read.
UNREAD = {"noam": ("decay_steps",), "constant": ("warmup_steps", "decay_steps")}
# The recipe of each published system that has all arguments as the class has them.
FULL = {name: path for name in models.MODELS if (path := f"coco/{name}_xe.yaml") in NAMES} | {
    "mrnn": "flickr30k/mrnn_xe.yaml",
    "mrnn_shared": "coco/mrnn_tensorflow_xe.yaml",
}
# A score in the text of a header. What was measured here has other words around it.
SCORE = re.compile(
    r"(?:B@\d|METEOR|ROUGE-L|CIDEr|SPICE|R@\d+|perplexity|hours|rank)(?: c\d+)? \d+(?:\.\d+)?"
)


@functools.cache
def header(name):
    """The comment at the top of a recipe: the text of each `# Name: text`, lines joined."""
    fields, field = {}, ""
    for line in (recipes.directory() / name).read_text(encoding="utf-8").splitlines():
        if not line.startswith("#"):
            break
        result = re.match(r"# ([A-Z][a-z]+(?: released)?): *(.*)", line)
        field = result[1] if result else field
        fields[field] = fields.get(field, "") + " " + (result[2] if result else line[1:].strip())
    return fields


@functools.cache
def command(name):
    """The flags of the training command of a recipe, with their values."""
    result: dict[str, list[str]] = {}
    text = header(name)["Command"].partition("python -m tfcap.train ")[2]
    for key, value in re.findall(r"--(\w+)[ =](\S+)", text):
        result.setdefault(key, []).append(value)
    return result


@functools.cache
def resolve(name):
    """The configuration that the command of a recipe trains with."""
    return configs.resolve(command(name)["experiment"][0], command(name)["config_file"])


def trained_by(checkpoint):
    """The recipes whose command writes `checkpoint` as its best one."""
    place = checkpoint.removesuffix("/best_ckpt")
    return [name for name in NAMES if command(name).get("model_dir") == [place]]


# ---- names --------------------------------------------------------------------------------------


@pytest.mark.parametrize("prefix", ["", "experiments/"])
def test_a_recipe_is_found_by_name_from_any_directory(prefix, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    result = configs.resolve("xlan", [prefix + "flickr8k/xlan_xe.yaml"])
    assert result.task.model.xlan.width == 384 and result.task.data_dir == "data/flickr8k"
    os.mkdir("flickr8k")  # a file comes before a recipe of the same name
    pathlib.Path("flickr8k/xlan_xe.yaml").write_text("task: {max_length: 9}")
    assert configs.resolve("xlan", ["flickr8k/xlan_xe.yaml"]).task.max_length == 9


def test_an_unknown_name_gets_close_ones():
    with pytest.raises(ValueError, match="flickr8k/updown_xe.yaml"):
        configs.resolve("xlan", ["flikr8k/updown_xe.yaml"])


def test_the_list_has_every_experiment_and_every_recipe(capsys):
    commands.run_here(train, "--list")
    printed = capsys.readouterr().out
    words = set(printed.split())
    assert set(configs.experiments.factories()) <= words and set(NAMES) <= words
    descriptions = re.findall(r"^  \w+/\w+\.yaml +(\S.*)$", printed, re.M)
    assert len(descriptions) == len(NAMES) and all(line.endswith(".") for line in descriptions)


# ---- values -------------------------------------------------------------------------------------


@functools.cache
def keys_of(path):
    """The dotted keys that a file sets."""

    def keys(content, prefix=""):
        for key, value in content.items():
            inside = isinstance(value, dict)
            yield from keys(value, f"{prefix}{key}.") if inside else [f"{prefix}{key}"]

    return frozenset(keys(yaml.safe_load(pathlib.Path(path).read_text("utf-8"))))


@pytest.mark.parametrize("name", NAMES)
def test_a_recipe_sets_every_value_that_the_small_experiment_changes(name):
    """No value for the built-in shapes, which no paper has, is left in a recipe."""
    params, flags = resolve(name), command(name)
    model = configs.Model(type=params.task.model.type)
    usual = configs.values(configs.Experiment(task=configs.Task(model=model)))
    small = configs.values(configs.resolve(flags["experiment"][0]))
    unread = UNREAD.get(params.trainer.optimizer_config.schedule.name, ())
    left = {key for key in small if key in usual and small[key] != usual[key]}
    left -= {key for path in flags["config_file"] for key in keys_of(commands.ROOT / path)}
    assert {key for key in left if key.rpartition(".")[2] not in unread} == set()


def test_recipes_start_from_the_data_and_weights_that_another_command_makes():
    texts = [header(name).get("Features", "") for name in NAMES]
    prepared = {
        path for text in texts for path in re.findall(r"tfcap\.prepare .*--out (\S+)", text)
    }
    positions = [command(name)["model_dir"][0] for name in NAMES]
    assert len(set(positions)) == len(NAMES)
    for name in NAMES:
        task, flags = resolve(name).task, command(name)
        assert flags["config_file"][-1] == f"experiments/{name}"
        assert name.endswith(f"_{task.objective}.yaml")
        assert flags["experiment"][0].removesuffix("_scst") == task.model.type
        assert task.data_dir in prepared, name
        start = task.init_checkpoint
        assert not start or len(set(trained_by(start)) - {name}) == 1, name


@pytest.mark.parametrize("system", FULL)
def test_defaults_of_a_system_are_the_sizes_of_its_paper(system):
    """The registered experiments are smaller."""
    model = resolve(FULL[system]).task.model
    assert model.get().as_dict() == configs.Model(type=system).get().as_dict()


@pytest.mark.parametrize("name", SELF_CRITICAL)
def test_self_critical_training_starts_from_cross_entropy_of_the_same_model_and_data(name):
    """Data and vocabulary are the same; the models differ only in dropout."""
    [start] = trained_by(resolve(name).task.init_checkpoint)
    if name == LAST_STAGE:  # the only one that goes on with self-critical training
        [start] = trained_by(resolve(start).task.init_checkpoint)
    new, old = resolve(name).task, resolve(start).task
    assert old.objective == "xe"
    for key in ("data_dir", "validation_data", "metrics"):
        assert getattr(new, key) == getattr(old, key), key
    assert new.train_data.max_regions == old.train_data.max_regions
    assert (new.model.type, new.max_length) == (old.model.type, old.max_length) or (
        "/expansionnet_" in name and (new.max_length, old.max_length) == (20, 53)
    )
    before = old.model.get().as_dict()
    differs = [key for key, value in new.model.get().as_dict().items() if value != before[key]]
    assert all(key.endswith("_dropout") for key in differs)


@pytest.mark.parametrize(
    ("name", "rates"),
    [
        ("xlan_xe", {1: 3.125e-8, 10000: 3.125e-4, 40000: 1.5625e-4}),
        ("aoanet_xe", {1: 2e-4, 33984: 2e-4, 33985: 1.6e-4, 283200: 2e-4 * 0.8**8}),
        ("sgae_xe", {1: 2.048e-4, 5660: 2.048e-4, 5661: 1.6384e-4}),
        ("expansionnet_xe", {9001: 2e-7, 10000: 2e-4, 23614: 2e-4, 23615: 1.6e-4}),
        ("mrnn_tensorflow_xe", {1: 1.0, 310000: 1.0, 310001: 0.85, 320001: 0.7225}),
        ("xlan_xmodaler_scst", {1: 1e-5, 56640: 1e-5, 56641: 8e-6, 198240: 5.12e-6}),
        ("expansionnet_v2_end_to_end_xe", {1: 3e-5, 11807: 3e-5, 11808: 1.65e-5}),
        ("expansionnet_v2_scst", {1: 1e-4, 2360: 1e-4, 2361: 8e-5, 21240: 1e-4 * 0.8**8}),
        ("expansionnet_v2_end_to_end_scst", {1: 2e-6, 2360: 2e-6}),
        ("expansionnet_scst", {1: 1e-4, 3540: 1e-4, 3541: 8e-5, 61950: 1e-4 * 0.8**17}),
        ("ort_xe", {1: 4.4194e-8, 10000: 4.4194e-4, 40000: 2.2097e-4}),
        ("ort_scst", {1: 5e-4 * 0.8**10, 33984: 5e-4 * 0.8**10, 33985: 5e-4 * 0.8**11}),
        ("m2_scst", {1: 5e-6, 339840: 5e-6}),
    ],
)
def test_learning_rates_by_step_are_the_published_ones(name, rates):
    """docs/systems.md, 6.5, 7.1, 7.3 and 7.4."""
    params = resolve(f"coco/{name}.yaml")
    width = params.task.model.get().as_dict()["width"]
    schedule = optim.LearningRate(params.trainer.optimizer_config.schedule, width)
    values = [float(schedule(step - 1)) for step in rates]
    np.testing.assert_allclose(values, list(rates.values()), rtol=1e-3)


@pytest.mark.slow
def test_models_searches_and_optimizers_accept_the_values_of_every_recipe():
    """Layers are made once each, at full width and without weights."""
    built = set()
    for name in NAMES:
        params = resolve(name)
        options = params.task.model.get().as_dict()
        options |= {key: min(options[key], 1) for key in options if key.endswith("_layers")}
        key = (params.task.model.type, params.task.max_length, json.dumps(options))
        if key not in built:
            # Odd: two vectors, a parent and 36 labels for HIP.
            models.MODELS[params.task.model.type](9488, params.task.max_length, 2209, **options)
            built.add(key)
        decoding.Options(**params.task.decoding.as_dict())
        config = params.trainer.optimizer_config
        optim.optimizer(config, optim.LearningRate(config.schedule, 64))
    assert len(built) > 20


# ---- published scores ---------------------------------------------------------------------------


@pytest.mark.parametrize("name", sorted({name for row in published.rows() for name in row.recipes}))
def test_a_header_has_all_scores_of_its_rows_and_no_other(name):
    expected = published.expected(name)
    text = header(f"{name}.yaml")["Expected"].strip()
    assert text.startswith(expected)
    assert not SCORE.findall(text.removeprefix(expected))
