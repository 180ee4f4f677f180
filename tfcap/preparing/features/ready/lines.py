"""Finds lines of large text files by their first field, through an index of offsets.

The files are read once from end to end, in blocks, to build the index. Later a line is read by its
offset, so that memory holds neither a whole file nor a long line that was not requested.

Letters: N lines.
"""

import json
import os
import pathlib
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from tfcap import cli, files
from tfcap.files import load_npz, write_npz
from tfcap.preparing.features.ready.layout import counted

LONGEST = 16 << 20  # bytes of a line: 1,400 regions of 2,048 float32 in base64 have 15 MB
HEAD = 512  # bytes of a line that tell its key
_BLOCK = 4 << 20
_LONGEST_KEY = 200  # bytes
_MOST_LINES = 5_000_000
_FORMAT = 2

Key = Callable[[bytes], bytes | None]


class Lines:
    """The lines of text files by a key.

    Args:
      paths: the files.
      key: returns the key of a line from its first `HEAD` bytes, or None for a line without one.
      cache: a file that keeps the index between runs, or None. An index of other files, or of files
        that have changed since, is built again.
      starts: returns the offsets int64 [N] of the lines of a file if they are known, else None.

    Attributes:
      repeated: number of lines whose key occurred before.

    Raises:
      ValueError: the files have too many lines.
    """

    def __init__(
        self,
        paths: Sequence[pathlib.Path],
        key: Key,
        cache: str | os.PathLike | None = None,
        starts: Callable[[pathlib.Path], np.ndarray | None] = lambda path: None,
    ):
        self.paths, self._key = list(paths), key
        # Unbuffered, because only `os.pread` reads them: it needs no position, so that several
        # threads can read at the same time.
        self._files = [open(path, "rb", buffering=0) for path in self.paths]  # noqa: SIM115
        self._places: dict[bytes, list[tuple[int, int, int]]] = {}  # file, offset, length
        if cache is None or not self._load(cache):
            self._build(starts)
            if cache is not None:
                self._save(cache)

    def __len__(self) -> int:
        return len(self._places)

    @property
    def repeated(self) -> int:
        return sum(map(len, self._places.values())) - len(self)

    def copies(self, key: str) -> int:
        """Returns the number of lines with a key."""
        return len(self._places.get(_bytes(key), ()))

    def example(self) -> str:
        """Returns the first key; empty without lines."""
        return next(iter(self._places), b"").decode("utf-8", "replace")

    def about(self) -> str:
        """Describes the files in a few words."""
        again = f", {counted(self.repeated, 'repeated line')}" if self.repeated else ""
        return counted(len(self.paths), "file") + again

    def place(self, key: str, copy: int = 0) -> str:
        """Returns the file and the byte of a line, for errors."""
        file, offset, _ = self._places[_bytes(key)][copy]
        return f"{self.paths[file]}, {key} at byte {offset}"

    def read(self, key: str, copy: int = 0) -> bytes:
        """Returns a line of a key without its line end.

        Raises:
          ValueError: no line has the key, or the line is too long or truncated.
        """
        if not self.copies(key):
            raise ValueError(f"no line for {key} in {', '.join(map(str, self.paths))}")
        file, offset, length = self._places[_bytes(key)][copy]
        if length > LONGEST:
            raise ValueError(
                f"{self.place(key, copy)}: a line must have at most {LONGEST} bytes. "
                f"Received: {length}."
            )
        return _read(self._files[file].fileno(), offset, length).rstrip(b"\r\n")

    def _build(self, starts: Callable[[pathlib.Path], np.ndarray | None]) -> None:
        begin, lines = time.monotonic(), 0
        total = sum(path.stat().st_size for path in self.paths)
        for number, path in enumerate(self.paths):
            size, known = path.stat().st_size, starts(path)
            descriptor = self._files[number].fileno()
            entries = _scan(descriptor) if known is None else _heads(descriptor, known, size)
            for offset, length, head in cli.progress(entries, None, "index of features", "line"):
                lines += 1
                if lines > _MOST_LINES:
                    raise ValueError(
                        f"{path}: the files must have at most {_MOST_LINES} lines. Received: more. "
                        "Give files of features."
                    )
                self._add(number, offset, length, head)
        seconds = max(time.monotonic() - begin, 1e-3)
        files, images = counted(len(self.paths), "file"), counted(len(self), "image")
        rate = f"{cli.duration(seconds)}, {cli.size(total / seconds)}/s"
        print(f"index of {files}: {images} in {cli.size(total)}, {rate}", flush=True)

    def _add(self, number: int, offset: int, length: int, head: bytes) -> None:
        key = self._key(head)
        if key is None or not 0 < len(key) <= _LONGEST_KEY:
            return
        self._places.setdefault(key, []).append((number, offset, length))

    def _identity(self) -> dict:
        files = [(str(p.resolve()), p.stat().st_size, p.stat().st_mtime_ns) for p in self.paths]
        return {"format": _FORMAT, "files": [list(file) for file in files]}

    def _save(self, cache: str | os.PathLike) -> None:
        made_by = json.dumps(self._identity()).encode()
        lines = [(key, place) for key, places in self._places.items() for place in places]
        write_npz(
            cache,
            made_by=np.frombuffer(made_by, np.uint8),
            keys=np.frombuffer(b"\n".join(key for key, _ in lines), np.uint8),
            places=np.array([place for _, place in lines], np.int64).reshape(-1, 3),
        )

    def _load(self, cache: str | os.PathLike) -> bool:
        """Reads a kept index; returns False if there is none for these files."""
        if not files.is_file(cache):
            return False
        try:
            arrays = load_npz(cache, ["made_by", "keys", "places"], "")
            if json.loads(arrays["made_by"].tobytes()) != self._identity():
                return False
            keys = arrays["keys"].tobytes().split(b"\n") if arrays["keys"].size else []
            rows: Any = arrays["places"].astype(np.int64).tolist()
            places: dict[bytes, list[tuple[int, int, int]]] = {}
            for key, (file, offset, length) in zip(keys, rows, strict=True):
                places.setdefault(key, []).append((file, offset, length))
            whole = all(
                0 <= file < len(self.paths) and offset >= 0 and length >= 0
                for file, offset, length in rows
            )
        except (ValueError, TypeError):  # damaged: it is built again
            return False
        if whole:
            self._places = places
        return whole


