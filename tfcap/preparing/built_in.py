"""Writes the files of a built-in data set: its pictures or clips, and its caption file."""

import os
import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

from tfcap import files
from tfcap.files import read_json, replacing, write_json


class Drawn(NamedTuple):
    """One picture or clip of a built-in data set.

    Attributes:
      split: "train", "val" or "test".
      file: name of its file.
      save: writes the file to a path.
      captions: its captions.
      more: further entries of its object in the caption file.
    """

    split: str
    file: str
    save: Callable[[str], None]
    captions: Sequence[str]
    more: dict[str, Any]


def write(
    path: str,
    folder: str,
    settings: dict[str, Any],
    drawn: Iterable[Drawn],
    overwrite: bool,
) -> str:
    """Writes the files of `drawn` and, last, the caption file in Karpathy's layout.

    A directory that has the same data set already is left as it is.

    Args:
      path: the caption file, `dataset_NAME.json`.
      folder: name of the folder beside it that gets the other files.
      settings: what the content depends on: `train`, `val` and `test`, the numbers of files, and
        others.
      drawn: the pictures or clips; read only if they are written.
      overwrite: whether to replace a data set of other settings.

    Returns:
      `path`.
    """
    directory, file = os.path.split(path)
    name = os.path.splitext(file)[0].removeprefix("dataset_")
    if settings["train"] < 1 or settings["val"] < 0 or settings["test"] < 0:
        raise ValueError(f"{name} needs a training image, and no number of images may be negative.")
    before = _settings_of(path)
    if before == settings:
        return path
    if before is not None and not overwrite:
        raise ValueError(
            f"{directory} has {name} with other settings: {before}. Choose another directory, or "
            "replace them with --overwrite."
        )
    files.make_directory(directory)
    with files.lock(directory, name, "choose another directory"):
        if _settings_of(path) == settings:  # another process has drawn them meanwhile
            return path
        files.remove(path)
        _draw(path, os.path.join(directory, folder), drawn, {"dataset": name, "settings": settings})
    return path


def _draw(path: str, place: str, drawn: Iterable[Drawn], head: dict) -> None:
    """Writes the pictures into `place`, and then the caption file `path`."""
    files.make_directory(place)
    for old in files.names(place):
        if _OWN_FILE.fullmatch(old):  # other files stay
            files.remove(os.path.join(place, old))
    images: list[dict] = []
    for one in drawn:
        with replacing(os.path.join(place, one.file)) as temporary:
            one.save(temporary)
        images.append(_entry(len(images), one))
    write_json(path, {**head, "images": images})


_OWN_FILE = re.compile(r"(\.tmp-\d+-([0-9a-f]+-)?)?(train|val|test)_\d{6}\.(png|gif)")


def _entry(imgid: int, one: Drawn) -> dict:
    return {
        "imgid": imgid,
        "filename": one.file,
        "split": one.split,
        "sentences": [
            {
                "raw": raw,
                "tokens": re.findall(r"\w+", raw.lower()),
                "imgid": imgid,
                "sentid": imgid * len(one.captions) + number,
            }
            for number, raw in enumerate(one.captions)
        ],
        **one.more,
    }


def _settings_of(path: str) -> dict | None:
    try:
        return read_json(path, "")["settings"]
    except (ValueError, KeyError, TypeError):
        return None
