"""Captioners that come with the package: `tfcap.load("flickr8k")`.

Each directory beside this file is a run, as `tfcap.export --format=run` writes it, with a model
card. The name of the directory is the name of the model, and `--model_dir` takes this name.
"""

import os
import pathlib

from tfcap.pretrained import hub

CARD = "MODEL_CARD.md"
DEFAULT = "flickr8k"  # the model of `tfcap.load()`, and of caption and demo without --model_dir
_DIRECTORY = pathlib.Path(__file__).parent
# What a run directory, an export, or the directory of the versions of an export holds.
_MODEL = ("params.yaml", "saved_model.pb", "captioner.json")


def names() -> list[str]:
    """Returns the names of the captioners that come with the package, sorted."""
    return sorted(path.parent.name for path in _DIRECTORY.glob(f"*/{CARD}"))


def packaged_directory(name: str) -> str:
    """Returns the run directory of a captioner that comes with the package.

    Args:
      name: one of `names()`.

    Raises:
      ValueError: there is no captioner of this name.
    """
    if name not in names():
        raise ValueError(f"There is no pretrained model {name!r}. {hint()}")
    return str(_DIRECTORY / name)


def directory_of(name: str | os.PathLike) -> str:
    """Returns the directory of a model that a user names.

    The working directory may contain a directory that has the same name as a pretrained model. If
    it holds a run or an export, the result is this directory; otherwise it is the directory of the
    pretrained model. `./NAME` always means the directory in the working directory. Other paths are
    returned whether they exist or not.

    Args:
      name: a directory, the name of a pretrained model, or `hf://OWNER/NAME`, a run on the Hugging
        Face Hub, which is downloaded.

    Raises:
      ValueError: a run on the Hugging Face Hub cannot be used, see `hub.download`.
    """
    path = os.path.expanduser(name)
    if path.startswith(hub.PREFIX):
        return hub.download(path)
    if path not in names() or _holds_model(path):
        return path
    return packaged_directory(path)


def is_packaged(directory: str | os.PathLike) -> bool:
    """True for the run directory of a captioner that comes with the package."""
    return pathlib.Path(directory).resolve().parent == _DIRECTORY.resolve()


def shown(path: str) -> str:
    """Returns the path of a model as messages show it.

    A path inside the directory of a pretrained model becomes the name of the model. Other paths do
    not change.

    Args:
      path: path of a file in the directory of a model, such as a checkpoint.
    """
    directory = pathlib.Path(path).parent
    return directory.name if is_packaged(directory) else path


def hint() -> str:
    """Returns a sentence with the names of the pretrained models, for errors about a model."""
    return f"Pretrained models: {', '.join(names())}."


def _holds_model(path: str) -> bool:
    """True if a directory holds a run, an export, or versions of an export."""
    inside = os.listdir(path) if os.path.isdir(path) else []
    return any(name in _MODEL or name.isdecimal() for name in inside)
