"""Reads `coco_captions` as TensorFlow Datasets has prepared it; downloads nothing."""

import os
import pathlib
import re
from collections.abc import Iterator
from typing import Any, NamedTuple

from tfcap import cli
from tfcap.files import read_json
from tfcap.preparing.sources.content import FilePart
from tfcap.preparing.sources.entry import (
    Given,
    ImageEntry,
    caption,
    file_name,
    image_number,
    reader,
    require_unique,
    split_name,
)

_INFO = "dataset_info.json"
_TEMPLATE = "{DATASET}-{SPLIT}.{FILEFORMAT}-{SHARD_X_OF_Y}"
_LENGTH = 12  # bytes before a record: its length and a checksum
_MOST_RECORD = 1 << 28  # bytes
_REMEDY = "Prepare it again with TensorFlow Datasets."


class _Shard(NamedTuple):
    """A file of records.

    Attributes:
      path: the file.
      split: "train", "val" or "test".
      records: how many dataset_info.json says it has.
    """

    path: pathlib.Path
    split: str
    records: int


def _folders(path: pathlib.Path) -> list[pathlib.Path]:
    """Returns the directories of prepared data: `path`, or `2014/1.1.0` and the like below it."""
    for pattern in (_INFO, f"*/{_INFO}", f"*/*/{_INFO}"):
        if files := sorted(path.glob(pattern)):
            return [file.parent for file in files]
    return []


def recognises(path: pathlib.Path) -> bool:
    """Returns whether a directory has data that TensorFlow Datasets prepared."""
    return path.is_dir() and bool(_folders(path))


@reader("tfds", recognises)
def tfds(given: Given) -> list[ImageEntry]:
    """Reads the TFRecord files of `coco_captions`.

    `restval` is a split of its own there and joins `train`. Ids are those of COCO. Pictures are
    read from the records when they are needed.

    Args:
      given: --captions is a directory such as `tensorflow_datasets/coco_captions`, or its version
        `2014/1.1.0`; --images is not needed.

    Raises:
      ValueError: no such directory or several, another file format, a missing or damaged file, or
        a record without the features of `coco_captions`.
    """
    place = given.one_file()
    folders = _folders(place)
    if len(folders) != 1:
        raise ValueError(
            f"--captions must be one directory with {_INFO}. Received: {place}, which has "
            f"{len(folders)}. Give the directory of one version, such as coco_captions/2014/1.1.0."
        )
    shards = _shards(folders[0])
    entries: list[ImageEntry] = []
    for shard in shards:
        records = cli.progress(_records(shard), shard.records, f"reading {shard.path}", "record")
        for number, (offset, record) in enumerate(records):
            try:
                entries.append(_entry(record, shard, offset))
            except ValueError as error:
                raise ValueError(f"{shard.path}: record {number}: {error}. {_REMEDY}") from None
    require_unique(entries, folders[0])
    return entries


def _shards(folder: pathlib.Path) -> list[_Shard]:
    """Lists the files that dataset_info.json promises."""
    path = folder / _INFO
    info = read_json(path, _REMEDY)
    try:
        name, splits = info["name"], info["splits"]
        kind = info.get("fileFormat", "tfrecord")
        if kind != "tfrecord":
            raise ValueError(
                f"the file format must be tfrecord. Received: {kind!r:.80}. Prepare it again with "
                "--file_format=tfrecord"
            )
        shards = []
        for split in splits:
            lengths = [int(length) for length in split["shardLengths"]]
            template = split.get("filepathTemplate", _TEMPLATE)
            label = f"{name}-{split['name']}"
            good = template == _TEMPLATE and re.fullmatch(r"[\w-]+", label)
            if not good or not lengths or min(lengths) < 0:
                raise ValueError(f"a split must have files {_TEMPLATE}. Received: {split!r:.120}")
            for number, length in enumerate(lengths):
                file = folder / f"{label}.tfrecord-{number:05d}-of-{len(lengths):05d}"
                shards.append(_Shard(file, split_name(split["name"]), length))
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        reason = f"no {error}" if isinstance(error, KeyError) else error
        raise ValueError(f"{path}: {reason}. {_REMEDY}") from None
    if not shards:
        raise ValueError(f"{path} must have splits. Received: none. {_REMEDY}")
    return shards


def _records(shard: _Shard) -> Iterator[tuple[int, bytes]]:
    """Yields the position and the content of each record.

    Raises:
      ValueError: the file cannot be read, is damaged, or has another number of records.
    """
    import tensorflow as tf

    from tfcap.data.prepared import without_tuning

    positions = _positions(shard.path)  # first: TensorFlow takes memory for any length
    if len(positions) != shard.records:
        raise ValueError(
            f"{shard.path} must have {shard.records} records. Received: {len(positions)}. {_REMEDY}"
        )
    try:
        dataset = without_tuning(tf.data.TFRecordDataset(str(shard.path)))  # checks checksums
        yield from zip(positions, dataset.as_numpy_iterator(), strict=True)
    except (tf.errors.OpError, OSError) as error:
        reason = " ".join(str(error).split())[:120]
        raise ValueError(f"{shard.path} is damaged: {reason}. {_REMEDY}") from None


def _positions(path: pathlib.Path) -> list[int]:
    """Returns where the content of each record begins, by their lengths alone."""
    from tfcap.data.record import FRAMING

    starts: list[int] = []
    start = 0
    try:
        size = os.path.getsize(path)
        with open(path, "rb") as file:
            while start < size:
                file.seek(start)
                length = int.from_bytes(file.read(8), "little")
                end = start + length + FRAMING
                if length > _MOST_RECORD or end > size:
                    raise ValueError(
                        f"{path}: record {len(starts)}: its length must be at most {_MOST_RECORD} "
                        f"and fit into the file. Received: {length}. {_REMEDY}"
                    )
                starts.append(start + _LENGTH)
                start = end
    except OSError as error:
        raise ValueError(f"Cannot read {path}: {error.strerror or error}. {_REMEDY}") from None
    return starts


def _entry(record: bytes, shard: _Shard, start: int) -> ImageEntry:
    """Returns the entry of a record whose content begins at the byte `start` of its file."""
    import tensorflow as tf
    from google.protobuf.message import DecodeError

    try:
        features: Any = tf.train.Example.FromString(record).features.feature
    except DecodeError as error:
        raise ValueError(f"must be a tf.train.Example: {error}") from None
    name = _values(features, "image/filename", "bytes_list")
    number = _values(features, "image/id", "int64_list")
    pictures = _values(features, "image", "bytes_list")
    if min(map(len, (name, number, pictures))) < 1:
        raise ValueError("must have the features image, image/filename and image/id")
    texts = _values(features, "captions/text", "bytes_list")
    # The message holds the picture as it is, so that it can be read from the file later.
    offset = record.find(pictures[0])
    return ImageEntry(
        image_number(number[0], "image/id"),
        file_name(name[0].decode("utf-8", "replace")),
        shard.split,
        tuple(caption(text.decode("utf-8", "surrogateescape")) for text in texts),
        content=FilePart(shard.path.absolute(), start + offset, len(pictures[0])),
        own_id=True,
    )


def _values(features: Any, key: str, kind: str) -> list[Any]:
    """Returns the values of a feature; none if it is missing or of another kind."""
    return list(getattr(features[key], kind).value) if key in features else []
