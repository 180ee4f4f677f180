"""Reads data sets whose captions and splits are lines of text, such as Flickr8k and Multi30k."""

import gzip
import html
import itertools
import logging
import pathlib
import random
import re
import zlib
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence

from tfcap.errors import UsageError
from tfcap.preparing.sources.entry import SPLITS, Entry, Source, head
from tfcap.preparing.sources.splits import files_of, split_of
from tfcap.preparing.sources.tables import first_lines, numbered_lines
from tfcap.preparing.spelling import nfc

_TOKENS = "Flickr8k.token.txt"
# The end of the file that lists the pictures of a split, such as Flickr_8k.devImages.txt.
_LISTS = {"train": "trainImages.txt", "val": "devImages.txt", "test": "testImages.txt"}
_TOKEN = re.compile(r"([^\t]+)#\d{1,4}\t(.*)")
_LANGUAGE_TOKEN = re.compile(r"(\S+)\.jpg#[a-z]+#\d{1,4}\s(.*)")  # of Flickr8k-CN and its like
_NUMBERED = re.compile(r"(\d+)\s+(.*)")
_PARALLEL = re.compile(r"(\w+?)(?:\.\d)?\.([a-z]{2,3})(?:\.gz)?")  # train.de.gz, train.1.de
# One row of the released file lacks its second bar: `2199200615.jpg| 4   A dog runs ...`.
_BARS = re.compile(r"\s*([^|]+?)\s*\|\s*\d{1,4}\s*(?:\||\s)\s*(.*?)\s*")
_MOST = 1 << 27  # bytes of a text of Multi30k and its like, decompressed
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
    if number := len(entries) - len(kept):
        _log.info(f"note: {number} images are in no list of a split; they are left out")
    return kept


def _of_lines(
    source: Source,
    lines: Iterable[tuple[str, str]],
    pattern: re.Pattern[str],
    form: str,
    lists: Mapping[pathlib.Path, str],
    ending: str = "",
    names: Mapping[str, str] | None = None,
) -> list[Entry]:
    """Reads lines with the name of a picture and a caption, and the lists of splits beside them.

    Args:
      source: what to read.
      lines: the location and the text of each line.
      pattern: what a line must be; its groups are the name and the caption.
      form: what stands before the caption, for errors.
      lists: list -> split.
      ending: the ending of file names, which the lines and the lists leave out.
      names: name in a line -> file name, where they differ.
    """

    def parse(line: str) -> Entry:
        match = pattern.fullmatch(line.rstrip("\r\n"))
        if match is None:
            raise ValueError(f"the line must be {form} and a caption, not {line!r:.80}")
        return Entry(-1, (names or {}).get(match[1], match[1] + ending), None, (match[2],))

    entries = source.entries(lines, parse)
    used = [nfc(entry.file_name).removesuffix(ending) for entry in entries]
    return _with_splits(entries, used, _listed(source, lists, set(used), ending))


def is_flickr8k(path: pathlib.Path) -> bool:
    """True for a file that begins like `1.jpg#0<TAB>`, or a directory with `Flickr8k.token.txt`."""
    lines = first_lines(path / _TOKENS if path.is_dir() else path, 1)
    line = lines[0].removeprefix("\ufeff") if lines else ""
    return bool(_TOKEN.match(line) or _LANGUAGE_TOKEN.match(line))


def flickr8k(source: Source) -> list[Entry]:
    """Reads the layout `flickr8k`: `Flickr8k.token.txt` with lines `NAME.jpg#NUMBER<TAB>caption`.

    The lists `Flickr_8k.trainImages.txt`, `Flickr_8k.devImages.txt` and `Flickr_8k.testImages.txt`
    beside that file give the splits, with one name per line. Images in none of them are left out.
    If there are no lists, the images have no split. Images are numbered from 0. Flickr8k-CN has
    lines `NAME.jpg#zhc#NUMBER caption`, and the lists `flickr8ktrain.txt` and so on.

    Args:
      source: what to read; `captions` is the file or its directory.
    """
    path = source.one_file()
    path = path / _TOKENS if path.is_dir() else path
    has_language = any(map(_LANGUAGE_TOKEN.match, first_lines(path, 1)))
    lists = {
        file: split
        for split, name in _LISTS.items()
        for file in sorted(path.parent.glob(f"*[k_]{split}.txt" if has_language else f"*{name}"))
        if file != path
    }
    lines = numbered_lines(path)
    if has_language:
        return _of_lines(source, lines, _LANGUAGE_TOKEN, "NAME.jpg#CODE#NUMBER", lists, ".jpg")
    return _of_lines(source, lines, _TOKEN, "NAME#NUMBER, a tab", lists)


