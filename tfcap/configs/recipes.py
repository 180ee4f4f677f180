"""Finds recipes by name, and lists experiments and recipes with a description of each.

A recipe is a YAML file of `experiments/`. This directory lies beside the package in a checkout, and
inside the package if it is installed.
"""

import difflib
import os
import pathlib

_PACKAGE = pathlib.Path(__file__).parents[1]
_DIRECTORY = "experiments"
_VIDEO = "The X-Transformer on the built-in clips; it knows the order of frames."
_FINETUNE = "The packaged captioner, trained further on photographs of your own."


def directory() -> pathlib.Path:
    """Returns the directory that holds the recipes, which are YAML files."""
    inside = _PACKAGE / _DIRECTORY
    return inside if inside.is_dir() else _PACKAGE.parent / _DIRECTORY


def names() -> list[str]:
    """Returns the names of all recipes, sorted, such as `coco/xlan_xe.yaml`."""
    root = directory()
    return sorted(path.relative_to(root).as_posix() for path in root.glob("*/*.yaml"))


def find(source: str, argument: str) -> str:
    """Returns the path of a YAML file, which is given by its path or as the name of a recipe.

    Args:
      source: the path, or the name of a recipe with or without `experiments/` before it.
      argument: the name of the argument whose value `source` is, for error messages.

    Raises:
      ValueError: there is no such file or recipe.
    """
    if os.path.isfile(path := os.path.expanduser(source)):
        return path
    name = source.removeprefix(f"{_DIRECTORY}/")
    recipes = names()
    if name in recipes:
        return str(directory() / name)
    same_file = [recipe for recipe in recipes if recipe.endswith(f"/{name}")]
    near = same_file or difflib.get_close_matches(name, recipes, 3, 0.8)
    hint = f"Did you mean {' or '.join(near)}? " if near else ""
    raise ValueError(
        f"{argument} {source}: the file does not exist, and no recipe has this name. {hint}"
        "`list` of tfcap.train prints all recipes."
    )


def listing() -> str:
    """Returns the text that `tfcap.train --list` prints: all experiments and recipes."""
    from tfcap.models import MODELS

    described = {name: (cls.__doc__ or "").partition("\n")[0] for name, cls in MODELS.items()}
    described["xtransformer_video"] = _VIDEO
    recipes = {}
    for name in names():  # the first line of a recipe says what it is
        text = (directory() / name).read_text(encoding="utf-8")
        recipes[name] = text.partition("\n")[0].lstrip("#").strip()
    width = 2 + max(map(len, described))
    lines = [
        "Experiments, for --experiment. Each trains on the built-in shapes. NAME_scst continues",
        "from the result of NAME with self-critical training.",
        *(f"  {name:{width}}{text}\n  {name}_scst" for name, text in sorted(described.items())),
        f"  {'finetune':{width}}{_FINETUNE}\n  finetune_scst",
        "",
        "Recipes, for --config_file. The head of the file has the command and the scores.",
    ]
    width = 2 + max(map(len, recipes), default=0)
    lines += [f"  {name:{width}}{text}" for name, text in recipes.items()]
    return "\n".join([*lines, "", f"The recipes are in {directory()}"])
