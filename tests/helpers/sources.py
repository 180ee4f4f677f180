"""One small data set in the exact layout of each source, with its traps.

`FIXTURES` has a maker for every name in `READERS`; tests recognise, prepare and damage all of them.
"""

import csv
import gzip
import io
import json
import pathlib
import tarfile
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from PIL import Image

from helpers.clips import FRAMES, gif
from tfcap.preparing.sources.entry import Source


class Made(NamedTuple):
    """A data set on disk.

    Attributes:
      captions: the paths for --captions.
      images: directory for --images, or None.
      count: how many images the reader finds.
      splits: how many images of train, val and test; None if the source has no splits.
      skipped: how many rows it skips.
      files: the token file and the lists of Flickr8k; the files of TensorFlow Datasets.
    """

    captions: Sequence[pathlib.Path]
    images: pathlib.Path | None
    count: int = 0
    splits: tuple[int, int, int] | None = None
    skipped: int = 0
    files: Sequence[pathlib.Path] = ()

    def source(self, **changes) -> Source:
        """What a layout reads."""
        return Source(tuple(self.captions), self.images, **changes)


FIXTURES: dict[str, Callable[[pathlib.Path], Made]] = {}  # by the name of the source


def fixture(name: str):
    """Registers the maker of the data set of a source: from an empty folder to `Made`."""

    def decorate(function):
        assert name not in FIXTURES
        FIXTURES[name] = function
        return function

    return decorate


def picture(path: pathlib.Path, seed: int = 0, size=(40, 30)) -> pathlib.Path:
    """Writes a small picture of noise; its name tells the format."""
    path.parent.mkdir(parents=True, exist_ok=True)
    noise = np.random.default_rng(seed).integers(0, 256, (*size, 3), np.uint8)
    Image.fromarray(noise).save(path)
    return path


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


def _write(path: pathlib.Path, value) -> pathlib.Path:
    path.write_text(json.dumps(value), encoding="utf-8")
    return path


@fixture("karpathy")
def make_karpathy(folder: pathlib.Path) -> Made:
    """Splits with restval; ids of COCO; own tokens."""
    images = []
    for number, split in enumerate(["train", "restval", "val", "test"]):
        sentences = [
            {"raw": f"A man's dog {n}.", "tokens": ["a", "mans", "dog", str(n)], "sentid": 7 * n}
            for n in range(2)
        ]
        images.append(
            {
                "filepath": "val2014",
                "sentids": [0, 7],
                "filename": f"COCO_val2014_{number:012d}.jpg",
                "imgid": number,
                "split": split,
                "sentences": sentences,
                "cocoid": 100 + number,
            }
        )
    names = [f"val2014/COCO_val2014_{number:012d}.jpg" for number in range(4)]
    path = _write(folder / "dataset_coco.json", {"images": images, "dataset": "coco"})
    return Made((path,), write_pictures(folder / "images", names), 4, (2, 1, 1))


def coco_file(path: pathlib.Path, ids, captions: int = 2) -> pathlib.Path:
    """Writes an official caption file; caption n of image i has the id 10 i + n."""
    split = path.stem.split("_")[-1]
    images = [
        {
            "license": 3,
            "file_name": f"COCO_{split}_{number:012d}.jpg",
            "coco_url": "http://images.cocodataset.org/x.jpg",
            "height": 30,
            "width": 40,
            "id": number,
        }
        for number in ids
    ]
    value = {"info": {"year": 2014}, "images": images, "licenses": []}
    if captions:
        value["annotations"] = [
            {"image_id": number, "id": 10 * number + n, "caption": f"A dog {n} on grass.\n"}
            for n in range(captions)
            for number in ids
        ]
    return _write(path, value)


@fixture("coco")
def make_coco(folder: pathlib.Path) -> Made:
    """Three official files; the pictures lie in the folders of the download."""
    paths = (
        coco_file(folder / "captions_train2014.json", [9, 25, 30]),
        coco_file(folder / "captions_val2014.json", [42, 73]),
        coco_file(folder / "image_info_test2014.json", [1, 14], captions=0),
    )
    names = {"train2014": [9, 25, 30], "val2014": [42, 73], "test2014": [1, 14]}
    for split, ids in names.items():
        for number in ids:
            picture(folder / "images" / split / f"COCO_{split}_{number:012d}.jpg", number)
    return Made(paths, folder / "images", 7, (3, 2, 0))  # and two of test2014


