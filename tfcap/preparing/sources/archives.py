"""Reads data sets that are folders or archives: imagefolder, sidecar files, WebDataset, TFDS."""

import collections
import functools
import os
import pathlib
import tarfile
from collections.abc import Callable, Iterable, Iterator
from typing import Any, BinaryIO

from tfcap import cli
from tfcap.files import read_json
from tfcap.images import ENDINGS
from tfcap.preparing.sources import Entry, FilePart, Source
from tfcap.preparing.sources.splits import files_of, split_name, split_of_path
from tfcap.preparing.sources.tables import (
    METADATA,
    captions_of,
    columns_of,
    entry_of,
    joined,
    json_row,
    numbered_lines,
    parquet_file,
    parquet_rows,
    picture_of,
    row_of,
    split_in,
    table_rows,
    text_lines,
    unmarked,
)

Rows = Iterator[tuple[Any, ...]]

# ---- folders of pictures -----------------------------------------------------------------------

_PICTURES = [f"*{case}" for ending in ENDINGS for case in (ending, ending.upper())]
_METADATA = ("metadata.csv", "metadata.jsonl", METADATA)


def is_imagefolder(path: pathlib.Path) -> bool:
    """True if a directory has metadata files."""
    return bool(path.is_dir() and files_of([path], *_METADATA)) or path.name == METADATA


def imagefolder(source: Source) -> list[Entry]:
    """Reads `metadata.csv`, `.jsonl` or `.parquet` files, each in a directory of pictures.

    This is the layout of Hugging Face's imagefolder. A row has `file_name`, relative to its
    metadata file, and the captions. The split is in the column `split`, or else in the names of
    directories (`train/metadata.csv`). Ids are positions.
    """

    def rows() -> Rows:
        for path, split in files_of([source.one_file()], *_METADATA):
            for place, row in _metadata_rows(path):
                yield place, path.parent.absolute(), row, split

    def parse(folder: pathlib.Path, read: Callable[[], dict[str, Any]], split: str | None) -> Entry:
        row = read()
        entry = entry_of({**row, "path": row["file_name"]})
        split = entry.split or split or split_of_path(pathlib.PurePath(entry.file_name).parent)
        file = os.path.join(folder, entry.file_name)
        return entry._replace(id=-1, own_id=False, id_column="", split=split, file_name=file)

    return source.entries(rows(), parse)


def _metadata_rows(path: pathlib.Path) -> Rows:
    """Yields the place of each row of a metadata file, and a function that returns the row."""
    if path.suffix == ".csv":
        table = table_rows(path, ",")
        names = [name.strip() for name in next(table, ("", []))[1]]
        for place, cells in table:
            yield place, functools.partial(row_of, names, cells)
    elif path.suffix == ".jsonl":
        for place, line in numbered_lines(path):
            yield place, functools.partial(json_row, line)
    else:
        with parquet_file(path) as file:
            for group in range(file.num_row_groups):
                rows = parquet_rows(file, group, file.schema_arrow.names)
                for number, row in enumerate(rows):
                    yield f"{path}: row {number} of row group {group}", functools.partial(dict, row)


def _picture_beside(path: pathlib.Path) -> pathlib.Path | None:
    """Returns the picture with the same name as a text file, or None."""
    pictures = (path.with_name(path.stem + pattern[1:]) for pattern in _PICTURES)
    return next((picture for picture in pictures if picture.exists()), None)


def is_sidecar(path: pathlib.Path) -> bool:
    """True if a directory has a picture with a text file beside it, and no metadata."""
    texts = files_of([path], "*.txt") if path.is_dir() else []
    return any(_picture_beside(file) for file, _ in texts) and not files_of([path], *_METADATA)


def sidecar(source: Source) -> list[Entry]:
    """Reads a folder, also a nested one, of `picture.jpg` with `picture.txt` beside it.

    A text file has one caption per line. The split is in the names of directories (`train/1.jpg`).
    Pictures without a text file are left out, and a printed note counts them. Ids are positions.
    """
    root = source.one_file()
    texts = files_of([root], "*.txt")
    pictures = {text: picture for text, _ in texts if (picture := _picture_beside(text))}
    alone = len(files_of([root], *_PICTURES)) - len(pictures)
    if alone > 0:
        print(f"note: {alone} pictures have no .txt file and are left out", flush=True)

    def parse(text: pathlib.Path) -> Entry:
        lines = (line.strip() for line in text_lines(text))
        split = split_of_path(text.relative_to(root).parent)
        name = str(pictures[text].absolute())
        return Entry(-1, name, split, tuple(line for line in lines if line))

    rows = ((str(text), text) for text in pictures)
    return source.entries(rows, parse)


# ---- WebDataset --------------------------------------------------------------------------------

_KINDS = {"txt": "txt", "json": "json", **{ending[1:]: "picture" for ending in ENDINGS}}


def is_tar(path: pathlib.Path) -> bool:
    """True for a tar file, compressed or not."""
    return path.is_file() and tarfile.is_tarfile(path)


