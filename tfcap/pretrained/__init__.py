"""Captioners that come with the package: `tfcap.load("flickr8k")`.

Each folder beside this file is a run directory, as `tfcap.export --format=run` writes it, with a
model card. The name of the folder is the name of the model, and `--model_dir` takes this name.
"""

import os
import pathlib

from tfcap.pretrained import hub

CARD = "MODEL_CARD.md"
DEFAULT = "flickr8k"  # the model of `tfcap.load()`, and of caption and demo without --model_dir
_FOLDER = pathlib.Path(__file__).parent
# What a run directory, an export, or the directory of the versions of an export holds.
_MODEL = ("params.yaml", "saved_model.pb")


def names() -> list[str]:
    return sorted(path.parent.name for path in _FOLDER.glob(f"*/{CARD}"))


def directory(name: str) -> str:
    if name not in names():
        raise ValueError(f"There is no pretrained model {name!r}. {hint()}")
    return str(_FOLDER / name)


def place(model_dir: str | os.PathLike) -> str:
    """Returns the directory for a `--model_dir`; downloads a run of the Hugging Face Hub.

    `model_dir` is a directory, the name of a pretrained model, or `hf://OWNER/NAME`.

    If a directory with the name of a pretrained model holds a run or an export, that directory is
    used. Any other directory of this name, such as a folder of photographs, is ignored. `./NAME`
    always means the directory.
    """
    path = os.path.expanduser(model_dir)
    if path.startswith(hub.PREFIX):
        return hub.download(path)
    if path not in names() or _holds_model(path):
        return path
    return directory(path)


def shown(path: str) -> str:
    """Returns the name of the pretrained model for a path inside it; other paths do not change."""
    folder = pathlib.Path(path).parent
    return folder.name if folder.parent == _FOLDER else path


def hint() -> str:
    """Returns a sentence with the names of pretrained models, for errors about a missing model."""
    return f"Pretrained models: {', '.join(names())}."


def _holds_model(path: str) -> bool:
    """True if a directory holds a run, an export, or versions of an export."""
    found = os.listdir(path) if os.path.isdir(path) else []
    return any(name in _MODEL or name.isdecimal() for name in found)
