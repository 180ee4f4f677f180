"""The pictures that the page finds: training pictures like another, and pictures for a text.

A browser names a found picture by its number, and never by a path.
"""

import functools
import os
from collections.abc import Sequence
from typing import Any, Protocol

from tfcap.captioning import ImageCaptioner
from tfcap.captioning.collection import Collection, Gallery
from tfcap.captioning.inputs import expand
from tfcap.report import pictures
from tfcap.webpage.answers import MOST_BYTES, noted
from tfcap.webpage.refused import Refused

TOP = 6  # pictures that are found
_LONGEST = 500  # characters of a text to search by
_CANDIDATES = 100  # training images that a text is scored with
_MOST = 1000  # pictures of a folder whose features are kept in memory


class Shown(Protocol):
    """Pictures that the page can show.

    Attributes:
      name: the part of their addresses that names this collection.
      label: what they are.
    """

    name: str
    label: str

    @property
    def files(self) -> Sequence[str | None]:
        """The path of each picture; None without a file."""

    def search(self, text: str) -> list[dict[str, Any]]:
        """Finds the pictures for which a text is most probable."""


class Training:
    """The training images of prepared data.

    Args:
      captioner: computes the vectors of pictures.
      data_dir: the prepared directory; None takes that of the run.
      images: a further directory with the picture files.

    Raises:
      ValueError: the data is not of the run's words and features, or there is no train split.
    """

    name = "train"

    def __init__(
        self, captioner: ImageCaptioner, data_dir: str | None = None, images: str | None = None
    ):
        self._collection: Collection = captioner.collection(data_dir, "train", images=images)
        self.label = f"{len(self._collection):,} training pictures"

    @property
    def files(self) -> Sequence[str | None]:
        """The path of each picture; None if there is no file."""
        return self._collection.files

    def nearest(self, content: bytes) -> list[dict[str, Any]]:
        """Finds the training pictures nearest to a picture file.

        Raises:
          Refused: the file is no picture that can be read.
        """
        try:
            [found] = self._collection.nearest([content], TOP)
        except ValueError as error:
            raise Refused(422, str(error)) from None
        return [
            {
                **_entry(self, one.position, one.source),
                "similarity": round(one.similarity, 4),
                "captions": list(one.captions),
            }
            for one in found
        ]

    def search(self, text: str) -> list[dict[str, Any]]:
        """Finds the pictures for which a text is most probable, among those with near vectors."""
        matches = _found(self._collection, text, candidates=_CANDIDATES)
        return [
            {
                **_entry(self, one.position, one.source),
                "score": round(one.score, 3),
                "captions": self._collection.captions[one.position],
            }
            for one in matches
        ]


class Folder:
    """The pictures of a folder. Their features are computed at the first search.

    Args:
      captioner: scores the pictures.
      directory: the folder.

    Raises:
      ValueError: there is no such folder, it holds no picture, or the captioner is an export.
    """

    name = "folder"

    def __init__(self, captioner: ImageCaptioner, directory: str):
        if captioner.engine.exported:
            captioner.engine.score()
        if not os.path.isdir(directory):
            raise ValueError(f"--images must be a directory. Received: {directory}.")
        paths = expand([directory], captioner.engine.reads_clips)
        if paths == [directory]:
            raise ValueError(f"--images must hold pictures. Received: {directory} without any.")
        self._captioner, self._paths = captioner, paths[:_MOST]
        self.label = (
            f"{len(self._paths):,} pictures of {os.path.basename(os.path.abspath(directory))}"
        )
        if len(paths) > _MOST:
            self.label += f" (the first of {len(paths):,})"

    @functools.cached_property
    def _gallery(self) -> Gallery:
        return self._captioner.gallery(self._paths)

    @property
    def files(self) -> Sequence[str | None]:
        """The path of each picture that could be read; empty before the first search."""
        return self._gallery.sources if "_gallery" in self.__dict__ else ()

    def search(self, text: str) -> list[dict[str, Any]]:
        """Finds the pictures for which a text is most probable."""
        places = {source: place for place, source in enumerate(self._gallery.sources)}
        return [
            {
                **_entry(self, places[one.source], str(one.source)),
                "score": round(one.score, 3),
                "captions": [],
            }
            for one in _found(self._gallery, text)
        ]


def search(gallery: Shown, text: Any) -> dict[str, Any]:
    """Finds pictures for a text.

    Returns:
      `found`, and `notes` about words that the model does not know.

    Raises:
      Refused: the text is missing, too long, or has no word that the model knows.
    """
    if not isinstance(text, str) or not text.strip() or len(text) > _LONGEST:
        raise Refused(400, f"text must be a sentence of 1 to {_LONGEST} characters.")
    with noted() as notes:
        found = gallery.search(text)
    return {"found": found, "notes": notes}


def thumbnail(gallery: Shown, place: int) -> bytes | None:
    """Returns a small JPEG of a picture; None if there is none."""
    path = _path(gallery, place)
    try:
        return pictures.thumbnail(path) if path else None
    except ValueError:
        return None


def file(gallery: Shown, place: int) -> bytes | None:
    """Returns the bytes of a picture file; None if there is no file, or if it is too large."""
    path = _path(gallery, place)
    if path is None or os.path.getsize(path) > MOST_BYTES:
        return None
    with open(path, "rb") as content:
        return content.read()


def _path(gallery: Shown, place: int) -> str | None:
    path = gallery.files[place] if place < len(gallery.files) else None
    return path if path and os.path.isfile(path) else None


def _entry(gallery: Shown, place: int, source: str) -> dict[str, Any]:
    """Returns the name of a picture and its address, which is None without a file."""
    address = f"/pictures/{gallery.name}/{place}" if _path(gallery, place) else None
    return {"name": os.path.basename(source), "picture": address}


def _found(collection: Any, text: str, **options: int) -> list[Any]:
    try:
        return collection.search(text, TOP, **options)
    except ValueError as error:
        raise Refused(400, str(error)) from None
