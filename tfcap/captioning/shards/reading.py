"""Reads the pictures of shards: tar files, Parquet files, and parts of folders."""

import collections
import contextlib
import dataclasses
import glob
import os
import tarfile
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from tfcap.errors import UsageError
from tfcap.files import read_bytes
from tfcap.images import is_picture, is_picture_name
from tfcap.preparing.sources.archives import incomplete, tar_members
from tfcap.preparing.sources.entry import check_size
from tfcap.preparing.sources.names import captions_of, columns_of
from tfcap.preparing.sources.parquet import parquet_file, picture_column
from tfcap.preparing.sources.rows import json_row

FOLDER_PICTURES = 250  # of a folder in one shard
_KEYS = ("key", "__key__")  # columns, as img2dataset and webdataset name them
_TEXTS = ("txt", "caption")


class Row(NamedTuple):
    """A picture of a shard.

    Attributes:
      key: the name of the picture in the shard.
      content: the bytes of the picture file; None if they cannot be read.
      reason: why not; empty otherwise.
      given: the captions that the shard has of the picture.
      ending: the ending of the picture file without its dot; empty if it is not known.
      files: the other files of the key in a tar file: ending without its first dot -> content.
    """

    key: str
    content: bytes | None
    reason: str = ""
    given: tuple[str, ...] = ()
    ending: str = ""
    files: dict[str, bytes] = {}  # noqa: RUF012  # never changed


