"""One image of a data set, which every reader of captions returns, and the table of readers."""

import os
import pathlib
from collections.abc import Callable
from typing import Any, NamedTuple

SPLITS = ("train", "val", "test")


class ImageEntry(NamedTuple):
    """One image of a data set.

    Attributes:
      id: number of the image, unique in the data set.
      file_name: path relative to the directory of images, with forward slashes and without "..".
      split: "train", "val" or "test".
      captions: raw captions, as the file has them; may be none.
    """

    id: int
    file_name: str
    split: str
    captions: tuple[str, ...]


Reader = Callable[[str | os.PathLike], list[ImageEntry]]
READERS: dict[str, Reader] = {}  # by the name that --source has


def reader(name: str) -> Callable[[Reader], Reader]:
    """Returns a decorator that registers a function that reads a caption file.

    Args:
      name: the value of the flag `--source`.

    Raises:
      ValueError: another function has the name.
    """

    def decorate(function: Reader) -> Reader:
        before = READERS.get(name, function)
        if name == "shapes" or before.__qualname__ != function.__qualname__:
            raise ValueError(f"The name of a source must be new. Received: {name!r}.")
        READERS[name] = function
        return function

    return decorate


def file_name(text: Any) -> str:
    """Returns the file name of an image, with forward slashes.

    Raises:
      ValueError: it is not text, or it leaves the directory of images.
    """
    if not isinstance(text, str) or not text:
        raise ValueError(f"the file name must be text. Received: {text!r}")
    # Backslashes and drive letters have a meaning on Windows; data sets do not need them.
    parts = pathlib.PurePosixPath(text.replace("\\", "/")).parts
    drive = bool(parts) and parts[0][1:2] == ":"
    if not parts or parts[0] == "/" or ".." in parts or drive:
        raise ValueError(
            "the file name must be relative and without '..', so that it stays in the directory of"
            f" images. Received: {text!r}"
        )
    if "\0" in text:
        raise ValueError(f"the file name must not have a NUL character. Received: {text!r}")
    return "/".join(parts)
