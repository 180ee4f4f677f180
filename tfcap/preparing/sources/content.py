"""Bytes of pictures that are no files of their own, such as parts of a tar file.

A reader sets `ImageEntry.content` to an object that has the method of `Content`. Prepare reads it
when the picture is decoded, one shard at a time and in the order of the entries, so that a data
set of any size never enters memory. Such an object holds no open file: a data set has 100,000.
"""

import dataclasses
import os
from collections.abc import Iterable
from typing import Protocol

from tfcap.picture_files import MOST_BYTES


class Content(Protocol):
    """Gives the bytes of one picture file.

    Attributes:
      path: the file that holds them.
    """

    @property
    def path(self) -> str | os.PathLike: ...

    def read(self) -> bytes:
        """Returns the whole picture file.

        Raises:
          ValueError: the bytes are not there, or they are too many; the message is the reason for
            skipping the image.
          OSError: the file that holds them cannot be read.
        """
        ...


@dataclasses.dataclass(frozen=True)
class FilePart:
    """A range of bytes of a file, for example a member of an uncompressed tar file.

    Attributes:
      path: the file.
      offset: where the picture begins, in bytes.
      length: how many bytes it has.
    """

    path: str | os.PathLike
    offset: int
    length: int

    @property
    def is_file(self) -> bool:
        """Whether the picture is a file of its own: tar and TFRecord begin with a header."""
        return self.offset == 0

    def read(self) -> bytes:
        """Returns the bytes; see `Content.read`."""
        check_size(self.length)
        with open(self.path, "rb") as file:
            file.seek(self.offset)
            content = file.read(self.length)
        if len(content) < self.length:
            raise ValueError(
                f"{self.path} must have {self.length} bytes from byte {self.offset}. Received: "
                f"{len(content)}. The file is truncated; copy or download it again."
            )
        return content


def containers(contents: Iterable[Content | None]) -> list[str]:
    """Returns the files that hold several pictures, in the order of their paths."""
    files = {
        os.fspath(content.path)
        for content in contents
        if content is not None and not (isinstance(content, FilePart) and content.is_file)
    }
    return sorted(files)


def check_size(size: int) -> None:
    """Raises ValueError if a picture file is so large that it must not enter memory."""
    if size > MOST_BYTES:
        raise ValueError(
            f"a picture file must have at most {MOST_BYTES} bytes. Received: {size}. Check the file"
        )
