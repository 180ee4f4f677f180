"""The commands of docs/data_sets.yaml read the files of data sets as people download them."""

import importlib
import os
import pathlib
import shlex

import pytest
import yaml
from helpers import commands
from helpers.published import MAKERS

from tfcap.preparing import inputs
from tfcap.preparing.settings import Settings

ROOT = pathlib.Path(__file__).parents[3]
DATA_SETS = {
    row["name"]: row for row in yaml.safe_load((ROOT / "docs/data_sets.yaml").read_text("utf-8"))
}
# The layout; images of train, val and test; all captions; the first and the last image: id, file
# name, split, captions; a part of a note, if there must be one.
GOLDEN = {
    "NWPU-Captions": (
        "json",
        (2, 2, 2),
        18,
        (
            0,
            "airport/airport_001.jpg",
            "train",
            ("A small airport .", "The airport has 1 lamps .", "The airport has 2 lamps ."),
        ),
        (
            5,
            "beach/beach_003.jpg",
            "test",
            ("A small beach .", "The beach has 1 lamps .", "The beach has 2 lamps ."),
        ),
        "",
    ),
    "RSICD, RSITMD": (
        "karpathy",
        (1, 1, 1),
        6,
        (0, "pond_0.jpg", "train", ("a pond .", "a pond .")),
        (2, "pond_2.jpg", "test", ("a pond .", "a pond .")),
        "",
    ),
    "UCM-Captions, Sydney-Captions": (
        "numbered",
        (1, 1, 1),
        6,
        (
            0,
            "1.tif",
            "train",
            ("There are 4 kites near the quay .", "There are 5 kites near the quay ."),
        ),
        (
            2,
            "3.tif",
            "test",
            ("There are 4 kites near the quay .", "There are 5 kites near the quay ."),
        ),
        "",
    ),
    "IU X-Ray, MIMIC-CXR (R2Gen)": (
        "json",
        (1, 1, 1),
        3,
        (0, "CXR0_IM-7/0.png", "train", ("Both lungs hum in train .",)),
        (2, "CXR2_IM-7/0.png", "test", ("Both lungs hum in test .",)),
        "2 images have several pictures, up to 2",
    ),
    "ROCOv2": (
        "csv",
        (2, 2, 2),
        6,
        (0, "train/ROCOv2_train_000001.jpg", "train", ("A plate , view 1 .",)),
        (5, "test/ROCOv2_test_000002.jpg", "test", ("A plate , view 2 .",)),
        "6 of 6 pictures are found under another name",
    ),
    "TextCaps": (
        "json",
        (1, 1, 0),
        4,
        (0, "train_images/0aa.jpg", "train", ("A mug says 0 .", "A mug says 1 .")),
        (1, "train_images/0bb.jpg", "val", ("A mug says 0 .", "A mug says 1 .")),
        "another name: train_images/0aa.jpg for train/0aa.jpg",
    ),
    "VizWiz-Captions": (
        "coco",
        (1, 1, 1),
        2,
        (0, "train/VizWiz_train_00000000.jpg", "train", ("A box .",)),
        (2, "test/VizWiz_test_00000002.jpg", "test", ()),
        "captions with a mark are left out (2 is_rejected, 2 is_precanned)",
    ),
    "nocaps": (
        "coco",
        (0, 2, 0),
        2,
        (0, "00ab.jpg", "val", ("A tuba .",)),
        (1, "01ab.jpg", "val", ("A tuba .",)),
        "",
    ),
    "DOCCI": (
        "jsonl",
        (1, 0, 1),
        4,
        (0, "train_00000.jpg", "train", ("A vase of train .",)),
        (3, "qual_test_00000.jpg", "qual_test", ("A vase of qual_test .",)),
        "the splits qual_dev (1 images), qual_test (1 images)",
    ),
    "Localized Narratives": (
        "jsonl",
        (1, 1, 0),
        4,
        (775, "775.jpg", "train", ("Here 0 kites fly .", "Here 1 kites fly .")),
        (773, "773.jpg", "val", ("Here 0 kites fly .", "Here 1 kites fly .")),
        "",
    ),
    "Flickr30k (Hugging Face)": (
        "csv",
        (1, 1, 1),
        6,
        (0, "0.jpg", "train", ("Two cranes .", "A crane .")),
        (2, "2.jpg", "test", ("Two cranes .", "A crane .")),
        "",
    ),
    "Flickr30k (Kaggle)": (
        "csv",
        (2, 1, 1),
        8,
        (0, "0.jpg", "test", ("Crane 0 , by a quay .", "Crane 1 , by a quay .")),
        (3, "3.jpg", "train", ("Crane 0 , by a quay .", "Crane 1 , by a quay .")),
        "",
    ),
    "Flickr8k (Kaggle)": (
        "csv",
        (2, 1, 1),
        8,
        (0, "0_5f.jpg", "val", ("Crane 0 , by a quay .", "Crane 1 , by a quay .")),
        (3, "3_5f.jpg", "train", ("Crane 0 , by a quay .", "Crane 1 , by a quay .")),
        "",
    ),
    "COCO, Flickr8k, Flickr30k (Karpathy)": (
        "karpathy",
        (2, 1, 1),
        4,
        (70, "val2014/COCO_val2014_000000000000.jpg", "train", ("A kite.",)),
        (73, "val2014/COCO_val2014_000000000003.jpg", "test", ("A kite.",)),
        "",
    ),
    "COCO": (
        "coco",
        (2, 1, 0),
        6,
        (
            9,
            "train2014/COCO_train2014_000000000009.jpg",
            "train",
            ("A dog 0 on grass.\n", "A dog 1 on grass.\n"),
        ),
        (
            42,
            "val2014/COCO_val2014_000000000042.jpg",
            "val",
            ("A dog 0 on grass.\n", "A dog 1 on grass.\n"),
        ),
        "",
    ),
    "ArtEmis": (
        "csv",
        (1, 1, 1),
        3,
        (0, "Cubism/p_0.jpg", "train", ("It glows .",)),
        (2, "Cubism/p_2.jpg", "test", ("It glows .",)),
        "2 rows are left out: they are of the split rest",
    ),
    "FACAD": (
        "jsonl",
        (2, 1, 1),
        4,
        (0, "0a.jpeg", "test", ("Warm & soft",)),
        (3, "103_red_1.jpg", "train", ("Warm & soft",)),
        "4 pictures are left out: they are not in `images`",
    ),
    "LLaVA-Pretrain": (
        "jsonl",
        (1, 1, 1),
        3,
        (0, "0000/000.jpg", "train", ("a lamp of size 0",)),
        (2, "0000/002.jpg", "val", ("a lamp of size 2",)),
        "1 rows are left out: they are conversations with several",
    ),
    "kohya's sd-scripts": (
        "json",
        (2, 1, 1),
        4,
        (0, "cats/0.png", "test", ("a cat , 0",)),
        (3, "cats/3.png", "val", ("a cat , 3",)),
        "",
    ),
    "Crossmodal-3600": (
        "jsonl",
        (2, 1, 1),
        8,
        (0, "00a.jpg", "train", ("A kite .", "A kite . 0")),
        (3, "30a.jpg", "train", ("A kite .", "A kite . 3")),
        "",
    ),
    "Multi30k": (
        "parallel",
        (2, 1, 1),
        4,
        (0, "COCO_val2014_000000000030.jpg", "test", ("Ein Kran , 0 .",)),
        (3, "20.jpg", "val", ("Ein Kran , 0 .",)),
        "",
    ),
    "Flickr8k-CN": (
        "flickr8k",
        (1, 1, 1),
        6,
        (0, "10_ab.jpg", "train", ("一只狗 0", "一只狗 1")),
        (2, "12_ab.jpg", "test", ("一只狗 0", "一只狗 1")),
        "",
    ),
    "COCO-CN": (
        "flickr8k",
        (2, 0, 0),
        4,
        (0, "val2014/COCO_val2014_000000000042.jpg", "train", ("一只猫 0", "一只猫 1")),
        (1, "train2014/COCO_train2014_000000000009.jpg", "train", ("一只猫 0", "一只猫 1")),
        "2 of 2 pictures are found under another name",
    ),
    "STAIR Captions": (
        "coco",
        (2, 1, 0),
        3,
        (9, "train2014/COCO_train2014_000000000009.jpg", "train", ("赤い凧",)),
        (42, "val2014/COCO_val2014_000000000042.jpg", "val", ("赤い凧",)),
        "",
    ),
    "UIT-ViIC, KTVIC": (
        "coco",
        (1, 1, 1),
        6,
        (
            9,
            "coco_uitviic_train/000000000009.jpg",
            "train",
            ("A dog 0 on grass.\n", "A dog 1 on grass.\n"),
        ),
        (
            70,
            "coco_uitviic_test/000000000070.jpg",
            "test",
            ("A dog 0 on grass.\n", "A dog 1 on grass.\n"),
        ),
        "",
    ),
    "BanglaLekha": (
        "jsonl",
        (2, 1, 1),
        8,
        (0, "0.png", "test", ("একটি ঘুড়ি", "ঘুড়ি 0")),
        (3, "3.png", "train", ("একটি ঘুড়ি", "ঘুড়ি 3")),
        "",
    ),
    "Hindi Visual Genome": (
        "tsv",
        (1, 1, 1),
        6,
        (7, "07.jpg", "train", ("लाल पतंग", "लाल पतंग")),
        (27, "27.jpg", "test", ("लाल पतंग", "लाल पतंग")),
        "6 captions describe a region of a picture",
    ),
    "VATEX": (
        "clips",
        (1, 1, 0),
        4,
        (0, "Qtraining_000010_000020.gif", "train", ("a kite flies", "a kite")),
        (1, "Qvalidation_000010_000020.gif", "val", ("a kite flies", "a kite")),
        "",
    ),
    "MSVD (csv)": (
        "clips",
        (1, 1, 1),
        3,
        (0, "mv0_5_9.gif", "val", ("a kite flies",)),
        (2, "mv2_5_11.gif", "test", ("a kite flies",)),
        "3 rows are left out: they are in other languages than English",
    ),
    "MSVD (text)": (
        "clips",
        (1, 1, 1),
        6,
        (0, "-4_x0_5_15.gif", "val", ("a kite flies", "a kite falls")),
        (2, "-4_x2_5_15.gif", "test", ("a kite flies", "a kite falls")),
        "",
    ),
}