@fixture("blip")
def make_blip(folder: pathlib.Path) -> Made:
    """A row per caption for training, and a row per image for validation and test."""
    name = "val2014/COCO_val2014_{:012d}.jpg"
    train = [
        {"caption": f"A dog {n}. ", "image": name.format(number), "image_id": f"coco_{number}"}
        for number in (522418, 184613)
        for n in range(3)
    ]
    paths = [_write(folder / "coco_karpathy_train.json", train)]
    for split, number in (("val", 391895), ("test", 60623)):
        rows = [{"image": name.format(number), "caption": ["A cat.", "The cat sits."]}]
        paths.append(_write(folder / f"coco_karpathy_{split}.json", rows))
    every = (522418, 184613, 391895, 60623)
    return Made(
        tuple(paths),
        write_pictures(folder / "images", [name.format(n) for n in every]),
        4,
        (2, 1, 1),
    )


def _table(folder: pathlib.Path, name: str, delimiter: str, encoding: str) -> Made:
    """Twenty images; the caption has the separator, a quote and a letter beyond ASCII."""
    names = [f"{number:02d}.jpg" for number in range(20)]
    with open(folder / name, "w", newline="", encoding=encoding) as file:
        rows = csv.writer(file, delimiter=delimiter, lineterminator="\r\n")
        rows.writerow(["image", "caption"])
        for image in names:
            rows.writerow([image, f'A "black" dog{delimiter} running'])
            rows.writerow([image, "Un café."])
        file.write(f"../outside.jpg{delimiter}A dog.\r\n\r\n")
    return Made((folder / name,), write_pictures(folder / "images", names), 20, None, skipped=1)


@fixture("csv")
def make_csv(folder: pathlib.Path) -> Made:
    """CR LF, a byte order mark, quotes, and a name that leads out of the folder."""
    return _table(folder, "captions.csv", ",", "utf-8-sig")


@fixture("tsv")
def make_tsv(folder: pathlib.Path) -> Made:
    """The same with tabs in UTF-16, as a spreadsheet writes it."""
    return _table(folder, "captions.tsv", "\t", "utf-16")


@fixture("jsonl")
def make_jsonl(folder: pathlib.Path) -> Made:
    """One caption or several a line, and a line that is no JSON."""
    names = [f"{number}.png" for number in range(4)]
    lines = [
        json.dumps({"image": name, "captions": ["A dog.", "Two."], "split": split})
        for name, split in zip(names, ["train", "train", "validation", "test"], strict=True)
    ]
    lines += [json.dumps({"image": "0.png", "caption": "A cat.", "split": "train"}), '{"image": ']
    (folder / "captions.jsonl").write_text("\n".join(lines), encoding="utf-8")
    return Made(
        (folder / "captions.jsonl",),
        write_pictures(folder / "images", names),
        4,
        (2, 1, 1),
        skipped=1,
    )


@fixture("gif")
def make_gif(folder: pathlib.Path) -> Made:
    """GIF files, a folder of frames, a clip with two lines, a line without a caption."""
    (folder / "clips" / "dog").mkdir(parents=True)
    for number in range(2):
        (folder / "clips" / f"{number}.gif").write_bytes(gif(FRAMES[: 3 + number]))
        picture(folder / "clips" / "dog" / f"{number}.png", number)
    lines = [
        {"gif": "0.gif", "caption": "A square goes right."},
        {"gif": "1", "caption": ["It goes.", "It goes on."]},
        {"video": "dog", "caption": "A dog runs."},
        {"gif": "0.gif", "caption": "It moves."},
        {"gif": "1.gif"},
    ]
    path = folder / "captions.jsonl"
    path.write_text("\n".join(map(json.dumps, lines)), encoding="utf-8")
    return Made((path,), folder / "clips", 3, skipped=1)


