"""Reads Flickr8k, Flickr30k and IAPR TC-12, whose captions and splits are lines of text."""

import html
import itertools
import logging
import pathlib
import random
import re
from collections.abc import Container, Mapping, Sequence

from tfcap.preparing.sources.entry import SPLITS, Entry, Source, head
from tfcap.preparing.sources.splits import files_of
from tfcap.preparing.sources.tables import first_lines, numbered_lines
from tfcap.preparing.spelling import nfc

_TOKENS = "Flickr8k.token.txt"
# The end of the file that lists the pictures of a split, such as Flickr_8k.devImages.txt.
_LISTS = {"train": "trainImages.txt", "val": "devImages.txt", "test": "testImages.txt"}
_TOKEN = re.compile(r"([^\t]+)#\d{1,4}\t(.*)")
# One row of the released file lacks its second bar: `2199200615.jpg| 4   A dog runs ...`.
_BARS = re.compile(r"([^|]+?)\s*\|\s*\d{1,4}\s*(?:\||\s)\s*(.*)")
_VAL = 1000  # images of IAPR TC-12 that are drawn from the train list, at most a tenth
_log = logging.getLogger(__name__)


def _listed(
    source: Source, lists: Mapping[pathlib.Path, str], images: Container[str], ending: str = ""
) -> dict[str, str]:
    """Returns image -> split from the lists of splits; skips names that are not in `images`."""
    splits: dict[str, str] = {}
    for path, split in lists.items():
        for location, line in numbered_lines(path):
            name = nfc(line.strip()).removesuffix(ending)
            if name not in images:
                source.skip(location, f"{name} has no captions")
            elif splits.setdefault(name, split) != split:
                raise ValueError(
                    f"{location}: {name} is also in the list of {splits[name]}. List it once."
                )
    return splits


def _with_splits(
    entries: list[Entry], names: Sequence[str], splits: Mapping[str, str]
) -> list[Entry]:
    """Returns the entries whose name has a split; all entries if there are no splits."""
    if not splits:
        return entries
    pairs = zip(entries, names, strict=True)
    kept = [entry._replace(split=splits[name]) for entry, name in pairs if name in splits]
    if len(kept) < len(entries):
        number = len(entries) - len(kept)
        _log.info(f"note: {number} images are in no list of a split; they are left out")
    return kept


def is_flickr8k(path: pathlib.Path) -> bool:
    """True for a file that begins like `1.jpg#0<TAB>`, or a directory with `Flickr8k.token.txt`."""
    lines = first_lines(path / _TOKENS if path.is_dir() else path, 1)
    return bool(lines) and bool(_TOKEN.match(lines[0].removeprefix("\ufeff")))


def flickr8k(source: Source) -> list[Entry]:
    """Reads the layout `flickr8k`: `Flickr8k.token.txt` with lines `NAME.jpg#NUMBER<TAB>caption`.

    The lists `Flickr_8k.trainImages.txt`, `Flickr_8k.devImages.txt` and `Flickr_8k.testImages.txt`
    beside that file give the splits, with one name per line. Images in none of them are left out.
    If there are no lists, the images have no split. Images are numbered from 0.

    Args:
      source: what to read; `captions` is the file or its directory.

    Returns:
      An entry per image.
    """
    path = source.one_file()
    path = path / _TOKENS if path.is_dir() else path

    def parse(line: str) -> Entry:
        match = _TOKEN.fullmatch(line.rstrip("\r\n"))
        if match is None:
            raise ValueError(f"the line must be NAME#NUMBER, a tab and a caption, not {line!r:.80}")
        return Entry(-1, match[1], None, (match[2],))

    entries = source.entries(numbered_lines(path), parse)
    names = [nfc(entry.file_name) for entry in entries]
    lists = {
        file: split
        for split, ending in _LISTS.items()
        for file in sorted(path.parent.glob(f"*{ending}"))
    }
    return _with_splits(entries, names, _listed(source, lists, set(names)))


