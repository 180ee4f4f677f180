"""A healthy prepared directory is ok in every check; each damage is found by its own check."""

import re
import shutil

import pytest
from helpers.findings import by_check, cut, faults, flip
from helpers.prepared import write_directory

from tfcap.data.document_frequency import (
    DOCUMENT_FREQUENCY,
    load_document_frequencies,
    write_document_frequencies,
)
from tfcap.files import read_json, write_json
from tfcap.health import data, features

SHARD = "train-00001-of-00002.tfrecord"


def change_fingerprint(folder, **changes):
    write_json(folder / "dataset.json", read_json(folder / "dataset.json", "") | changes)


@pytest.mark.slow
def test_the_built_in_data_is_healthy(shapes):
    found = by_check(data.findings(shapes))
    assert not faults(found.values())
    assert found["records train"].text == "all 64 records in 1 shard can be read"
    assert "(<unk>)" in found["words train"].text and "(<unk>)" in found["words val"].text
    assert found["pictures"].text.startswith("every picture is in")


def test_ready_made_features_are_healthy(original):
    found = by_check(data.findings(str(original)))
    assert not faults(found.values()) and "ready-made" in found["backbone"].text


@pytest.mark.parametrize(
    ("damage", "expected"),
    [
        (lambda f: flip(f / SHARD, 80), {"records train": "problem"}),
        (lambda f: cut(f / SHARD), {"files train": "problem"}),
        (lambda f: (f / SHARD).unlink(), {"files train": "problem"}),
        (lambda f: (f / "train.index.npz").unlink(), {"files train": "problem"}),
        (lambda f: (f / "vocab.txt").unlink(), {"vocabulary": "problem"}),
        (lambda f: cut(f / DOCUMENT_FREQUENCY), {"frequencies": "problem"}),
        (lambda f: cut(f / "references_train.json"), {"records train": "problem"}),
        (lambda f: change_fingerprint(f, images="/no/such/place"), {"pictures": "warning"}),
    ],
    ids=["bit", "cut", "shard", "index", "vocabulary", "frequencies", "references", "pictures"],
)
def test_damage_is_found_by_its_own_check(folder, damage, expected):
    damage(folder)
    found = faults(data.findings(str(folder)))
    # What cannot be known without the damaged part may also be missing.
    unknown = {"feature values", "feature columns", "feature images", "words train"}
    assert {k: v for k, v in found.items() if k not in unknown} == expected


def test_a_swapped_vocabulary_is_found_and_the_records_are_still_read(folder):
    words = (folder / "vocab.txt").read_text().splitlines()
    (folder / "vocab.txt").write_text("\n".join([*words[:4], *words[:3:-1]]) + "\n")
    found = by_check(data.findings(str(folder)))
    assert faults(found.values()) == {"vocabulary": "problem"}
    assert "must be the vocabulary of dataset.json" in found["vocabulary"].text
    assert found["records train"].status == "ok" and "words train" not in found


def test_a_directory_that_is_not_prepared_has_one_finding(tmp_path):
    (found,) = data.findings(str(tmp_path))
    assert found.status == "problem" and "has no dataset.json" in found.text


def test_dead_features_of_a_directory_are_found(tmp_path, monkeypatch):
    def change(features):
        features[:, 2:4] = 0
        return features

    write_directory(str(tmp_path), change)
    found = by_check(data.findings(str(tmp_path)))
    assert faults(found.values()) == {"feature columns": "warning"}  # so few images say little
    monkeypatch.setattr(features, "ENOUGH", 7)
    found = by_check(data.findings(str(tmp_path)))
    assert faults(found.values()) == {"feature columns": "problem"}
    assert "2 are always 0 (column 2, 3)" in found["feature columns"].text


def test_frequencies_of_other_words_or_images_are_found(folder):
    table = load_document_frequencies(folder)
    write_document_frequencies(folder, table._replace(images=8))
    found = by_check(data.findings(str(folder)))["frequencies"]
    assert found.status == "problem" and "counted over the 7 training images" in found.text
    write_document_frequencies(folder, table._replace(ngrams=table.ngrams + 100))
    found = by_check(data.findings(str(folder)))["frequencies"]
    assert found.status == "problem" and "must hold ids of the 8 words" in found.text


def test_words_outside_the_vocabulary_are_counted(folder):
    path = folder / "references_train.json"
    value = read_json(path, "")
    for annotation in value["annotations"][:3]:
        annotation["caption"] = "A wolf ."
    write_json(path, value)
    found = by_check(data.findings(str(folder)))["words train"]
    assert found.status == "warning" and "lower --min_count" in found.remedy
    assert "14 captions of 2.0 words; 10.71 % of the words" in found.text


def test_captions_of_one_word_are_warned_of(folder):
    path = folder / "references_train.json"
    value = read_json(path, "")
    for annotation in value["annotations"]:
        annotation["caption"] = "一只狗在草地上奔跑"
    write_json(path, value)
    found = by_check(data.findings(str(folder)))["words train"]
    assert found.status == "warning" and "hardly more than one word" in found.text


def test_changed_weights_of_the_backbone_are_found(folder):
    made_by = {"name": "vgg16", "grid": 7, "image_size": 224, "weights": "b.h5"}
    change_fingerprint(folder, backbone={**made_by, "weights_sha256": "0" * 64})
    assert "are missing" in by_check(data.findings(str(folder)))["backbone"].text
    (folder / "b.h5").write_bytes(b"x")
    assert "another SHA-256" in by_check(data.findings(str(folder)))["backbone"].text


def test_lost_pictures_are_counted(shapes, tmp_path):
    folder = shutil.copytree(shapes, tmp_path / "shapes")
    pictures = folder / "images"
    change_fingerprint(folder, images=str(pictures))
    for path in sorted(pictures.rglob("*.png"))[:5]:
        path.unlink()
    found = by_check(data.findings(str(folder)))["pictures"]
    counts = [int(count) for count in re.findall(r"(\d+) of", found.text)]
    assert found.status == "warning" and sum(counts) == 5
