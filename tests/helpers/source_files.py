"""Small data sets in the layouts that others publish, with the traps of those layouts.

Each function writes one into a folder and returns what the command gets.
"""

import csv
import io
import json
import pathlib
import tarfile
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from PIL import Image

from helpers import sources
from tfcap.preparing.sources import Source


class Made(NamedTuple):
    """A data set: what --captions and --images get, and its files that a reader reads."""

    captions: list[pathlib.Path]
    images: pathlib.Path | None
    files: list[pathlib.Path]

    def source(self, **changes) -> Source:
        """What a layout reads."""
        return Source(tuple(self.captions), self.images, **changes)


def jpeg(seed: int = 0) -> bytes:
    """A small picture."""
    noise = np.random.default_rng(seed).integers(0, 256, (12, 16, 3), np.uint8)
    file = io.BytesIO()
    Image.fromarray(noise).save(file, "JPEG")
    return file.getvalue()


def write_pictures(folder: pathlib.Path, names: list[str]) -> pathlib.Path:
    """Writes a JPEG file per name; returns the folder."""
    for seed, name in enumerate(names):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(jpeg(seed))
    return folder


def flickr8k(folder: pathlib.Path) -> Made:
    """Token file and lists; one picture of the token file does not exist and is in no list."""
    text = folder / "Flickr8k_text"
    text.mkdir()
    names = [f"{number}_5f.jpg" for number in range(7)]
    rows = [f"{name}#{place}\tA dog runs {place} ." for name in names for place in range(2)]
    rows += ["2258277193_586949ec62.jpg.1#0\tPeople wait for the subway ."]
    token = text / "Flickr8k.token.txt"
    token.write_bytes(("\n".join(rows) + "\n").encode())
    lists = {"train": names[:4], "dev": names[4:5], "test": names[5:6]}
    files = [token]
    for split, own in lists.items():
        files.append(text / f"Flickr_8k.{split}Images.txt")
        files[-1].write_text("\n".join(own) + "\n")
    return Made([token], write_pictures(folder / "Flicker8k_Dataset", names), files)


def flickr30k(folder: pathlib.Path) -> Made:
    """results.csv, one row of which lacks its second bar."""
    names = [f"{number}00.jpg" for number in range(20)]
    rows = ["image_name| comment_number| comment"]
    rows += [f"{name}| {place}| A man , in blue ." for name in names for place in range(5)]
    rows[5] = f"{names[0]}| 4   A dog runs across the grass ."
    path = folder / "results.csv"
    path.write_text("\n".join(rows) + "\n")
    return Made([path], write_pictures(folder / "flickr30k_images", names), [path])


def xmodaler(folder: pathlib.Path) -> Made:
    """A file of JSON lines per split, whose names tell the splits."""
    paths, names = [], []
    for split, count in (("train", 4), ("val", 1), ("test", 1)):
        rows = []
        for _ in range(count):
            names.append(f"{len(names)}.jpg")
            rows.append({"sentences": ["A dog .", "Two dogs !"], "img_path": names[-1]})
        paths.append(folder / f"all_data_final_{split}_2014.jsonline")
        paths[-1].write_text("".join(json.dumps(row) + "\n" for row in rows))
    return Made(paths, write_pictures(folder / "images", names), paths)


def imagefolder(folder: pathlib.Path, kind: str = "csv") -> Made:
    """A directory per split with a metadata file and its pictures."""
    root, files = folder / "folder", []
    for split, count in (("train", 4), ("validation", 1), ("test", 1)):
        names = [f"{number}.jpg" for number in range(count)]
        write_pictures(root / split, [*names, "without.jpg"])
        rows = [{"file_name": name, "text": f"A dog , {name} ."} for name in names]
        files.append(root / split / f"metadata.{kind}")
        if kind == "csv":
            with open(files[-1], "w", newline="") as file:
                table = csv.DictWriter(file, ["file_name", "text"])
                table.writeheader()
                table.writerows(rows)
        elif kind == "jsonl":
            files[-1].write_text("".join(json.dumps(row) + "\n" for row in rows))
        else:
            pq.write_table(pa.Table.from_pylist(rows), files[-1])
    return Made([root], root, files)