@dataclasses.dataclass(frozen=True)
class Shard:
    """Pictures that are captioned together; the captions are written together, too.

    Attributes:
      name: the name of the files with its captions, without their ending.
      path: the tar file, the Parquet file or the folder.
      pictures: the names of the pictures in a folder that belong to the shard; else empty.
    """

    name: str
    path: str
    pictures: tuple[str, ...] = ()

    def rows(self) -> Iterator[Row]:
        """Yields the pictures in their order; one after the other is in memory.

        Raises:
          ValueError: the file is damaged, or cannot be read.
        """
        with self._reading():
            yield from _reader_of(self)(self)

    def state(self) -> list[Any]:
        """Returns what changes when the shard changes; JSON can store it.

        Raises:
          ValueError: a file cannot be found.
        """
        paths = [os.path.join(self.path, name) for name in self.pictures] or [self.path]
        with self._reading():
            found = [(os.path.basename(path), os.stat(path)) for path in paths]
        return [[name, file.st_size, file.st_mtime_ns] for name, file in found]

    @contextlib.contextmanager
    def _reading(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise ValueError(
                f"{self.path} cannot be read: {error.strerror or error}. Check the file."
            ) from None


def shards_of(paths: Sequence[str]) -> list[Shard]:
    """Finds the shards at some paths.

    A folder with tar files has a shard for each, and so has a folder with Parquet files that have a
    column of pictures. Otherwise each folder in it, and the folder itself, has a shard for
    each 250 of its pictures, in the order of their names.

    Args:
      paths: the paths of tar files, Parquet files and folders, or patterns such as `data/*.tar`.

    Raises:
      UsageError: there is nothing at a path, or two shards have the same name.
    """
    shards: list[Shard] = []
    for path in paths:
        path = os.path.expanduser(path)
        found = [path] if os.path.exists(path) else sorted(glob.glob(path, recursive=True))
        new = [shard for one in found for shard in _shards_at(one)]
        if not new:
            raise UsageError(
                f"`images={path}` has no tar files, no Parquet files with a column of pictures, "
                "and no pictures. Check the path; quote a pattern such as 'data/*.tar'."
            )
        shards += new
    names = collections.Counter(shard.name for shard in shards)
    if twice := [name for name, count in names.items() if count > 1]:
        raise UsageError(
            f"`images` has {names[twice[0]]} shards with the name {twice[0]}. Caption their "
            "folders one after the other, each with an `out` of its own."
        )
    return shards


def _shards_at(path: str) -> list[Shard]:
    if not os.path.isdir(path):
        is_shard = path.endswith(".tar") or _has_pictures(path)
        return [_of_file(path)] if is_shard else []
    names = sorted(name for name in os.listdir(path) if name[0] != ".")
    files = [os.path.join(path, name) for name in names]
    # Beside each tar file img2dataset has a Parquet file, which need not be opened.
    found = [file for file in files if file.endswith(".tar")] or [*filter(_has_pictures, files)]
    if found:
        return [_of_file(file) for file in found]
    shards = _of_folder(path, names)
    for file in filter(os.path.isdir, files):
        shards += _of_folder(file, sorted(os.listdir(file)))
    return shards


def _has_pictures(path: str) -> bool:
    """True for a Parquet file with a column of pictures, which that of img2dataset may lack.

    True for a damaged one, too: it is a shard that cannot be read, and stops no other.
    """
    if not path.endswith(".parquet"):
        return False
    with contextlib.suppress(ValueError), parquet_file(path) as file:
        return picture_column(file.schema_arrow) is not None
    return True


def _of_file(path: str) -> Shard:
    return Shard(os.path.splitext(os.path.basename(path))[0], path)


def _of_folder(path: str, names: Sequence[str]) -> list[Shard]:
    pictures = [name for name in names if is_picture(os.path.join(path, name))]
    base = os.path.basename(os.path.abspath(path))
    return [
        Shard(f"{base}-{start // FOLDER_PICTURES:05d}", path, tuple(part))
        for start in range(0, len(pictures), FOLDER_PICTURES)
        if (part := pictures[start : start + FOLDER_PICTURES])
    ]


def _reader_of(shard: Shard) -> Callable[[Shard], Iterator[Row]]:
    if shard.pictures:
        return _folder_rows
    return _parquet_rows if shard.path.endswith(".parquet") else _tar_rows


# ---- tar files -----------------------------------------------------------------------------------


def _tar_rows(shard: Shard) -> Iterator[Row]:
    """Yields the pictures of a tar file of WebDataset: members with one key follow each other."""
    key, files = "", dict[str, bytes | str]()
    for tar, info in tar_members(shard.path):
        folder, _, base = info.name.rpartition("/")
        stem, _, ending = base.partition(".")
        name = f"{folder}/{stem}" if folder else stem
        if not stem:  # a hidden file
            continue
        if name != key and files:
            yield from _tar_row(key, files)
            files = {}
        key = name
        files[ending] = _member(tar, info)
    if files:
        yield from _tar_row(key, files)


def _member(tar: tarfile.TarFile, info: tarfile.TarInfo) -> bytes | str:
    """Returns the content of a member, or why it is not read."""
    try:
        check_size(info.size)
    except ValueError as error:
        return str(error)
    file = tar.extractfile(info)
    assert file is not None  # it is a regular file
    try:
        return file.read()
    except tarfile.TarError as error:
        raise incomplete(os.fsdecode(tar.name or ""), error) from None


def _tar_row(key: str, files: dict[str, bytes | str]) -> Iterator[Row]:
    """Yields the picture of a key; nothing if the key has none."""
    pictures = [ending for ending in files if is_picture_name(f"x.{ending}")]
    if not pictures:
        return
    ending = min(pictures, key=lambda ending: ending.count("."))  # jpg rather than mask.png
    content = files.pop(ending)
    others = {ending: value for ending, value in files.items() if isinstance(value, bytes)}
    texts = next((others[ending] for ending in _TEXTS if ending in others), b"")
    given = tuple(filter(None, texts.decode("utf-8", "replace").splitlines()))
    if not given and "json" in others:
        with contextlib.suppress(ValueError):
            values = json_row(others["json"].decode("utf-8-sig"))
            given = _given(values, columns_of(tuple(values)).captions)
    if isinstance(content, str):
        yield Row(key, None, content, given, ending, others)
    else:
        yield Row(key, content, "", given, ending, others)


def _given(values: dict[str, Any], columns: Sequence[str]) -> tuple[str, ...]:
    """Returns the captions in a row; without those the picture gets a caption all the same."""
    try:
        return captions_of(values, columns)
    except ValueError:  # such as a number
        return ()


# ---- Parquet files -------------------------------------------------------------------------------


def _parquet_rows(shard: Shard) -> Iterator[Row]:
    """Yields the pictures of a Parquet file.

    The key is in a column of that name, or else it is the name of the picture or the row's number;
    the number also follows a name that an earlier row has, as where each picture is `image.jpg`.
    """
    with parquet_file(shard.path) as file:
        picture = picture_column(file.schema_arrow)
        assert picture is not None  # `shards_of` has looked
        columns = columns_of(tuple(file.schema_arrow.names))
        keys = [name for name in (*_KEYS, columns.id) if name in file.schema_arrow.names]
        names = [picture, *columns.captions, *keys]
        number, named = -1, set[str]()
        for batch in file.iter_batches(16, columns=list(dict.fromkeys(names))):
            for values in batch.to_pylist():
                number += 1
                cell = values[picture] or {}
                path = ""
                if isinstance(cell, dict):
                    path = os.path.basename(str(cell.get("path") or ""))
                    cell = cell.get("bytes")
                stated = [values[name] for name in keys if values[name] is not None]
                name = os.path.splitext(path)[0]
                key = str(stated[0]) if stated else f"{name}-{number}" if name in named else name
                named.add(name)
                given = _given(values, columns.captions)
                ending = os.path.splitext(path)[1][1:]
                reason = _refusal(cell)
                yield Row(key or str(number), None if reason else cell, reason, given, ending)


def _refusal(cell: bytes | None) -> str:
    """Says why a cell holds no picture; "" for one that can be decoded."""
    if not cell:
        return "the row has no picture"
    try:
        check_size(len(cell))
    except ValueError as error:
        return str(error)
    return ""


# ---- folders -------------------------------------------------------------------------------------


def _folder_rows(shard: Shard) -> Iterator[Row]:
    """Yields pictures of a folder, each with the captions in the text file of its name.

    The key is the name without its ending, or the whole name if `a.jpg` and `a.png` are there.
    """
    stems = collections.Counter(os.path.splitext(name)[0] for name in shard.pictures)
    for name in shard.pictures:
        path = os.path.join(shard.path, name)
        stem, dot_ending = os.path.splitext(name)
        key = stem if stems[stem] == 1 else name
        beside = (os.path.join(shard.path, f"{stem}.{ending}") for ending in _TEXTS)
        given: tuple[str, ...] = ()
        try:
            if text := next(filter(os.path.isfile, beside), None):
                lines = read_bytes(text).decode("utf-8-sig", "replace").splitlines()
                given = tuple(filter(None, lines))
            check_size(os.path.getsize(path))
            yield Row(key, read_bytes(path), "", given, dot_ending[1:])
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or str(error)
            yield Row(key, None, reason, given, dot_ending[1:])