@pytest.mark.parametrize("name", MAKERS)
def test_the_command_of_a_data_set_reads_its_files(name, tmp_path, monkeypatch, capsys):
    MAKERS[name](tmp_path)
    monkeypatch.chdir(tmp_path)
    flags = shlex.split(DATA_SETS[name]["flags"])
    values = commands.parse(importlib.import_module("tfcap.prepare"), *flags, "--out=out")
    given = {
        key: values[key].value for key in ("captions", "images", "language", "tokens", "vocab")
    }
    result = inputs.read(Settings("out", backbone="pixels", **given).checked())
    source, counts, captions, first, last, note = GOLDEN[name]
    splits = [entry.split for entry in result.entries]
    assert result.settings.source == source and not result.skipped
    assert tuple(map(splits.count, ("train", "val", "test"))) == counts
    assert sum(len(entry.captions) for entry in result.entries) == captions
    assert (result.entries[0][:4], result.entries[-1][:4]) == (first, last)
    names = [picture for entry in result.entries for picture in entry.pictures]
    assert all(os.path.exists(f"{given['images']}/{picture}") for picture in names)
    assert note in capsys.readouterr().out
    inputs.check_images(result.settings, result.entries)


def test_each_data_set_has_a_miniature_and_numbers_to_expect():
    assert list(DATA_SETS) == list(MAKERS) == list(GOLDEN)