def sidecar(folder: pathlib.Path) -> Made:
    """Pictures in nested folders with a text file of captions beside each, but for one."""
    root, files = folder / "pictures", []
    names = ["train/a/0.jpg", "train/a/1.jpg", "train/b/2.jpg", "val/3.jpg", "test/4.jpg"]
    write_pictures(root, [*names, "train/without.jpg"])
    for name in names:
        files.append((root / name).with_suffix(".txt"))
        files[-1].write_bytes(f"A dog , {name} .\r\n\r\nUn café .".encode("cp1252"))
    (root / "readme.txt").write_text("These are pictures.")
    return Made([root], None, files)


def parquet(folder: pathlib.Path, captions: str = "list") -> Made:
    """Files as of Hugging Face: a structure of bytes and path, captions as list or text."""
    files, number = [], 0
    (folder / "data").mkdir(exist_ok=True)
    for split, count in (("train", 5), ("validation", 1), ("test", 1)):
        rows = []
        for _ in range(count):
            said: object = ["A dog .", "Two dogs ."] if captions == "list" else "A dog ."
            picture = {"bytes": jpeg(number), "path": f"/home/x/{number}.jpg"}
            rows.append({"image": picture, "captions" if captions == "list" else "text": said})
            number += 1
        files.append(folder / "data" / f"{split}-00000-of-00001.parquet")
        pq.write_table(pa.Table.from_pylist(rows), files[-1], row_group_size=2)
    return Made([folder], None, files)


def add(tar: tarfile.TarFile, name: str, content: bytes = b"", **changes) -> None:
    """Adds a member to a tar file."""
    member = tarfile.TarInfo(name)
    member.size = len(content)
    for key, value in changes.items():
        setattr(member, key, value)
    tar.addfile(member, io.BytesIO(content))


def webdataset(folder: pathlib.Path) -> Made:
    """A tar file per split, with captions as text and as JSON, and members of other kinds."""
    files, number = [], 0
    for split, count in (("train", 4), ("val", 1), ("test", 1)):
        files.append(folder / f"{split}-000000.tar")
        with tarfile.open(files[-1], "w") as tar:
            for _ in range(count):
                key = f"./{number:06d}"
                add(tar, f"{key}.jpg", jpeg(number))
                if number % 2:
                    add(tar, f"{key}.json", b'{"captions": ["A dog.", "A cat."], "width": 16}')
                else:
                    add(tar, f"{key}.txt", b"A dog.\nA cat.\n")
                add(tar, f"{key}.cls", b"7")
                number += 1
            add(tar, "._000009.jpg", b"Mac OS X")
    return Made(files, None, files)


def tfds(folder: pathlib.Path) -> Made:
    """coco_captions as TensorFlow Datasets prepares it; restval is a split of its own."""
    import tensorflow as tf

    place = folder / "coco_captions" / "2014" / "1.1.0"
    place.mkdir(parents=True)
    files, splits, number = [place / "dataset_info.json"], [], 0
    for split, lengths in (("restval", [1]), ("test", [1]), ("train", [2, 1]), ("val", [1])):
        for shard, length in enumerate(lengths):
            name = f"coco_captions-{split}.tfrecord-{shard:05d}-of-{len(lengths):05d}"
            files.append(place / name)
            with tf.io.TFRecordWriter(str(files[-1])) as writer:
                for _ in range(length):
                    writer.write(_example(number).SerializeToString())
                    number += 1
        template = "{DATASET}-{SPLIT}.{FILEFORMAT}-{SHARD_X_OF_Y}"
        said = [str(length) for length in lengths]  # numbers of 64 bits are text there
        splits.append({"filepathTemplate": template, "name": split, "numBytes": "9"})
        splits[-1]["shardLengths"] = said
    info = {"name": "coco_captions", "fileFormat": "tfrecord", "splits": splits}
    files[0].write_text(json.dumps({**info, "version": "1.1.0"}))
    (place / "features.json").write_text("{}")
    return Made([folder / "coco_captions"], None, files)