def _lists_beside(path: pathlib.Path) -> dict[pathlib.Path, str]:
    """Returns the lists `filenames_train.txt` and so on beside a file, and their splits."""
    lists = [*path.parent.glob("filenames_*.txt"), *path.parent.glob("*/filenames_*.txt")]
    return {file: split for file in sorted(lists) if (split := split_of(file.stem))}


def is_numbered(path: pathlib.Path) -> bool:
    """True for lines with a number and a caption, beside lists such as `filenames_train.txt`."""
    return any(map(_NUMBERED.fullmatch, first_lines(path, 1))) and bool(_lists_beside(path))


def numbered(source: Source) -> list[Entry]:
    """Reads the layout `numbered` of UCM-Captions and Sydney-Captions: lines `12 A caption .`.

    The number is the name of the picture without ending, as in the lists `filenames_train.txt`,
    `filenames_val.txt` and `filenames_test.txt`, which give the splits.

    Args:
      source: what to read; `captions` is the file.

    Returns:
      An entry per image in a list.
    """
    path = source.one_file()
    lists = _lists_beside(path)
    lines = (line.strip() for file in lists for _, line in numbered_lines(file))
    names = {pathlib.PurePath(name).stem: name for name in lines}
    return _of_lines(source, numbered_lines(path), _NUMBERED, "a number", lists, names=names)


def _parallel(path: pathlib.Path) -> tuple[pathlib.Path, str] | None:
    """Returns the list of pictures for a file such as `raw/train.de.gz`, and its language."""
    match = _PARALLEL.fullmatch(path.name)
    folders = path.absolute().parents[:2] if match else ()
    lists = [folder / "image_splits" / f"{match[1]}.txt" for folder in folders if match]
    return next(((file, match[2]) for file in lists if match and file.is_file()), None)


def is_parallel(path: pathlib.Path) -> bool:
    """True for a text of Multi30k beside its lists of pictures, or a directory of such texts."""
    return any(_parallel(file) for file, _ in files_of([path], "*.??", "*.gz"))


def parallel(source: Source) -> list[Entry]:
    """Reads the layout `parallel` of Multi30k: line i of a text describes line i of a list.

    The texts are `raw/train.de.gz` and so on, the lists `image_splits/train.txt`. The split is in
    the name. `source.language` tells the language, if there are texts in several.

    Args:
      source: what to read; `captions` are texts or their directory.
    """
    files = [file for file, _ in files_of(source.captions, "*.??", "*.gz")]
    files = [f for f in files if f.suffix != ".gz" or f.with_suffix("") not in files]
    pairs = {file: pair for file in files if (pair := _parallel(file))}
    languages = sorted({language for _, language in pairs.values()})
    if source.language.lower() not in languages and (source.language or len(languages) > 1):
        raise UsageError(f"Give as `language` one of {', '.join(languages)}: one is read.")

    def rows() -> Iterator[tuple[str, str, str, str | None]]:
        for path, (names, language) in pairs.items():
            if source.language.lower() not in ("", language):
                continue
            lines, listed = (_text(p).removesuffix("\n").split("\n") for p in (path, names))
            if len(lines) != len(listed):
                raise ValueError(
                    f"{path} has {len(lines)} lines, but {names} has {len(listed)}. Line i of one "
                    "belongs to line i of the other: copy both again."
                )
            for number, (line, name) in enumerate(zip(lines, listed, strict=True), 1):
                yield f"{path}: line {number}", line, name, split_of(names.stem)

    def parse(line: str, name: str, split: str | None) -> Entry:
        return Entry(-1, name.strip().partition("#")[0], split, (line.strip(),))

    return source.entries(rows(), parse)


def _text(path: pathlib.Path) -> str:
    """Returns the text of a file, which may be compressed; ValueError if it cannot be read."""
    try:
        with (gzip.open if path.suffix == ".gz" else open)(path, "rb") as file:
            content = file.read(_MOST + 1)
        if len(content) > _MOST:
            raise ValueError(f"it has more than {_MOST} bytes")
        return content.decode("utf-8-sig")
    except (OSError, EOFError, zlib.error, ValueError) as error:
        raise ValueError(f"{path} cannot be read: {error}. Copy it again.") from None


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
    """
    lines = itertools.islice(numbered_lines(source.one_file()), 1, None)
    return _of_lines(source, lines, _BARS, "a name, a bar, a number, a bar", {})


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
