"""Captioners that come with the package: `tfcap.load("flickr8k")`.

A folder beside this file is a run directory, as `tfcap.export --format=run` writes it, with a card.
Its name is the name of the model, and `--model_dir` takes it.
"""

import os
import pathlib

CARD = "MODEL_CARD.md"
DEFAULT = "flickr8k"  # the model of `tfcap.caption` without --model_dir
_FOLDER = pathlib.Path(__file__).parent
# What a run directory, an export, or the directory of the versions of an export holds.
_MODEL = ("params.yaml", "saved_model.pb")


def names() -> list[str]:
    """Returns the names of the pretrained models."""
    return sorted(path.parent.name for path in _FOLDER.glob(f"*/{CARD}"))


def directory(name: str) -> str:
    """Returns the run directory of a pretrained model.

    Raises:
      ValueError: there is no model of this name.
    """
    if name not in names():
        raise ValueError(
            f"A pretrained model must be one of: {', '.join(names())}. Received: {name!r}."
        )
    return str(_FOLDER / name)


def place(model_dir: str | os.PathLike) -> str:
    """Returns the directory that a `--model_dir` means: itself, or that of a pretrained model.

    A directory of the same name that holds a run or an export goes first. Another directory of that
    name, such as a folder of photographs, does not count. `./NAME` always means the directory.
    """
    path = os.fspath(model_dir)
    if path not in names() or _holds_model(path):
        return path
    return directory(path)


def hint() -> str:
    """Returns the sentence that an error about a missing model ends with."""
    return f"Pretrained models: {', '.join(names())}."


def _holds_model(path: str) -> bool:
    """Whether a directory holds a run, an export, or versions of an export."""
    found = os.listdir(path) if os.path.isdir(path) else []
    return any(name in _MODEL or name.isdecimal() for name in found)
