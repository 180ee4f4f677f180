"""Reads the English annotations of IAPR TC-12."""

import html
import pathlib
import random
import re

from tfcap.preparing.sources import places, text
from tfcap.preparing.sources.entry import Given, ImageEntry, file_name, head, reader

_ENDING = ".eng"
_LISTS = {split: f"iaprtc12_{split}_list.txt" for split in ("train", "val", "test")}
_FIELDS = {
    name: re.compile(rf"<{name}>(.*?)</{name}>|<{name}\s*/>", re.S)
    for name in ("DESCRIPTION", "IMAGE")
}
_MOST_BYTES = 1 << 20  # of one annotation
_VAL = 1000  # images that are drawn from the train list, at most a tenth


def _is_annotation(name: str) -> bool:
    return name.endswith(_ENDING)


def recognises(path: pathlib.Path) -> bool:
    """Returns whether a directory has annotations."""
    files = places.below(path, _is_annotation)
    return bool(files) and b"<DESCRIPTION" in head(files[0])


@reader("iaprtc12", recognises)
def iaprtc12(given: Given) -> list[ImageEntry]:
    """Reads a directory of annotations, one file per image such as `00/25.eng`.

    Each file has one description in ISO-8859-1; the parts between its semicolons are the captions.
    `iaprtc12_train_list.txt` and `iaprtc12_test_list.txt`, in the directory or beside it, give the
    splits, with lines such as `00/25`; other images are left out. There is no list for val:
    a thousand images of the train list are drawn, unless `iaprtc12_val_list.txt` is there. Without
    lists there are no splits. Ids are positions in the sorted list of files.

    Args:
      given: --captions is the directory `annotations_complete_eng`; --images the one with `images`,
        or `images` itself.

    Raises:
      ValueError: no annotations, a file without description or picture, a name outside the
        directory of images, or an image in two lists.
      OSError: a file cannot be read.
    """
    folder = given.one_file()
    files = {
        path.relative_to(folder).with_suffix("").as_posix(): path
        for path in places.below(folder, _is_annotation)
    }
    if not files:
        raise ValueError(
            f"--captions must be the directory annotations_complete_eng. Received: {folder}, which "
            f"has no file NAME{_ENDING}. Correct the path."
        )
    splits = _splits(folder, files, given)
    # --images may be the directory `images`, which the names in the files begin with.
    inside = given.images is not None and not (given.images / "images").is_dir()
    entries = []
    for number, (name, path) in enumerate(files.items()):
        if splits and name not in splits:
            continue
        try:
            picture, captions = _annotation(path)
        except ValueError as error:
            raise ValueError(f"{path}: {error}") from None
        picture = picture.removeprefix("images/") if inside else picture
        entries.append(ImageEntry(number, picture, splits.get(name), captions))
    if len(entries) < len(files):
        print(f"note: {len(files) - len(entries)} images are in no list of a split", flush=True)
    return entries


def _annotation(path: pathlib.Path) -> tuple[str, tuple[str, ...]]:
    """Returns the name of the picture and the captions of one file."""
    with open(path, "rb") as file:
        content = file.read(_MOST_BYTES + 1)
    if len(content) > _MOST_BYTES:
        raise ValueError(f"an annotation must have at most {_MOST_BYTES} bytes. Received: more")
    is_utf8 = content.startswith(b"\xef\xbb\xbf")  # a file that was saved again
    page = content.decode("utf-8-sig" if is_utf8 else "iso-8859-1")
    # No parser of XML: the files have no header, and a bare & in a description is usual.
    fields = {name: pattern.search(page) for name, pattern in _FIELDS.items()}
    missing = [name for name, field in fields.items() if field is None]
    if missing:
        raise ValueError(f"must have the field <{missing[0]}>. Received: {page[:60]!r}")
    description, picture = (html.unescape(field[1] or "") for field in fields.values() if field)
    parts = [" ".join(part.split()) for part in description.split(";")]
    return file_name(picture.strip()), tuple(part for part in parts if part)


def _splits(folder: pathlib.Path, known: dict[str, pathlib.Path], given: Given) -> dict[str, str]:
    """Returns the split of each image that the lists have, by names such as `00/25`."""
    splits: dict[str, str] = {}
    listed = set()
    for split, file in _LISTS.items():
        paths = [place / file for place in (folder, folder.absolute().parent)]
        path = next((path for path in paths if path.is_file()), None)
        if path is None:
            continue
        listed.add(split)
        for number, line in enumerate(text.lines(path, text.encoding_of(path)), 1):
            name = line.strip().removesuffix(_ENDING)
            if name and name not in known:
                given.skip(f"{path}: line {number}", f"{name} has no annotation")
            elif name and splits.setdefault(name, split) != split:
                raise ValueError(
                    f"{path}: line {number}: an image must be in one list. Received: {name}, which "
                    f"is also in that of {splits[name]}"
                )
    if "train" in listed and "val" not in listed:
        train = sorted(name for name, split in splits.items() if split == "train")
        drawn = random.Random(given.seed).sample(train, min(_VAL, len(train) // 10))
        splits.update(dict.fromkeys(drawn, "val"))
        print(f"note: {len(drawn)} images of {_LISTS['train']} are drawn for val", flush=True)
    return splits
