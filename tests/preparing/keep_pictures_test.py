"""`prepare --keep_pictures`: pictures in the records, and records without them as they were."""

import json

import pytest
import tensorflow as tf
from helpers import commands
from PIL import Image

from tfcap import prepare as command
from tfcap.data.prepared import PreparedData
from tfcap.preparing import build
from tfcap.preparing.settings import Settings

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def given(tmp_path_factory):
    """A small PNG, a large JPEG that lies on its side, and a file that is no picture."""
    folder = tmp_path_factory.mktemp("given")
    (folder / "images").mkdir()
    Image.new("RGB", (40, 30), (200, 10, 10)).save(folder / "images" / "small.png")
    exif = Image.Exif()
    exif[0x0112] = 6
    Image.new("RGB", (800, 400), (10, 10, 200)).save(folder / "images" / "large.jpg", exif=exif)
    (folder / "images" / "bad.jpg").write_bytes(b"no picture")
    entries = [
        {"filename": name, "split": "train", "imgid": place, "sentences": [{"raw": "A dog."}]}
        for place, name in enumerate(("small.png", "large.jpg", "bad.jpg"))
    ]
    (folder / "captions.json").write_text(json.dumps({"images": entries}))
    return folder


def prepare(given, out, **settings):
    options = dict(images=str(given / "images"), backbone="pixels", weights=None, min_count=1)
    build.prepare(Settings(str(out), str(given / "captions.json"), **options, **settings))
    return records(out)


def records(out):
    data = PreparedData.load(out)
    (written,) = tf.data.TFRecordDataset(data.shard_paths("train")).batch(9)
    return data, [tf.train.Example.FromString(record.numpy()) for record in written]


def features_of(example):
    return {name: feature.SerializeToString() for name, feature in example.features.feature.items()}


def test_the_flag_adds_the_pictures_and_changes_nothing_else(given, tmp_path):
    plain, without = prepare(given, tmp_path / "plain")
    with pytest.raises(ValueError, match=r"other settings .keep_pictures"):
        prepare(given, tmp_path / "plain", keep_pictures=True)
    flags = {"captions": given / "captions.json", "images": given / "images"}
    flags |= {"out": tmp_path / "kept", "backbone": "pixels", "min_count": 1}
    written = [f"--{name}={value}" for name, value in flags.items()]
    commands.run_here(command, *written, "--keep_pictures")
    data, kept = records(tmp_path / "kept")
    assert not plain.has_pictures and data.has_pictures and len(kept) == 2
    for one, other in zip(without, kept, strict=True):
        added = features_of(other)
        assert added.pop("picture") and added == features_of(one)
    small, large = (e.features.feature["picture"].bytes_list.value[0] for e in kept)
    assert small == (given / "images" / "small.png").read_bytes()
    assert tf.io.decode_jpeg(large).shape == [220, 110, 3]  # upright, 8 / 7 of 96 pixels
    assert data.fingerprint["pictures"] == {"shorter_side": 110}
    changed = plain.fingerprint.keys() ^ data.fingerprint.keys()
    assert changed == {"pictures"}
