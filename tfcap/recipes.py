"""Finds recipes by name, and lists experiments and recipes with a description of each.

A recipe is a YAML file of `experiments/`. This directory lies beside the package in a checkout, and
inside the package if it is installed. This module does not load TensorFlow, so that the list is
printed at once.
"""

import ast
import difflib
import os
import pathlib

_PACKAGE = pathlib.Path(__file__).parent
_FOLDER = "experiments"
_VIDEO = "The X-Transformer on the built-in clips; it knows the order of frames."
_FINETUNE = "The packaged captioner, trained further on photographs of your own."


def directory() -> pathlib.Path:
    """Returns the directory of the recipes."""
    inside = _PACKAGE / _FOLDER
    return inside if inside.is_dir() else _PACKAGE.parent / _FOLDER


def names() -> list[str]:
    """Returns the sorted names of all recipes, such as `flickr8k/xlan_xe.yaml`."""
    folder = directory()
    return sorted(path.relative_to(folder).as_posix() for path in folder.glob("*/*.yaml"))


def find(source: str, flag: str) -> str:
    """Returns the path of a YAML file, or of the recipe with this name if there is no such file.

    Args:
      source: the path or the name; `experiments/` may stand before the name.
      flag: the flag that gave it, for the error.

    Raises:
      ValueError: there is neither a file nor a recipe.
    """
    if os.path.isfile(path := os.path.expanduser(source)):
        return path
    name, known = source.removeprefix(f"{_FOLDER}/"), names()
    if name in known:
        return str(directory() / name)
    same_file = [recipe for recipe in known if recipe.endswith(f"/{name}")]
    near = same_file or difflib.get_close_matches(name, known, 3, 0.8)
    hint = f"did you mean {' or '.join(near)}? " if near else ""
    raise ValueError(
        f"{flag} {source}: the file does not exist, and no recipe has this name; {hint}"
        "`python -m tfcap.train --list` lists the recipes."
    )


def header(name: str) -> str:
    """Returns the first line of a recipe, which says what it is."""
    with open(directory() / name, encoding="utf-8") as file:
        return file.readline().lstrip("#").strip()


def systems() -> dict[str, str]:
    """Returns the first line of the description of every registered system, by its name.

    It is read from the sources of `tfcap.models`, because importing them loads TensorFlow.
    """
    descriptions = {}
    for path in sorted((_PACKAGE / "models").glob("*.py")):
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if not isinstance(node, ast.ClassDef):
                continue
            for decorator in node.decorator_list:
                if isinstance(decorator, ast.Call) and ast.unparse(decorator.func) == "register":
                    name = ast.literal_eval(decorator.args[0])
                    descriptions[name] = (ast.get_docstring(node) or "").partition("\n")[0]
    return dict(sorted(descriptions.items()))


def listing() -> str:
    """Returns the text that `tfcap.train --list` prints."""
    described, recipes = systems() | {"xtransformer_video": _VIDEO}, names()
    lines = [
        "Experiments, for --experiment. Each trains on the built-in shapes. NAME_scst continues",
        "from the result of NAME with self-critical training.",
    ]
    width = 2 + max(len(name) for name in described)
    for name, text in described.items():
        lines += [f"  {name:{width}}{text}", f"  {name}_scst"]
    lines.append(f"  {'finetune':{width}}{_FINETUNE}")
    lines += [
        "",
        "Recipes, for --config_file. The head of the file has the command and the scores.",
    ]
    width = 2 + max(map(len, recipes), default=0)
    lines += [f"  {name:{width}}{header(name)}" for name in recipes]
    return "\n".join([*lines, "", f"The recipes are in {directory()}"])