@fixture("msrvtt")
def make_msrvtt(folder: pathlib.Path) -> Made:
    """Train and test as two files; a GIF file and folders of frames."""
    (folder / "clips").mkdir(parents=True)
    (folder / "clips" / "video0.gif").write_bytes(gif(FRAMES))
    splits = {0: "train", 7: "train", 6513: "validate", 7010: "test"}
    for number in list(splits)[1:]:
        picture(folder / "clips" / f"video{number}" / "0.png", number)
    paths = []
    for name, own in (("train", [0, 7, 6513]), ("test", [7010])):
        videos = [{"video_id": f"video{n}", "split": splits[n], "category": 9} for n in own]
        sentences = [
            {"caption": "a car is shown", "video_id": f"video{n}", "sen_id": 20 * n} for n in own
        ]
        content = {"info": {"year": "2016"}, "videos": videos, "sentences": 2 * sentences}
        paths.append(_write(folder / f"{name}_videodatainfo.json", content))
    return Made(tuple(paths), folder / "clips", 4, (2, 1, 1))


@fixture("json")
def make_json(folder: pathlib.Path) -> Made:
    """A list of rows for each class, as NWPU-Captions has it, and a row without a picture."""
    content = {
        kind: [
            {"filename": f"{kind}_{n}.jpg", "raw": f"A {kind} .", "raw_1": "Wet .", "split": split}
            for n, split in enumerate(("train", "val"))
        ]
        for kind in ("beach", "park")
    }
    names = [f"{kind}/{row['filename']}" for kind, rows in content.items() for row in rows]
    content["park"].append({"raw": "A park ."})
    path = _write(folder / "dataset_nwpu.json", content)
    return Made((path,), write_pictures(folder / "images", names), 4, (2, 2, 0), skipped=1)


@fixture("clips")
def make_clips(folder: pathlib.Path) -> Made:
    """A list for each split, as VATEX has it; a row has no caption."""
    (folder / "clips").mkdir()
    paths = []
    for split in ("training", "validation"):
        (folder / "clips" / f"Q{split}_000010_000020.gif").write_bytes(gif(FRAMES))
        rows = [{"videoID": f"Q{split}_000010_000020", "enCap": ["A kite .", "It flies ."]}]
        rows += [{"videoID": "Q_000010_000020"}] * (split == "training")
        paths.append(_write(folder / f"vatex_{split}_v1.0.json", rows))
    return Made(tuple(paths), folder / "clips", 2, (1, 1, 0), skipped=1)


# ---- layouts that others publish -----------------------------------------------------------------


@fixture("flickr8k")
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
    return Made(
        [token], write_pictures(folder / "Flicker8k_Dataset", names), 6, (4, 1, 1), files=files
    )


@fixture("flickr30k")
def flickr30k(folder: pathlib.Path) -> Made:
    """results.csv, one row of which lacks its second bar."""
    names = [f"{number}00.jpg" for number in range(20)]
    rows = ["image_name| comment_number| comment"]
    rows += [f"{name}| {place}| A man , in blue ." for name in names for place in range(5)]
    rows[5] = f"{names[0]}| 4   A dog runs across the grass ."
    path = folder / "results.csv"
    path.write_text("\n".join(rows) + "\n")
    return Made([path], write_pictures(folder / "flickr30k_images", names), 20)


@fixture("xmodaler")
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
    return Made(paths, write_pictures(folder / "images", names), 6, (4, 1, 1))


@fixture("imagefolder")
def imagefolder(folder: pathlib.Path) -> Made:
    """A directory per split with a metadata file and its pictures."""
    root = folder / "folder"
    for split, count in (("train", 4), ("validation", 1), ("test", 1)):
        names = [f"{number}.jpg" for number in range(count)]
        write_pictures(root / split, [*names, "without.jpg"])
        rows = [{"file_name": name, "text": f"A dog , {name} ."} for name in names]
        pq.write_table(pa.Table.from_pylist(rows), root / split / "metadata.parquet")
    return Made([root], root, 6, (4, 1, 1))


@fixture("sidecar")
def sidecar(folder: pathlib.Path) -> Made:
    """Pictures in nested folders with a text file of captions beside each, but for one."""
    root = folder / "pictures"
    names = ["train/a/0.jpg", "train/a/1.jpg", "train/b/2.jpg", "val/3.jpg", "test/4.jpg"]
    write_pictures(root, [*names, "train/without.jpg"])
    for name in names:
        text = f"A dog , {name} .\r\n\r\nUn café ."
        (root / name).with_suffix(".txt").write_bytes(text.encode("cp1252"))
    (root / "readme.txt").write_text("These are pictures.")
    return Made([root], root, 5, (3, 1, 1))


