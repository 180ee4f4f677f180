"""Reads captions and pictures from WebDataset tar files, without unpacking them."""

import collections
import pathlib
import tarfile
from typing import Any, BinaryIO, NamedTuple

from tfcap.preparing.sources import places, tar
from tfcap.preparing.sources.content import FilePart, check_size
from tfcap.preparing.sources.entry import Given, ImageEntry, file_name, head, reader, split_name
from tfcap.preparing.sources.fields import caption_keys, captions, json_object

_PICTURES = ("jpg", "jpeg", "png", "webp", "gif", "bmp")
_ENDINGS = tuple(f".{ending}" for ending in _PICTURES)
_TEXTS = ("txt", "json")
_MOST_TEXT = 1 << 20  # bytes of the captions of one picture


class _Part(NamedTuple):
    """A member of a tar file: its name, where its content begins, and how many bytes it has."""

    name: str
    offset: int
    size: int


def _is_shard(name: str) -> bool:
    return name.endswith(".tar")


def recognises(path: pathlib.Path) -> bool:
    """Returns whether a file, or the first one of a directory, is a tar file."""
    files = places.below(path, _is_shard) if path.is_dir() else [path]
    return bool(files) and tar.is_tar(head(files[0]))


@reader("webdataset", recognises)
def webdataset(given: Given) -> list[ImageEntry]:
    """Reads tar files whose members with the same key belong together.

    The key is the name up to its first dot. A picture (`.jpg`, `.png`, `.webp` and others) has its
    captions in `.json` (`captions`, `caption` or `text`) or, a caption per line, in `.txt`. The key
    `split` of the JSON, else the name of the tar file tells the split. Members of other kinds are
    left out; pictures among them, such as `1.v2.png`, are counted in a printed note. Members that
    cannot be used are skipped. Ids are positions.

    Args:
      given: --captions are tar files, or a directory of them; --images is not needed.

    Raises:
      ValueError: no tar file, or one of which nothing can be read.
    """
    entries: list[ImageEntry] = []
    unread: collections.Counter[str] = collections.Counter()
    for path, split in places.find(given.captions, _is_shard):
        samples = _samples(path, given, unread)
        with open(path, "rb") as file:
            for key, sample in samples.items():
                try:
                    entry = _entry(file, sample, path)
                except ValueError as error:
                    given.skip(f"{path}: {key!r}", error)
                    continue
                entries.append(entry._replace(id=len(entries), split=entry.split or split))
    if unread:
        print(
            f"note: {unread.total()} pictures are not read, because their names have more than one "
            f"dot, as {next(iter(unread))!r:.120}; the key of a picture ends at the first dot",
            flush=True,
        )
    if not entries:
        raise ValueError(
            f"--captions must have at least one usable picture. Received: {given.captions[0]}."
        )
    return entries


def _samples(
    path: pathlib.Path, given: Given, unread: collections.Counter[str]
) -> dict[str, dict[str, _Part]]:
    """Returns the parts of each sample by the key and by "picture", "txt" or "json".

    Args:
      path: a tar file.
      given: its `skip` is called for members that cannot be used.
      unread: pictures of other kinds are counted in it, under the name of one of them.
    """
    samples: dict[str, dict[str, _Part]] = {}
    unusable = set()
    try:
        for member in tar.members(path):
            key, kind = _key(member.name)
            if not key or kind is None or member.isdir():
                if key and member.isreg() and member.name.lower().endswith(_ENDINGS):
                    unread[next(iter(unread), member.name)] += 1
                continue
            sample = samples.setdefault(key, {})
            try:
                part = _part(member, kind)
            except ValueError as error:
                given.skip(f"{path}: {member.name!r}", error)
                unusable.add(key)
                continue
            if kind in sample:
                given.skip(f"{path}: {member.name!r}", f"it is the second {kind} of its key")
                continue
            sample[kind] = part
    except tar.DamagedError as error:
        if not samples:
            raise ValueError(f"{path}: {error}. Unpack it, or copy it again.") from None
        given.skip(str(path), f"{error}; the members behind it are left out")
    except OSError as error:
        raise ValueError(f"Cannot read {path}: {error.strerror or error}.") from None
    return {key: sample for key, sample in samples.items() if key not in unusable}


def _key(name: str) -> tuple[str, str | None]:
    """Returns the key of a member and its kind; no key for hidden files such as `._1.jpg`."""
    folder, slash, base = name.rpartition("/")
    stem, _, ending = base.partition(".")
    ending = ending.lower()
    kind = "picture" if ending in _PICTURES else ending if ending in _TEXTS else None
    return f"{folder}{slash}{stem}" if stem else "", kind


def _part(member: tarfile.TarInfo, kind: str) -> _Part:
    if not member.isreg() or member.issparse():
        raise ValueError("must be an ordinary file. Received: a link, a device or a sparse file")
    if kind == "picture":
        check_size(member.size)
    elif member.size > _MOST_TEXT:
        raise ValueError(f"must have at most {_MOST_TEXT} bytes. Received: {member.size}")
    return _Part(file_name(member.name), member.offset_data, member.size)


def _entry(file: BinaryIO, sample: dict[str, _Part], path: pathlib.Path) -> ImageEntry:
    """Returns the entry of a sample, with the id 0."""
    picture = sample.get("picture")
    if picture is None:
        raise ValueError("it has captions and no picture")
    row: dict[str, Any] = {}
    if "json" in sample:
        row = json_object(_text(file, sample["json"]))
    texts = captions(row, caption_keys(row))
    if not texts and "txt" in sample:
        texts = captions({"txt": _text(file, sample["txt"]).split("\n")}, ["txt"])
    split = None if row.get("split") is None else split_name(row["split"])
    content = FilePart(path.absolute(), picture.offset, picture.size)
    return ImageEntry(0, picture.name, split, texts, content=content)


def _text(file: BinaryIO, part: _Part) -> str:
    file.seek(part.offset)
    try:
        return file.read(part.size).decode("utf-8-sig").replace("\r\n", "\n")
    except UnicodeDecodeError as error:
        raise ValueError(f"{part.name} must be UTF-8 text: {error.reason}") from None
