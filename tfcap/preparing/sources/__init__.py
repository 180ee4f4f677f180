"""Reads captions: every layout becomes a list of `Entry`, one per image.

`rows`, `parquet`, `json_files`, `text_lists` and `archives` have a function per layout; `READERS`
lists them. Whatever a file is, it becomes rows (`rows`, `tables`), and one module knows what the
names and values in a row mean (`names`). `splits` divides the entries into train, val and test.
"""

import pathlib
from collections.abc import Callable, Sequence
from typing import NamedTuple

from tfcap.preparing.sources import (
    archives,
    contents,
    json_files,
    parquet,
    rows,
    splits,
    text_lists,
)
from tfcap.preparing.sources.entry import Entry, Source, head, names_of


class Layout(NamedTuple):
    """A layout of caption files that prepare can read.

    Attributes:
      read: a function that reads the files of a `Source`, and returns their images.
      recognises: a function that returns whether a file or directory has this layout. It looks at
        the beginning of the file, and never raises. The argument is a path of `captions`; for a
        layout without a caption file, it is the path of `images`.
    """

    read: Callable[[Source], list[Entry]]
    recognises: Callable[[pathlib.Path], bool]


def _first(
    pattern: str, recognises: Callable[[pathlib.Path], bool]
) -> Callable[[pathlib.Path], bool]:
    """Makes a `Layout.recognises` that checks the first file in a directory."""
    return lambda path: any(recognises(f) for f, _ in splits.files_of([path], pattern)[:1])


_is_karpathy = json_files.begins("images", "filename", "split")
_without_ids = rows.reader(rows.in_json, lambda entry, _: entry.without_id(), is_named=True)
_is_msrvtt = json_files.begins("video_id")


def _is_json(path: pathlib.Path) -> bool:
    """True for a JSON object of rows in no other layout."""
    others = (_is_karpathy, json_files.is_coco, _is_msrvtt)
    return rows.is_object(path) and not any(recognises(path) for recognises in others)


READERS = {  # by the value of `source`
    "csv": Layout(rows.reader(rows.in_table), lambda path: rows.is_table(path, ";,")),
    "tsv": Layout(rows.reader(rows.in_table), lambda path: rows.is_table(path, "\t")),
    "jsonl": Layout(rows.reader(rows.in_json), rows.is_jsonl),
    "json": Layout(rows.reader(rows.in_object), _is_json),
    # X-modaler's annotations of Flickr30k, `{"img_path": "1.jpg", "sentences": ["A dog."]}`, and
    # BLIP's lists. Neither has ids of images: the `image_id` of BLIP is not that of COCO.
    "xmodaler": Layout(_without_ids, _first("*.jsonl*", rows.is_xmodaler)),
    "blip": Layout(_without_ids, rows.is_blip),
    "gif": Layout(rows.reader(rows.in_clips, rows.of_clip), rows.is_gif),
    "clips": Layout(rows.reader(rows.in_clips, rows.of_clip), rows.is_clips),
    "parquet": Layout(parquet.read_parquet, _first("*.parquet", parquet.is_parquet)),
    "karpathy": Layout(json_files.karpathy, _is_karpathy),
    "coco": Layout(json_files.coco, json_files.is_coco),
    "msrvtt": Layout(json_files.msrvtt, _is_msrvtt),
    "flickr8k": Layout(text_lists.flickr8k, text_lists.is_flickr8k),
    "flickr30k": Layout(text_lists.flickr30k, text_lists.is_flickr30k),
    "numbered": Layout(text_lists.numbered, text_lists.is_numbered),
    "parallel": Layout(text_lists.parallel, text_lists.is_parallel),
    "iaprtc12": Layout(text_lists.iaprtc12, _first("*.eng", text_lists.is_iaprtc12)),
    "imagefolder": Layout(archives.imagefolder, archives.is_imagefolder),
    "sidecar": Layout(archives.sidecar, archives.is_sidecar),
    "webdataset": Layout(archives.webdataset, _first("*.tar", archives.is_tar)),
    "tfds": Layout(archives.tfds, _first(archives.INFO, archives.is_tfds)),
}


def recognise(paths: Sequence[pathlib.Path]) -> str:
    """Finds the layout of caption files, for `source=auto`.

    Args:
      paths: files or directories; all must have the same layout.

    Returns:
      The name of the layout, a key of `READERS`.

    Raises:
      ValueError: a path does not exist, or no layout or several layouts fit all paths.
    """
    for path in paths:
        if not path.exists():
            raise ValueError(f"There is no file or directory {path}. Correct `captions`.")
    fitting = [name for name, layout in READERS.items() if all(map(layout.recognises, paths))]
    if len(fitting) == 1:
        return fitting[0]
    if fitting:
        raise ValueError(
            f"{names_of(paths)} fits the layouts {', '.join(fitting)}. Say which one it is, for "
            f"example with `source={fitting[0]}`."
        )
    for file, _ in splits.files_of(paths, "*.parquet")[:1]:
        if head(file, 4) == b"PAR1":
            parquet.require_pictures(file)  # says what is missing
    for path in paths:
        if any(layout.recognises(path) for layout in READERS.values()):
            continue
        if unknown := archives.unknown_folder(path):
            raise ValueError(unknown)
        if path.suffix.lower() in (".csv", ".tsv", ".jsonl"):
            raise ValueError(rows.unknown_columns(path))
        raise ValueError(contents.unknown(path))
    raise ValueError(
        f"{names_of(paths)} have different layouts. Give files of one layout, or prepare each "
        "layout into a directory of its own."
    )
