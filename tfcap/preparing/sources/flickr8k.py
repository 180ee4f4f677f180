"""Reads the token file of Flickr8k with the lists of its splits, or that file of Flickr30k."""

import pathlib
import re

from tfcap.preparing.sources import text
from tfcap.preparing.sources.entry import Given, ImageEntry, caption, file_name, head, reader
from tfcap.preparing.spelling import nfc

_TOKENS = "Flickr8k.token.txt"
# The end of the file that lists the pictures of a split, such as Flickr_8k.devImages.txt.
_LISTS = {"train": "trainImages.txt", "val": "devImages.txt", "test": "testImages.txt"}
_LINE = re.compile(rb"(\xef\xbb\xbf)?[^\t\r\n#]+#\d+\t")


def recognises(path: pathlib.Path) -> bool:
    """Returns whether a file, or the token file of a directory, begins like `1.jpg#0<TAB>`."""
    return bool(_LINE.match(head(path / _TOKENS) or head(path)))


@reader("flickr8k", recognises)
def flickr8k(given: Given) -> list[ImageEntry]:
    """Reads `Flickr8k.token.txt`, whose lines are `NAME.jpg#NUMBER<TAB>caption`.

    The lists `Flickr_8k.trainImages.txt`, `.devImages.txt` and `.testImages.txt` beside it give the
    splits, a name a line; images in none of them are left out. Without lists there are no splits.
    The released token file also names a picture that does not exist: prepare skips it. Ids are
    positions in the file.

    Args:
      given: --captions is the file, or the directory that holds it under its own name.

    Raises:
      ValueError: a line that is not as above, a caption number twice, a name outside the directory
        of images, or an image in two lists.
      OSError: a file cannot be read.
    """
    path = given.one_file()
    path = path / _TOKENS if path.is_dir() else path
    captions = _captions(path, given.images)
    splits = _splits(path.parent, captions, given)
    entries = [
        ImageEntry(number, name, splits.get(name), tuple(numbered.values()))
        for number, (name, numbered) in enumerate(captions.items())
        if not splits or name in splits
    ]
    if len(entries) < len(captions):
        print(
            f"note: {len(captions) - len(entries)} images of {path.name} are in no list of a split;"
            " they are left out",
            flush=True,
        )
    return entries


def _captions(path: pathlib.Path, images: pathlib.Path | None) -> dict[str, dict[int, str]]:
    """Returns the captions of each image by their numbers, in the order of the file."""
    captions: dict[str, dict[int, str]] = {}
    for number, line in enumerate(text.lines(path, text.encoding_of(path)), 1):
        if not line.strip():
            continue
        try:
            before, tab, sentence = line.partition("\t")
            name, mark, place = before.rpartition("#")
            if not (tab and mark and place.isascii() and place.isdecimal() and len(place) < 5):
                raise ValueError(
                    f"must be NAME#NUMBER, a tab and a caption. Received: {line!r:.80}"
                )
            own = captions.setdefault(file_name(name, images), {})
            if int(place) in own:
                raise ValueError(f"must be the only caption {place} of {name}. Received: a second")
            own[int(place)] = caption(sentence.rstrip("\r\n"))
        except ValueError as error:
            raise ValueError(f"{path}: line {number}: {error}") from None
    if not captions:
        raise ValueError(f"{path} must have at least one caption. Received: an empty file.")
    return captions


def _splits(folder: pathlib.Path, known: dict[str, dict[int, str]], given: Given) -> dict[str, str]:
    """Returns the split of each image that the lists in `folder` have."""
    splits: dict[str, str] = {}
    spelled = {nfc(name): name for name in known}
    for split, ending in _LISTS.items():
        for path in sorted(folder.glob(f"*{ending}")):
            for number, line in enumerate(text.lines(path, text.encoding_of(path)), 1):
                name = spelled.get(nfc(line.strip()), line.strip())
                place = f"{path}: line {number}"
                if not name:
                    continue
                if name not in known:
                    given.skip(place, f"{name} has no captions")
                elif splits.setdefault(name, split) != split:
                    raise ValueError(
                        f"{place}: an image must be in one list only. Received: {name}, which is "
                        f"also in the list of {splits[name]}. Remove it from one of them."
                    )
    return splits
