"""dataset.json is checked when it is read."""

import json

import pytest
from helpers.prepared import write_directory

from tfcap.data.fingerprint import FINGERPRINT
from tfcap.data.prepared import PreparedData

_NETWORK = {"name": "a", "grid": 1, "image_size": 1, "weights": "", "weights_sha256": ""}


def edit_fingerprint(folder, edit):
    path = folder / FINGERPRINT
    value = json.loads(path.read_text())
    edit(value)
    path.write_text(json.dumps(value))


@pytest.fixture
def folder(tmp_path):
    write_directory(str(tmp_path))
    return tmp_path


@pytest.mark.parametrize(
    "edit, message",
    [
        (lambda v: v.update(format=2), "format 1. Received: 2"),
        (lambda v: v.update(tokenizer="other"), "tokenizer 'other'"),
        (lambda v: v.pop("vocab_sha256"), "must have the entry 'vocab_sha256'"),
        (lambda v: v["features"].update(dim="6"), "dim must be an integer"),
        (
            lambda v: v.update(backbone={**_NETWORK, "wheel_sha256": 7}),
            "wheel_sha256 must be text. Received: 7",
        ),
        (lambda v: v["splits"]["train"].update(images=6), "6 images. Received: 7"),
        (
            lambda v: v["splits"]["train"]["shards"][0].update(file="../../etc/passwd"),
            "plain file name",
        ),
        (
            lambda v: v["splits"].update({"../train": v["splits"].pop("train")}),
            "wrong entry: the name of a split must be 1 to 64 letters",
        ),
    ],
)
def test_bad_fingerprints_are_refused(folder, edit, message):
    edit_fingerprint(folder, edit)
    with pytest.raises(ValueError, match=message):
        PreparedData.load(folder)
