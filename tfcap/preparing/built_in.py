"""Draws and writes a built-in data set: its pictures or clips, and its caption file."""

import os
import random
import re
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from tfcap import files

_FILE = re.compile(r"(\.tmp-\d+-([0-9a-f]+-)?)?(train|val|test)_\d{6}\.(png|gif)")


class Rendered(NamedTuple):
    """A drawn picture or clip.

    Attributes:
      save: a function that writes the picture or clip to a path.
      captions: the captions of the picture or clip.
      keys: further keys and values of the picture or clip in the caption file, such as `boxes`.
    """

    save: Callable[[str], None]
    captions: list[str]
    keys: dict[str, Any]


class BuiltIn(NamedTuple):
    """A built-in data set, whose pictures or clips are drawn at random.

    Attributes:
      name: name of the data set.
      folder: directory of the pictures or clips, beside the caption file.
      ending: ending of the names of picture files, "png" or "gif".
      seed: a word that is part of the random seed, so that each data set has random numbers of its
        own.
      counts: default number of pictures or clips by split: train, val and test.
      draw: a function of a random generator. It chooses at random what a picture or clip shows. Its
        results can be compared and hashed.
      render: a function of a result of `draw` and a random generator. It paints the picture or clip
        and returns it as a `Rendered`.
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
        """The file name of the caption file."""
        return f"dataset_{self.name}.json"

    def different(self, counts: Mapping[str, int], seed: int) -> dict[str, list[Any]]:
        """Chooses at random what the pictures or clips of each split show; no two show the same.

        The splits test and val are chosen before train. So they stay the same if the number for
        train changes.

        Args:
          counts: number of pictures or clips by split: train, val and test.
          seed: random seed.

        Returns:
          Split -> results of `draw`, which `render` takes.
        """
        rng = random.Random(f"{self.seed} {seed}")
        earlier = set()
        splits: dict[str, list[Any]] = {}
        for split in ("test", "val", "train"):
            splits[split] = []
            while len(splits[split]) < counts[split]:
                drawing = self.draw(rng)
                if drawing not in earlier:
                    earlier.add(drawing)
                    splits[split].append(drawing)
        return splits

    def write(
        self,
        directory: str | os.PathLike,
        counts: Mapping[str, int] | None = None,
        seed: int = 1,
        overwrite: bool = False,
    ) -> str:
        """Draws and writes the pictures or clips and, last, the caption file in Karpathy's layout.

        A directory that was written with the same arguments is not changed.

        Args:
          directory: the directory to write.
          counts: number of pictures or clips by split; a split that is missing gets its default.
          seed: random seed.
          overwrite: whether to replace pictures or clips that were drawn with other arguments.

        Returns:
          The path of the caption file.

        Raises:
          ValueError: the number for train is below 1, or that for val or test is below 0. Or the
            directory has pictures or clips that were drawn with other arguments, and `overwrite` is
            False.
        """
        counts = {**self.counts, **(counts or {})}
        settings = {**counts, "seed": seed, "version": 1}
        path = os.path.join(directory, self.caption_file)
        if counts["train"] < 1 or min(counts.values()) < 0:
            raise ValueError(
                f"`train` of {self.name} must be at least 1, and `val` and `test` at least 0."
            )
        old = _settings_of(path)
        if old == settings:  # without a lock: the directory may be read-only
            return path
        if old is not None and not overwrite:
            raise ValueError(
                f"{directory} has {self.name} with other settings: {old}. Choose another "
                "directory, or give `overwrite` to replace its pictures."
            )
        files.make_directory(directory)
        with files.lock(directory, self.name, "choose another directory"):
            if _settings_of(path) == settings:  # another process has drawn them meanwhile
                return path
            files.remove(path)
            images = self._write_images(directory, counts, seed)
            os.sync()  # the pictures are on disk before the file that says so
            files.write_json(path, {"dataset": self.name, "settings": settings, "images": images})
        return path

    def _write_images(
        self, directory: str | os.PathLike, counts: Mapping[str, int], seed: int
    ) -> list[dict[str, Any]]:
        """Replaces the pictures or clips; returns their entries in the caption file."""
        folder = os.path.join(directory, self.folder)
        files.make_directory(folder)
        for name in files.names(folder):
            if _FILE.fullmatch(name):  # other files stay
                files.remove(os.path.join(folder, name))
        images: list[dict[str, Any]] = []
        for split, members in self.different(counts, seed).items():
            for number, drawing in enumerate(members):
                rng = random.Random(f"{split} {number} {seed}")
                rendered = self.render(drawing, rng)
                file = f"{split}_{number:06d}.{self.ending}"
                with files.replacing(os.path.join(folder, file), flush=False) as temporary:
                    rendered.save(temporary)
                entry = {"imgid": len(images), "filename": file, "split": split}
                entry["sentences"] = _sentences(len(images), rendered.captions)
                images.append(entry | rendered.keys)
        return images


def _sentences(imgid: int, captions: list[str]) -> list[dict[str, Any]]:
    """Returns the captions of an image as the layout has them."""
    return [
        {
            "raw": raw,
            "tokens": re.findall(r"\w+", raw.lower()),
            "imgid": imgid,
            "sentid": imgid * len(captions) + number,
        }
        for number, raw in enumerate(captions)
    ]


def _settings_of(path: str) -> dict[str, Any] | None:
    """Returns the settings in a caption file, or None if there is no such file."""
    try:
        return files.read_json(path, "")["settings"]
    except (ValueError, KeyError, TypeError):
        return None
