"""The archive for COCO's server has a file for each split, and is filled by two commands."""

import json
import zipfile

import pytest

from tfcap import console
from tfcap.metrics import submission


@pytest.fixture(autouse=True)
def small(monkeypatch):
    """Splits of two and of one image."""
    monkeypatch.setattr(submission, "IMAGES", {"val2014": 2, "test2014": 1})


def read(path):
    with zipfile.ZipFile(path) as archive:
        return {name: json.loads(archive.read(name)) for name in archive.namelist()}


def test_two_splits_make_an_archive(tmp_path):
    path = str(tmp_path / "captions_my_model_results.zip")
    line = submission.add(path, "val", {73: "a cat", 42: "a dog"})
    assert line.endswith(
        "all images of val2014; give the same --submission with the split test2014"
    )
    assert submission.add(path, "test2014", {1: "x"}).endswith("captions of all images of test2014")
    assert read(path) == {
        "captions_test2014_my_model_results.json": [{"image_id": 1, "caption": "x"}],
        "captions_val2014_my_model_results.json": [
            {"image_id": 42, "caption": "a dog"},
            {"image_id": 73, "caption": "a cat"},
        ],
    }
    before = (tmp_path / "captions_my_model_results.zip").read_bytes()
    submission.add(path, "test2014", {1: "x"})
    assert (tmp_path / "captions_my_model_results.zip").read_bytes() == before
    submission.add(path, "test2014", {1: "other"})
    assert read(path)["captions_test2014_my_model_results.json"][0]["caption"] == "other"


def test_other_splits_and_missing_images_are_refused(tmp_path):
    with pytest.raises(console.UsageError, match="splits val2014 and test2014.*=train"):
        submission.add(str(tmp_path / "a.zip"), "train", {1: "x"})
    with pytest.raises(console.UsageError, match="all 2 images of val2014, and here are 1"):
        submission.add(str(tmp_path / "a.zip"), "val2014", {1: "x"})
    assert not (tmp_path / "a.zip").exists()