def webdataset(source: Source) -> list[Entry]:
    """Reads tar files whose members with the same key belong together, without unpacking them.

    The key of a member is its name up to the first dot. The captions of a picture (`.jpg`, `.png`,
    `.webp` and others) are in `.json` (`captions`, `caption` or `text`) or in `.txt`, one per line.
    The split is under `split` in the JSON, or else in the name of the tar file. Other members are
    left out. Ids are positions.
    """

    def rows() -> Rows:
        for path, split in files_of(source.captions, "*.tar"):
            with open(path, "rb") as file:
                for sample in _samples(path):
                    name = next(iter(sample.values())).name
                    yield f"{path}: {name!r}", file, path, sample, split

    def parse(
        file: BinaryIO, path: pathlib.Path, sample: dict[str, tarfile.TarInfo], split: str | None
    ) -> Entry:
        picture = sample.get("picture")
        if picture is None:
            raise ValueError("it has captions and no picture")
        values = json_row(_text(file, sample["json"])) if "json" in sample else {}
        captions = captions_of(values, columns_of(tuple(values)).captions)
        if not captions and "txt" in sample:
            lines = _text(file, sample["txt"]).split("\n")
            captions = tuple(line for line in lines if line.strip())
        split = split_in(values) or split
        captions, rejected = unmarked(values, captions)
        content = FilePart(path.absolute(), picture.offset_data, picture.size)
        return Entry(-1, picture.name, split, captions, content=content, rejected=rejected)

    entries = source.entries(rows(), parse, join=False)
    return joined(
        entries, picture_of(entries), source.drawn
    )  # there may be a sample for each caption


def _samples(path: pathlib.Path) -> Iterable[dict[str, tarfile.TarInfo]]:
    """Returns the members of each sample of a tar file: "picture", "txt" or "json" -> member."""
    samples: dict[str, dict[str, tarfile.TarInfo]] = collections.defaultdict(dict)
    try:
        with tarfile.open(path, "r:") as tar:
            for member in tar:
                folder, _, base = member.name.rpartition("/")
                stem, _, ending = base.partition(".")
                kind = _KINDS.get(ending.lower())
                if member.isreg() and stem and kind:  # no hidden files, such as `._1.jpg`
                    samples[f"{folder}/{stem}"].setdefault(kind, member)
        with open(path, "rb") as file:  # tarfile takes a cut header for the end of the file
            file.seek(tar.offset)
            if file.read(512).strip(b"\0"):
                raise tarfile.ReadError("unexpected end of data")
    except tarfile.TarError as error:
        raise ValueError(f"{path} is not a complete, uncompressed tar file: {error}.") from None
    return samples.values()


def _text(file: BinaryIO, member: tarfile.TarInfo) -> str:
    file.seek(member.offset_data)
    return file.read(member.size).decode("utf-8-sig").replace("\r\n", "\n")


# ---- TensorFlow Datasets -----------------------------------------------------------------------

INFO = "dataset_info.json"
_REMEDY = "Prepare it again with TensorFlow Datasets."


def tfds(source: Source) -> list[Entry]:
    """Reads the TFRecord files of `coco_captions` as TensorFlow Datasets has prepared it.

    --captions is a directory such as `tensorflow_datasets/coco_captions`, or its version
    `2014/1.1.0`. The split `restval` joins `train`. Ids are those of COCO. Pictures are read from
    the records when they are needed.
    """
    root = source.one_file()
    infos = files_of([root], INFO)
    if len(infos) != 1:
        raise ValueError(
            f"{root} has {len(infos)} files {INFO}. Give the directory of one version."
        )
    folder = infos[0][0].parent

    def rows() -> Rows:
        info = read_json(infos[0][0], _REMEDY)
        for split in info["splits"]:
            name = f"{info['name']}-{split['name']}.{info.get('fileFormat', 'tfrecord')}"
            lengths = split["shardLengths"]
            for number, length in enumerate(lengths):
                path = folder / f"{name}-{number:05d}-of-{len(lengths):05d}"
                records = cli.progress(_records(path), int(length), f"reading {path}", "record")
                for place, record in enumerate(records):
                    yield f"{path}: record {place}", path, split["name"], *record

    try:
        return source.entries(rows(), _tfds_entry, join=False)
    except (KeyError, TypeError) as error:
        raise ValueError(f"{infos[0][0]} has no {error}. {_REMEDY}") from None


def _records(path: pathlib.Path) -> Iterator[tuple[int, bytes]]:
    """Yields the position and the content of each record. Raises ValueError for a damaged file."""
    import tensorflow as tf

    from tfcap.data.prepared import without_tuning
    from tfcap.data.record import FRAMING

    position = 12  # a length and a checksum stand before a record
    try:
        for record in without_tuning(tf.data.TFRecordDataset(str(path))).as_numpy_iterator():
            yield position, record
            position += len(record) + FRAMING
    except tf.errors.OpError as error:
        reason = " ".join(str(error).split())[:120]
        raise ValueError(f"{path} cannot be read: {reason}. {_REMEDY}") from None


def _tfds_entry(path: pathlib.Path, split: str, start: int, record: bytes) -> Entry:
    """Returns the entry of a record whose content begins at the position `start` of its file."""
    import tensorflow as tf

    features: Any = tf.train.Example.FromString(record).features.feature
    names = features["image/filename"].bytes_list.value
    numbers = features["image/id"].int64_list.value
    pictures = features["image"].bytes_list.value
    if not (names and numbers and pictures):
        raise ValueError("it must have the features image, image/filename and image/id")
    captions = features["captions/text"].bytes_list.value
    # The message holds the picture as it is, so that it can be read from the file later.
    offset = start + record.find(pictures[0])
    return Entry(
        numbers[0],
        names[0].decode("utf-8", "replace"),
        split_name(split),
        tuple(text.decode("utf-8", "surrogateescape") for text in captions),
        content=FilePart(path.absolute(), offset, len(pictures[0])),
        own_id=True,
    )
