"""Draws and writes a built-in data set: its pictures or clips, and its caption file."""

import os
import random
import re
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from tfcap import files

# What writes a picture or clip to a path, its captions, and further keys for the caption file.
Rendered = tuple[Callable[[str], None], list[str], dict[str, Any]]


class BuiltIn(NamedTuple):
    """A built-in data set.

    Attributes:
      name: name of the data set.
      folder: directory of the pictures or clips, beside the caption file.
      ending: the end of their names.
      seed: a word that is hashed with the seed.
      counts: number of pictures or clips of train, val and test, in this order.
      draw: draws a scene or clip at random: something that can be compared and hashed.
      render: renders a scene or clip.
    """

    name: str
    folder: str
    ending: str
    seed: str
    counts: Mapping[str, int]
    draw: Callable[[random.Random], Any]
    render: Callable[[Any, random.Random], Rendered]

    @property
    def caption_file(self) -> str:
        return f"dataset_{self.name}.json"

    def different(self, counts: Mapping[str, int], seed: int) -> dict[str, list[Any]]:
        """Draws the scenes or clips of each split; all are different.

        The drawings of `val` and `test` do not depend on the number for `train`.
        """
        seen, rng = set(), random.Random(f"{self.seed} {seed}")
        splits: dict[str, list[Any]] = {}
        for split in ("test", "val", "train"):
            splits[split] = []
            while len(splits[split]) < counts[split]:
                drawing = self.draw(rng)
                if drawing not in seen:
                    seen.add(drawing)
                    splits[split].append(drawing)
        return splits

    def write(
        self,
        directory: str | os.PathLike,
        counts: Mapping[str, int] | None = None,
        seed: int = 1,
        overwrite: bool = False,
    ) -> str:
        """Writes the pictures or clips and, last, the caption file, whose path it returns.

        The file has Karpathy's layout. A directory that was written with the same settings is not
        changed. `counts` replaces some of the default counts.
        """
        counts = {**self.counts, **(counts or {})}
        settings = {**counts, "seed": seed, "version": 1}
        path = os.path.join(directory, self.caption_file)
        if counts["train"] < 1 or min(counts.values()) < 0:
            raise ValueError(
                f"{self.name} needs a training image, and no number of images may be negative."
            )
        before = _settings_of(path)
        if before == settings:  # without a lock: the directory may be read-only
            return path
        if before is not None and not overwrite:
            raise ValueError(
                f"{directory} has {self.name} with other settings: {before}. Choose another "
                "directory, or replace them with --overwrite."
            )
        files.make_directory(directory)
        with files.lock(directory, self.name, "choose another directory"):
            if _settings_of(path) == settings:  # another process has drawn them meanwhile
                return path
            files.remove(path)
            inside = os.path.join(directory, self.folder)
            files.make_directory(inside)
            for old in files.names(inside):
                if _OWN_FILE.fullmatch(old):  # other files stay
                    files.remove(os.path.join(inside, old))
            images: list[dict] = []
            for split, members in self.different(counts, seed).items():
                for number, drawing in enumerate(members):
                    rng = random.Random(f"{split} {number} {seed}")
                    save, captions, more = self.render(drawing, rng)
                    file = f"{split}_{number:06d}.{self.ending}"
                    with files.replacing(os.path.join(inside, file)) as temporary:
                        save(temporary)
                    entry = {"imgid": len(images), "filename": file, "split": split}
                    entry["sentences"] = _sentences(len(images), captions)
                    images.append(entry | more)
            files.write_json(path, {"dataset": self.name, "settings": settings, "images": images})
        return path


_OWN_FILE = re.compile(r"(\.tmp-\d+-([0-9a-f]+-)?)?(train|val|test)_\d{6}\.(png|gif)")


def _sentences(imgid: int, captions: list[str]) -> list[dict]:
    return [
        {
            "raw": raw,
            "tokens": re.findall(r"\w+", raw.lower()),
            "imgid": imgid,
            "sentid": imgid * len(captions) + number,
        }
        for number, raw in enumerate(captions)
    ]


def _settings_of(path: str) -> dict | None:
    try:
        return files.read_json(path, "")["settings"]
    except (ValueError, KeyError, TypeError):
        return None