def _example(number: int):
    """A record of coco_captions."""
    import tensorflow as tf

    def texts(*values):
        return tf.train.Feature(bytes_list=tf.train.BytesList(value=values))

    def numbers(*values):
        return tf.train.Feature(int64_list=tf.train.Int64List(value=values))

    features = {
        "captions/id": numbers(10 * number, 10 * number + 1),
        "captions/text": texts(b"A dog.", "Café.".encode()),
        "image": texts(jpeg(number)),
        "image/filename": texts(f"COCO_val2014_{number:012d}.jpg".encode()),
        "image/id": numbers(500 + number),
        "objects/bbox": tf.train.Feature(float_list=tf.train.FloatList(value=[0, 0, 1, 1])),
        "objects/label": numbers(3),
    }
    return tf.train.Example(features=tf.train.Features(feature=features))


def iaprtc12(folder: pathlib.Path) -> Made:
    """Annotations in ISO-8859-1 without a header of XML, pictures, and lists of two splits."""
    root = folder / "annotations_complete_eng"
    names = [f"{number // 10:02d}/{number}" for number in range(15)]
    files = []
    for name in names:
        files.append(root / f"{name}.eng")
        files[-1].parent.mkdir(parents=True, exist_ok=True)
        files[-1].write_bytes(annotation(name).encode("iso-8859-1"))
    lists = {"train": names[:12], "test": names[12:14]}
    for split, own in lists.items():
        files.append(folder / f"iaprtc12_{split}_list.txt")
        files[-1].write_text("".join(f"{name}\r\n" for name in own))
    write_pictures(folder, [f"images/{name}.jpg" for name in names])
    return Made([root], folder, files)


def annotation(name: str, description: str = "a café in Perú; two\n people & a dog;") -> str:
    """The annotation of one picture of IAPR TC-12."""
    return (
        f"<DOC>\n<DOCNO>annotations/{name}.eng</DOCNO>\n<TITLE>A Café</TITLE>\n<DESCRIPTION>"
        f"{description}</DESCRIPTION>\n<NOTES></NOTES>\n<LOCATION>Perú</LOCATION>\n<DATE>2002</DATE>"
        f"\n<IMAGE>images/{name}.jpg</IMAGE>\n<THUMBNAIL>thumbnails/{name}.jpg</THUMBNAIL>\n</DOC>\n"
    )


# Of each source the maker, and how many images of train, val and test it has; None: no splits.
MAKERS: dict[str, tuple[Callable[[pathlib.Path], Made], int, tuple[int, int, int] | None]] = {
    "flickr8k": (flickr8k, 6, (4, 1, 1)),
    "flickr30k": (flickr30k, 20, None),
    "xmodaler": (xmodaler, 6, (4, 1, 1)),
    "imagefolder": (imagefolder, 6, (4, 1, 1)),
    "sidecar": (sidecar, 5, (3, 1, 1)),
    "parquet": (parquet, 7, (5, 1, 1)),
    "webdataset": (webdataset, 6, (4, 1, 1)),
    "tfds": (tfds, 6, (4, 1, 1)),
    "iaprtc12": (iaprtc12, 14, (11, 1, 2)),
}


def _add_bad_row(name: str, path: pathlib.Path) -> bool:
    """Adds a row that cannot be used to a file that people write by hand; says whether it did."""
    if name == "webdataset":
        with tarfile.open(path, "a") as tar:
            add(tar, "../outside.jpg", jpeg())
        return True
    rows = {"xmodaler": '{"img_path": \n', "imagefolder": "../outside.jpg,A dog .\r\n"}
    if name in rows:
        with open(path, "a", newline="") as file:
            file.write(rows[name])
    return name in rows


def _register(name: str) -> None:
    """Registers the maker of a source for the tests that run over all sources."""
    maker, count, splits = MAKERS[name]

    @sources.fixture(name)
    def make(folder: pathlib.Path) -> sources.Made:
        made = maker(folder)
        captions = tuple(made.captions)
        if name == "flickr8k":
            captions = (captions[0].parent,)  # the lists beside the file are damaged, too
        elif name == "imagefolder":
            captions = ()  # --images is all that the command needs
        skipped = _add_bad_row(name, made.files[0])
        return sources.Made(captions, made.images, count, splits, int(skipped))


for _name in MAKERS:
    _register(_name)
