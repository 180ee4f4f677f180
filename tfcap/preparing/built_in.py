"""Draws and writes a built-in data set: its pictures or clips, and its caption file."""

import os
import random
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from tfcap import files
from tfcap.files import read_json, replacing, write_json


class Drawn(NamedTuple):
    """One picture or clip of a built-in data set.

    Attributes:
      split: "train", "val" or "test".
      file: name of the picture or clip file.
      save: writes the file to a path.
      captions: the captions.
      more: further keys for the caption file.
    """

    split: str
    file: str
    save: Callable[[str], None]
    captions: Sequence[str]
    more: dict[str, Any]


def different(
    draw: Callable[[random.Random], Any], counts: Mapping[str, int], rng: random.Random
) -> dict[str, list[Any]]:
    """Draws the pictures or clips of each split; all are different.

    `counts` is split -> number. The drawings of `val` and `test` do not depend on the number for
    `train`.
    """
    seen = set()
    splits: dict[str, list[Any]] = {}
    for split in ("test", "val", "train"):
        splits[split] = []
        while len(splits[split]) < counts[split]:
            drawing = draw(rng)
            if drawing not in seen:
                seen.add(drawing)
                splits[split].append(drawing)
    return splits


def write(
    path: str,
    folder: str,
    settings: dict[str, Any],
    drawn: Iterable[Drawn],
    overwrite: bool,
) -> str:
    """Writes the files of `drawn` and, last, the caption file `path` in Karpathy's layout.

    The files go into `folder` beside `path`. `settings` determine their content; a directory that
    was written with the same settings is not changed.
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
        inside = os.path.join(directory, folder)
        files.make_directory(inside)
        for old in files.names(inside):
            if _OWN_FILE.fullmatch(old):  # other files stay
                files.remove(os.path.join(inside, old))
        images: list[dict] = []
        for drawing in drawn:
            with replacing(os.path.join(inside, drawing.file)) as temporary:
                drawing.save(temporary)
            images.append(_entry(len(images), drawing))
        write_json(path, {"dataset": name, "settings": settings, "images": images})
    return path


_OWN_FILE = re.compile(r"(\.tmp-\d+-([0-9a-f]+-)?)?(train|val|test)_\d{6}\.(png|gif)")


def _entry(imgid: int, drawing: Drawn) -> dict:
    sentences = [
        {
            "raw": raw,
            "tokens": re.findall(r"\w+", raw.lower()),
            "imgid": imgid,
            "sentid": imgid * len(drawing.captions) + number,
        }
        for number, raw in enumerate(drawing.captions)
    ]
    entry = {"imgid": imgid, "filename": drawing.file, "split": drawing.split}
    return {**entry, "sentences": sentences, **drawing.more}


def _settings_of(path: str) -> dict | None:
    try:
        return read_json(path, "")["settings"]
    except (ValueError, KeyError, TypeError):
        return None