def is_flickr30k(path: pathlib.Path) -> bool:
    """True for a file whose first line is `image_name| comment_number| comment`."""
    columns = "".join(first_lines(path, 1)).split("|")
    return [name.strip() for name in columns] == ["image_name", "comment_number", "comment"]


def flickr30k(source: Source) -> list[Entry]:
    """Reads the layout `flickr30k`: `results.csv` with a row per caption and `|` between columns.

    The columns are `image_name`, `comment_number` and `comment`. The released file has a row that
    lacks the second `|`; such a row is read as well. The images have no split, and are numbered
    from 0.

    Args:
      source: what to read; `captions` is the file.

    Returns:
      An entry per image.
    """

    def parse(line: str) -> Entry:
        match = _BARS.fullmatch(line.strip())
        if match is None:
            raise ValueError(
                f"the line must be a name, a number and a caption with | between them: {line!r:.80}"
            )
        return Entry(-1, match[1], None, (match[2],))

    rows = itertools.islice(numbered_lines(source.one_file()), 1, None)
    return source.entries(rows, parse)


def is_iaprtc12(path: pathlib.Path) -> bool:
    """True for an annotation file of IAPR TC-12, such as `25.eng`."""
    return path.suffix == ".eng" and b"<DESCRIPTION" in head(path)


def iaprtc12(source: Source) -> list[Entry]:
    """Reads the layout `iaprtc12`: the annotations of IAPR TC-12, one file per image.

    A file, such as `00/25.eng`, has one description in ISO-8859-1. Its parts between semicolons are
    the captions. `iaprtc12_train_list.txt` and `iaprtc12_test_list.txt`, in the directory of the
    annotations or beside it, give the splits, with lines such as `00/25`. Images in no list are
    left out. Without `iaprtc12_val_list.txt`, a thousand images of the train list, or a tenth if
    that is fewer, are drawn for val. Images are numbered from 0, in the order of their file names.

    Args:
      source: what to read; `captions` is the directory of the annotations. `images` is the folder
        `images` of the download, or the directory that contains this folder.

    Returns:
      An entry per image.
    """
    folder = source.one_file()
    paths = [path for path, _ in files_of([folder], "*.eng")]
    names = [path.relative_to(folder).with_suffix("").as_posix() for path in paths]
    inside = source.images is not None and not (source.images / "images").is_dir()

    def parse(number: int, path: pathlib.Path) -> Entry:
        content = path.read_bytes()
        is_utf8 = content.startswith(b"\xef\xbb\xbf")  # a file that was saved again
        page = content.decode("utf-8-sig" if is_utf8 else "iso-8859-1")
        # No parser of XML: the files have no header, and a bare & in a description is usual.
        description, picture = (_field(page, name) for name in ("DESCRIPTION", "IMAGE"))
        picture = picture.strip().removeprefix("images/") if inside else picture.strip()
        parts = (" ".join(part.split()) for part in description.split(";"))
        return Entry(number, picture, None, tuple(part for part in parts if part))

    entries = source.entries(
        ((str(path), number, path) for number, path in enumerate(paths)), parse, join=False
    )
    lists: dict[pathlib.Path, str] = {}
    for split in SPLITS:
        name = f"iaprtc12_{split}_list.txt"
        both = (folder / name, folder.absolute().parent / name)
        lists |= dict.fromkeys([path for path in both if path.is_file()][:1], split)
    names = [names[entry.id] for entry in entries]
    splits = _listed(source, lists, set(names), ".eng")
    train = sorted(name for name, split in splits.items() if split == "train")
    if train and "val" not in lists.values():
        drawn = random.Random(source.seed).sample(train, min(_VAL, len(train) // 10))
        splits.update(dict.fromkeys(drawn, "val"))
        _log.info(f"note: {len(drawn)} images of the train list are drawn for val")
    return _with_splits(entries, names, splits)


def _field(page: str, name: str) -> str:
    match = re.search(rf"<{name}>(.*?)</{name}>|<{name}\s*/>", page, re.S)
    if match is None:
        raise ValueError(f"the file has no field <{name}>")
    return html.unescape(match[1] or "")
