"""One small data set in the exact layout of each source, with its traps.

`FIXTURES` has a maker for every name in `READERS`; tests recognise, prepare and damage all of them.
"""

import csv
import json
import pathlib
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from PIL import Image

from helpers.clips import FRAMES, gif


class Made(NamedTuple):
    """A data set on disk.

    Attributes:
      captions: the paths for --captions; empty for a source that reads the images only.
      images: directory for --images, or None.
      count: how many images the reader finds.
      splits: how many images of train, val and test; None if the source has no splits.
      skipped: how many rows it skips.
    """

    captions: tuple[pathlib.Path, ...]
    images: pathlib.Path | None
    count: int
    splits: tuple[int, int, int] | None = None
    skipped: int = 0


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


def _write(path: pathlib.Path, value) -> pathlib.Path:
    path.write_text(json.dumps(value), encoding="utf-8")
    return path


def _pictures(folder: pathlib.Path, names) -> pathlib.Path:
    for seed, name in enumerate(names):
        picture(folder / "images" / name, seed)
    return folder / "images"


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
    return Made((path,), _pictures(folder, names), 4, (2, 1, 1))


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
    return Made(tuple(paths), _pictures(folder, map(name.format, every)), 4, (2, 1, 1))


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
    return Made((folder / name,), _pictures(folder, names), 20, None, skipped=1)


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
    return Made((folder / "captions.jsonl",), _pictures(folder, names), 4, (2, 1, 1), skipped=1)


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


# Layouts that others publish; the module registers its makers in FIXTURES.
from helpers import source_files as source_files  # noqa: E402