@fixture("parquet")
def parquet(folder: pathlib.Path) -> Made:
    """Files as of Hugging Face: a structure of bytes and path, and a list of captions."""
    number = 0
    (folder / "data").mkdir(exist_ok=True)
    for split, count in (("train", 5), ("validation", 1), ("test", 1)):
        rows = []
        for _ in range(count):
            image = {"bytes": jpeg(number), "path": f"/home/x/{number}.jpg"}
            rows.append({"image": image, "captions": ["A dog .", "Two dogs ."]})
            number += 1
        path = folder / "data" / f"{split}-00000-of-00001.parquet"
        pq.write_table(pa.Table.from_pylist(rows), path, row_group_size=2)
    return Made([folder], None, 7, (5, 1, 1))


def add(tar: tarfile.TarFile, name: str, content: bytes = b"", **changes) -> None:
    """Adds a member to a tar file."""
    member = tarfile.TarInfo(name)
    member.size = len(content)
    for key, value in changes.items():
        setattr(member, key, value)
    tar.addfile(member, io.BytesIO(content))


@fixture("webdataset")
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
    return Made(files, None, 6, (4, 1, 1))


@fixture("tfds")
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
    return Made([folder / "coco_captions"], None, 6, (4, 1, 1), files=files)


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


@fixture("numbered")
def numbered(folder: pathlib.Path) -> Made:
    """Lines of UCM-Captions, a line without a caption, and a picture in no list."""
    lines = [f"{n} There are {m} kites ." for n in (1, 2, 3, 12) for m in (4, 5)]
    path = folder / "descriptions_UCM.txt"
    path.write_text("\n".join([*lines, "kites ."]) + "\n")
    for number, split in enumerate(("train", "val", "test"), 1):
        (folder / f"filenames_{split}.txt").write_text(f"{number}.png\n")
    return Made(
        (path,), write_pictures(folder / "imgs", ["1.png", "2.png", "3.png"]), 3, (1, 1, 1), 1
    )


@fixture("parallel")
def parallel(folder: pathlib.Path) -> Made:
    """Texts of Multi30k, one of them compressed, and their lists of pictures."""
    splits = {"train": ["10.jpg", "11.jpg"], "test_2017_mscoco": ["COCO_val2014_000000000030.jpg"]}
    for name in ("raw", "image_splits"):
        (folder / name).mkdir()
    for split, names in splits.items():
        (folder / f"image_splits/{split}.txt").write_text("".join(f"{n}#3671\n" for n in names))
        text = "".join(f"Ein Kran\u2028 , {n} .\n" for n in names).encode()
        is_packed = split == "train"
        path = folder / "raw" / f"{split}.de{'.gz' * is_packed}"
        path.write_bytes(gzip.compress(text) if is_packed else text)
    names = [name for names in splits.values() for name in names]
    return Made((folder / "raw",), write_pictures(folder / "images", names), 3, (2, 0, 1))


@fixture("iaprtc12")
def iaprtc12(folder: pathlib.Path) -> Made:
    """Annotations in ISO-8859-1 without a header of XML, pictures, and lists of two splits.

    An annotation was saved again as UTF-8 by an editor of Windows.
    """
    root = folder / "annotations_complete_eng"
    names = [f"{number // 10:02d}/{number}" for number in range(15)]
    for name in names:
        path = root / f"{name}.eng"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(annotation(name).encode("utf-8-sig" if name == "01/13" else "iso-8859-1"))
    lists = {"train": names[:12], "test": names[12:14]}
    for split, own in lists.items():
        (folder / f"iaprtc12_{split}_list.txt").write_text("".join(f"{name}\r\n" for name in own))
    write_pictures(folder, [f"images/{name}.jpg" for name in names])
    return Made([root], folder, 14, (11, 1, 2))


def annotation(name: str) -> str:
    """The annotation of one picture of IAPR TC-12."""
    return (
        "<DOC>\n<TITLE>A Café</TITLE>\n<DESCRIPTION>a café in Perú; two\n people & a dog;"
        f"</DESCRIPTION>\n<NOTES></NOTES>\n<IMAGE>images/{name}.jpg</IMAGE>\n</DOC>\n"
    )
