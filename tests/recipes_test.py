"""Recipes by name: found outside of a checkout, suggested after a typing error, listed."""

import os
import pathlib
import re

import pytest
from helpers import commands

from tfcap import configs, recipes, train
from tfcap.models import registry

ROOT = pathlib.Path(__file__).parents[1]


def test_the_recipes_are_those_of_the_checkout():
    folder = ROOT / "experiments"
    files = {path.relative_to(folder).as_posix() for path in folder.glob("*/*.yaml")}
    assert set(recipes.names()) == files and len(files) > 50
    assert recipes.directory() == folder


@pytest.mark.parametrize("prefix", ["", "experiments/"])
def test_a_recipe_is_found_by_name_from_any_directory(prefix, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    found = configs.resolve("xlan", [prefix + "flickr8k/xlan_xe.yaml"])
    assert found.task.model.xlan.width == 384 and found.task.data_dir == "data/flickr8k"


def test_a_file_comes_before_a_recipe_of_the_same_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    os.mkdir("flickr8k")
    pathlib.Path("flickr8k/xlan_xe.yaml").write_text("task: {max_length: 9}")
    assert configs.resolve("xlan", ["flickr8k/xlan_xe.yaml"]).task.max_length == 9


def test_the_package_comes_before_the_directory_beside_it(tmp_path, monkeypatch):
    for place in ("tfcap/experiments/mine", "experiments/other"):
        (tmp_path / place).mkdir(parents=True)
        (tmp_path / place / "a.yaml").write_text("# Mine.\n")
    monkeypatch.setattr(recipes, "_PACKAGE", tmp_path / "tfcap")
    assert recipes.names() == ["mine/a.yaml"] and recipes.header("mine/a.yaml") == "Mine."


@pytest.mark.parametrize(
    ("name", "near"),
    [
        ("xlan_xe.yaml", "coco/xlan_xe.yaml or flickr8k/xlan_xe.yaml"),
        ("flickr8k/xlan.yaml", "flickr8k/xlan_xe.yaml"),
        ("flikr8k/updown_xe.yaml", "flickr8k/updown_xe.yaml"),
        ("experiments/coco/xlan_row7_xe.yaml", "coco/xlan_row6_xe.yaml"),
    ],
)
def test_close_names_are_suggested(name, near):
    with pytest.raises(ValueError, match="the file does not exist") as error:
        configs.resolve("xlan", [name])
    assert near in str(error.value) and "--list" in str(error.value)


@pytest.mark.parametrize("name", ["nothing.yaml", "../setup.cfg", "coco", "experiments"])
def test_only_recipes_are_found(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match="no recipe has this name; `python -m tfcap.train --list`"):
        recipes.find(name, "--config_file")


def test_every_system_is_described():
    described = recipes.systems()
    assert set(described) == set(registry.MODELS)
    assert all(len(text) > 20 and text.endswith(".") for text in described.values())


def test_the_list_has_every_experiment_and_every_recipe(capsys):
    commands.run_here(train, "--list")
    printed = capsys.readouterr().out
    words = set(printed.split())
    assert set(configs.experiments.names()) <= words and set(recipes.names()) <= words
    headers = re.findall(r"^  \w+/\w+\.yaml +(\S.*)$", printed, re.M)
    assert len(headers) == len(recipes.names()) and all(line.endswith(".") for line in headers)
