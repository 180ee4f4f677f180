"""What the tests of prepare share: small photographs, and a look into what was written."""

import json

import numpy as np
import tensorflow as tf
from PIL import Image

from tfcap.backbones.backbone import Backbone
from tfcap.data.prepared import PreparedData
from tfcap.preparing.build import prepare
from tfcap.preparing.settings import Settings


def _picture(path, seed, size=(64, 48)):
    noise = np.random.default_rng(seed).integers(0, 256, (*size, 3), np.uint8)
    Image.fromarray(noise).save(path, quality=90)


def _entry(name, split="train", captions=("A dog runs.", "The dog!")):
    return {"filename": name, "split": split, "sentences": [{"raw": c} for c in captions]}


def write_captions(folder, entries):
    images = [{**entry, "imgid": 10 + number} for number, entry in enumerate(entries)]
    path = folder / "captions.json"
    path.write_text(json.dumps({"images": images}))
    return str(path)


def _entries():
    return [_entry(f"{number}.jpg", "val" if number > 8 else "train") for number in range(12)]


def make_photos(tmp_path):
    """Twelve good JPEG files, 9 for train and 3 for val, and the settings to prepare them."""
    (tmp_path / "images").mkdir()
    for number in range(12):
        _picture(tmp_path / "images" / f"{number}.jpg", number)
    settings = {"out": str(tmp_path / "out"), "images": str(tmp_path / "images")}
    settings |= {"backbone": "pixels", "weights": None, "min_count": 1, "images_per_shard": 4}
    return tmp_path, _entries(), settings


def make_features(tmp_path):
    """The same images with ready features; a graph that decodes pictures would take seconds."""
    (tmp_path / "features").mkdir()
    for number in range(12):
        values = np.random.default_rng(number).random((3, 5), np.float32)
        np.savez(tmp_path / "features" / f"{number}.npz", features=values)
    settings = {"out": str(tmp_path / "out"), "features": str(tmp_path / "features")}
    return tmp_path, _entries(), settings | {"min_count": 1, "images_per_shard": 4}


def run(photos, **changes):
    folder, entries, settings = photos
    settings = {**settings, **changes}
    prepare(Settings(captions=write_captions(folder, entries), **settings))
    return PreparedData.load(settings["out"])


def messages(path):
    raw = tf.data.TFRecordDataset(str(path)).as_numpy_iterator()
    return [tf.train.Example.FromString(example) for example in raw]


def examples(data, split):
    """Features float16 [R, F] by image id."""
    parsed = {}
    for path in data.shard_paths(split):
        for example in messages(path):
            feature = example.features.feature
            shape = list(feature["features/shape"].int64_list.value)
            values = np.frombuffer(feature["features/data"].bytes_list.value[0], np.float16)
            parsed[feature["image/id"].int64_list.value[0]] = values.reshape(shape)
    return parsed


def features_of(contents):
    """Features of picture files, [R, F] each, by the backbone that needs no weights."""
    backbone = Backbone("pixels")
    return [backbone.extract(backbone.decode(tf.constant(one))[None])[0] for one in contents]
