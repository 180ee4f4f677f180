"""Reads X-modaler's annotations of Flickr30k, a JSON object per line."""

import pathlib

from tfcap.preparing.sources import places, text
from tfcap.preparing.sources.entry import Given, ImageEntry, file_name, head, reader
from tfcap.preparing.sources.fields import captions, json_object
from tfcap.preparing.sources.rows import Rows

_ENDINGS = (".jsonl", ".jsonline", ".jsonlines")


def _is_file(name: str) -> bool:
    return name.endswith(_ENDINGS)


def recognises(path: pathlib.Path) -> bool:
    """Returns whether a file, or the first one of a directory, begins with such an object."""
    files = places.below(path, _is_file) if path.is_dir() else [path]
    lines = text.first_lines(head(files[0]), 1) if files else []
    try:
        row = json_object(lines[0]) if lines else {}
    except ValueError:
        return False
    return "img_path" in row and "sentences" in row


@reader("xmodaler", recognises)
def xmodaler(given: Given) -> list[ImageEntry]:
    """Reads lines such as `{"img_path": "1.jpg", "sentences": ["A dog runs .", "The dog !"]}`.

    The names of the files tell the splits, as in `all_data_final_train_2014.jsonline`. Ids are
    positions in all files together. A line that cannot be used is skipped.

    Args:
      given: --captions are the files, or a directory of them.

    Raises:
      ValueError: no file, or no usable line.
      OSError: a file cannot be read.
    """
    images = Rows()
    for path, split in places.find(given.captions, _is_file):
        for number, line in enumerate(text.lines(path, text.encoding_of(path)), 1):
            if not line.strip():
                continue
            try:
                row = json_object(line)
                if "img_path" not in row:
                    raise ValueError(f"it must have 'img_path'. Received: {sorted(row)[:5]}")
                images.add(
                    file_name(row["img_path"], given.images), captions(row, ["sentences"]), split
                )
            except ValueError as error:
                given.skip(f"{path}: line {number}", error)
    if not len(images):
        raise ValueError(f"{given.captions[0]} must have a usable line. Received: none.")
    return images.entries()