def _bytes(key: str) -> bytes:
    return key.encode("utf-8", "replace")  # a name may have half of a surrogate pair


def _scan(descriptor: int) -> Iterator[tuple[int, int, bytes]]:
    """Yields offset, length and first bytes of each line; reads the file from end to end."""
    start = position = 0
    head = b""
    while block := os.pread(descriptor, _BLOCK, position):
        begin = 0
        while begin < len(block):
            end = block.find(b"\n", begin)
            stop = len(block) if end < 0 else end + 1
            head += block[begin : min(stop, begin + HEAD - len(head))]
            if end < 0:
                break
            yield start, position + stop - start, head
            start, begin, head = position + stop, stop, b""
        position += len(block)
    if position > start:
        yield start, position - start, head


def _heads(descriptor: int, starts: np.ndarray, size: int) -> Iterator[tuple[int, int, bytes]]:
    """Yields offset, length and first bytes of the lines that begin at known offsets."""
    ends = [*starts[1:].tolist(), size]
    for offset, end in zip(starts.tolist(), ends, strict=True):
        yield offset, end - offset, os.pread(descriptor, min(HEAD, end - offset), offset)


def _read(descriptor: int, offset: int, length: int) -> bytes:
    """Reads `length` bytes at an offset; fewer if the file ends before."""
    parts = []
    while length > 0 and (part := os.pread(descriptor, length, offset)):
        parts.append(part)
        offset, length = offset + len(part), length - len(part)
    return parts[0] if len(parts) == 1 else b"".join(parts)
