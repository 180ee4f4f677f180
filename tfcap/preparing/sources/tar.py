"""Lists the members of an uncompressed tar file, which may be damaged or hostile."""

import io
import os
import pathlib
import tarfile
from collections.abc import Iterator

_MOST_HEADER = 1 << 20  # bytes of the headers of one member; with a long name it has thousands
_COMPRESSED = {b"\x1f\x8b": "gzip", b"BZh": "bzip2", b"\xfd7zXZ": "xz", b"(\xb5/\xfd": "zstd"}


class DamagedError(ValueError):
    """The rest of a tar file cannot be read."""


class _Headers(io.BufferedReader):
    """A file from which tarfile reads headers only: by itself it would read one of any length.

    Attributes:
      taken: bytes of the headers of the present member that were read.
    """

    taken = 0

    def read(self, size: int | None = -1, /) -> bytes:
        if size is None or not 0 <= size <= _MOST_HEADER - self.taken:
            raise ValueError(f"a header must have at most {_MOST_HEADER} bytes. Received: {size}")
        self.taken += size
        return super().read(size)


def is_tar(beginning: bytes) -> bool:
    """Returns whether a file that begins with these bytes is a tar file."""
    try:
        tarfile.TarInfo.frombuf(beginning[:512], "utf-8", "surrogateescape")
    except Exception:  # of numbers and names in bytes of any kind
        return False
    return True


def members(path: pathlib.Path) -> Iterator[tarfile.TarInfo]:
    """Yields the members of a tar file in their order; nothing but headers is read.

    Raises:
      DamagedError: the file is no tar file, is compressed, has a damaged header, or ends early.
      OSError: it cannot be read.
    """
    size = os.path.getsize(path)
    with _Headers(io.FileIO(path)) as file:
        beginning = file.read(min(size, 8))
        for magic, kind in _COMPRESSED.items():
            if beginning.startswith(magic):
                raise DamagedError(f"must be an uncompressed tar file. Received: {kind} data")
        file.seek(0)
        before = -1
        try:
            with tarfile.open(fileobj=file, mode="r:", encoding="utf-8") as tar:
                while (member := tar.next()) is not None:
                    # Lengths below 0 would lead back to an earlier member, again and again.
                    if member.size < 0 or member.offset_data <= before:
                        raise DamagedError(f"the length of {member.name!r:.80} must not be below 0")
                    if member.isreg() and member.offset_data + member.size > size:
                        raise DamagedError(f"the file ends inside its member {member.name!r:.80}")
                    before, file.taken = member.offset_data, 0
                    vars(tar)["members"].clear()  # it keeps every header, and there may be millions
                    yield member
                end = tar.offset
        except DamagedError:
            raise
        except Exception as error:  # tarfile raises many kinds for a damaged header
            raise DamagedError(f"cannot be read as a tar file: {error}") from None
        # tarfile takes a damaged header for the end of the file.
        file.seek(end)
        file.taken = 0
        if file.read(512).strip(b"\0"):
            raise DamagedError(f"the header at byte {end} is damaged")
