"""Preparing data sets: what is written, bad input, resuming after SIGKILL, the command line."""

import json
import os
import signal
import subprocess
import sys
import time

import keras
import numpy as np
import pytest
from PIL import Image

from tfcap import prepare
from tfcap.data import features, records, tokens

# A shard takes some milliseconds; with many small ones the kill comes in the midst of them.
_MANY_SHARDS = {"train": 120, "val": 12, "test": 8, "images_per_shard": 2, "min_count": 1}


def _picture(path, seed, size=(64, 48)):
    noise = np.random.default_rng(seed).integers(0, 256, (*size, 3), np.uint8)
    Image.fromarray(noise).save(path, quality=90)


def _entry(name, split="train", captions=("A dog runs.", "The dog!")):
    return {"filename": name, "split": split, "sentences": [{"raw": c} for c in captions]}


def _captions(folder, entries):
    images = [{**entry, "imgid": 10 + number} for number, entry in enumerate(entries)]
    path = folder / "captions.json"
    path.write_text(json.dumps({"images": images}))
    return str(path)


@pytest.fixture
def photos(tmp_path):
    """Twelve good JPEG files, 9 for train and 3 for val, and the settings to prepare them."""
    (tmp_path / "images").mkdir()
    entries = []
    for number in range(12):
        _picture(tmp_path / "images" / f"{number}.jpg", number)
        entries.append(_entry(f"{number}.jpg", "val" if number > 8 else "train"))
    settings = {"out": str(tmp_path / "out"), "images": str(tmp_path / "images")}
    settings |= {"backbone": "pixels", "weights": None, "min_count": 1, "images_per_shard": 4}
    return tmp_path, entries, settings


def _prepare(photos, **changes):
    folder, entries, settings = photos
    settings = {**settings, **changes}
    prepare.prepare(prepare.Settings(captions=_captions(folder, entries), **settings))
    return records.PreparedData.load(settings["out"])


def _examples(data, split):
    parsed = {}
    for path in data.shard_paths(split):
        import tensorflow as tf

        for raw in tf.data.TFRecordDataset(path).as_numpy_iterator():
            feature = tf.train.Example.FromString(raw).features.feature
            shape = list(feature["features/shape"].int64_list.value)
            values = np.frombuffer(feature["features/data"].bytes_list.value[0], np.float16)
            parsed[feature["image/id"].int64_list.value[0]] = values.reshape(shape)
    return parsed


def _bytes(folder):
    """Content of all files of a prepared directory but its notes."""
    return {
        path.name: path.read_bytes()
        for path in sorted(folder.iterdir())
        if path.is_file() and not path.name.startswith(".")
    }


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """The built-in data set, prepared without interruption."""
    return prepare.prepare_shapes(tmp_path_factory.mktemp("data") / "shapes", **_MANY_SHARDS)


def test_everything_is_written_and_agrees(finished):
    data = records.PreparedData.load(finished)
    made = data.fingerprint
    assert made["name"] == "shapes" and made["skipped"] == []
    assert {
        s: (e["images"], e["captions"], len(e["shards"])) for s, e in made["splits"].items()
    } == {
        "train": (120, 600, 60),
        "val": (12, 60, 6),
        "test": (8, 40, 4),
    }
    assert made["backbone"] == {
        "name": "pixels", "grid": 6, "image_size": 96, "weights": None, "weights_sha256": None,
    }  # fmt: skip
    assert made["images"] == str(finished / "images")
    source = json.loads((finished / "dataset_shapes.json").read_text())["images"]
    for split in ("train", "val", "test"):
        mine = [image for image in source if image["split"] == split]
        expected = {i["imgid"]: [s["raw"] for s in i["sentences"]] for i in mine}
        assert data.references(split) == expected
        assert data.file_names(split) == {i["imgid"]: i["filename"] for i in mine}
        assert list(_examples(data, split)) == [image["imgid"] for image in mine]


def test_records_hold_the_features_of_their_pictures(finished):
    import tensorflow as tf

    data = records.PreparedData.load(finished)
    backbone = features.Backbone.from_fingerprint(data.fingerprint, finished)
    stored, names = _examples(data, "val"), data.file_names("val")
    for image_id, values in stored.items():
        picture = tf.io.read_file(str(finished / "images" / names[image_id]))
        np.testing.assert_array_equal(backbone.extract(backbone.decode(picture)[None])[0], values)


def test_vocabulary_and_statistics_come_from_train_alone(photos):
    folder, entries, settings = photos
    for entry in entries[9:]:
        entry["sentences"] = [{"raw": "zebra zebra"}] * 5
    entries[0]["sentences"].append({"raw": "once"})
    data = _prepare(photos, min_count=2)
    assert set(data.vocab.words) == {*tokens.SPECIALS, "a", "dog", "runs", "the"}
    table = data.document_frequencies()
    assert table.images == 9
    known = {tuple(n[n > 0].tolist()): c for n, c in zip(table.ngrams, table.counts, strict=True)}
    (dog,) = data.vocab.ids(["dog"])
    assert known[(dog,)] == known[(dog, tokens.EOS)] == 9 and known[(tokens.UNK, tokens.EOS)] == 1
    values = np.concatenate(list(_examples(data, "train").values())).astype(np.float64)
    expected = {"dim": 194, "max_regions": 36, "mean": values.mean(), "std": values.std(),
                "mean_norm": np.linalg.norm(values, axis=1).mean()}  # fmt: skip
    assert data.fingerprint["features"] == pytest.approx(expected, rel=1e-5)


def test_two_runs_write_the_same_bytes(finished, tmp_path):
    again = prepare.prepare_shapes(tmp_path / "again", **_MANY_SHARDS)
    here = _bytes(again)
    # The directory of images is an absolute path.
    here["dataset.json"] = here["dataset.json"].replace(bytes(again), bytes(finished))
    assert here == _bytes(finished)


def test_sigkill_and_resume_redo_nothing_and_give_the_same(finished, tmp_path):
    out = tmp_path / "killed"
    code = f"from tfcap import prepare; prepare.prepare_shapes({str(out)!r}, **{_MANY_SHARDS!r})"
    process = subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        deadline = time.monotonic() + 120
        while len(list(out.glob("*.tfrecord"))) < 5:
            assert process.poll() is None and time.monotonic() < deadline
            time.sleep(0.002)
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
    assert not (out / "dataset.json").exists()
    with pytest.raises(ValueError, match="dataset.json"):
        records.PreparedData.load(out)
    noted = json.loads((out / ".prepare.json").read_text())["shards"]
    before = {name: (out / name).stat() for name in noted}
    assert 4 <= len(before) < 70
    for name in before:  # under a final name nothing is ever half-written
        assert (out / name).read_bytes() == (finished / name).read_bytes()
    (out / ".tmp-999-train-00009-of-00060.tfrecord").write_bytes(b"left by the kill")
    prepare.prepare_shapes(out, **_MANY_SHARDS)
    after = {name: (out / name).stat() for name in before}
    for name, old in before.items():
        new = after[name]
        assert (new.st_ino, new.st_mtime_ns) == (old.st_ino, old.st_mtime_ns)
    result = _bytes(out)
    result["dataset.json"] = result["dataset.json"].replace(bytes(out), bytes(finished))
    assert result == _bytes(finished)
    assert not list(out.glob(".tmp-*"))


def test_a_finished_directory_is_left_alone_and_a_damaged_one_mended(photos, capsys):
    data = _prepare(photos)
    out = photos[0] / "out"
    before, whole = _bytes(out), {p.name: p.stat().st_mtime_ns for p in out.iterdir()}
    _prepare(photos)
    assert "is prepared already" in capsys.readouterr().out
    del whole[".prepare.lock"]
    assert all((out / name).stat().st_mtime_ns == changed for name, changed in whole.items())
    shard = data.fingerprint["splits"]["train"]["shards"][1]["file"]
    (out / shard).write_bytes(before[shard][:-1])
    (out / "vocab.txt").unlink()
    _prepare(photos)
    assert _bytes(out) == before


def test_other_settings_need_another_directory_or_overwrite(photos):
    _prepare(photos)
    out = photos[0] / "out"
    before = _bytes(out)
    with pytest.raises(ValueError, match=r"other settings \(min_count differ\).*--overwrite"):
        _prepare(photos, min_count=2)
    photos[1].pop()
    with pytest.raises(ValueError, match=r"\(captions differ\)"):
        _prepare(photos)
    assert _bytes(out) == before
    data = _prepare(photos, images_per_shard=100, overwrite=True)
    assert [len(e["shards"]) for e in data.fingerprint["splits"].values()] == [1, 1]
    assert not list(out.glob("*-of-00003*"))


def test_two_at_once_are_refused(photos):
    from tfcap.data import building

    out = photos[0] / "out"
    out.mkdir()
    with building.locked(out), pytest.raises(ValueError, match="another prepare is writing"):
        _prepare(photos)


def _damage(photos):
    """One of each kind of bad image; returns what must be said of each."""
    folder, entries, _ = photos
    images = folder / "images"
    (images / "0.jpg").unlink()
    whole = (images / "1.jpg").read_bytes()
    (images / "1.jpg").write_bytes(whole[: len(whole) // 2])
    (images / "2.jpg").write_text("<html>404</html>")
    (images / "3.jpg").write_bytes(b"")
    entries[5]["sentences"] = []
    entries[6]["sentences"] = [{"raw": " "}, {"raw": "?!"}]
    entries[7]["sentences"].insert(0, {"raw": "\n"})
    return {
        10: "no such file",
        11: "truncated, or not a JPEG",
        12: "truncated, or not a JPEG",
        13: "the file is empty",
        15: "no captions",
        16: "no captions",
    }


def test_bad_images_are_skipped_counted_and_listed(photos, capsys):
    reasons = _damage(photos)
    data = _prepare(photos)
    skipped = {item["id"]: item["reason"] for item in data.fingerprint["skipped"]}
    assert sorted(skipped) == sorted(reasons)
    assert all(skipped[image_id].startswith(reason) for image_id, reason in reasons.items())
    assert list(_examples(data, "train")) == [14, 17, 18] == list(data.references("train"))
    assert data.references("train")[17] == ["A dog runs.", "The dog!"]
    assert data.fingerprint["dropped_captions"] == 3
    assert data.document_frequencies().images == 3
    said = capsys.readouterr()
    assert "6 skipped" in said.out
    assert "skipped image 11 (1.jpg): truncated, or not a JPEG" in said.err
    assert "dropped an empty caption of image 17" in said.err
    # The first shard had four bad images: it has no file, and the others keep their names.
    shards = data.fingerprint["splits"]["train"]["shards"]
    assert [(s["file"], s["records"]) for s in shards] == [
        ("train-00001-of-00003.tfrecord", 2),
        ("train-00002-of-00003.tfrecord", 1),
    ]


def test_too_many_bad_images_stop_it_and_nothing_is_lost(photos):
    _damage(photos)
    with pytest.raises(ValueError, match="5 of 12 images cannot be used, --max_skipped allows 4"):
        _prepare(photos, max_skipped="4")
    out = photos[0] / "out"
    assert not (out / "dataset.json").exists() and not list(out.glob(".tmp-*"))
    assert list(json.loads((out / ".prepare.json").read_text())["shards"]) == [
        "train-00000-of-00003.tfrecord"
    ]
    assert len(_prepare(photos, max_skipped="50%").fingerprint["skipped"]) == 6


def test_limits_of_skips():
    assert prepare.allowed_skips("100", 7) == 100
    assert prepare.allowed_skips("1%", 7000) == 70
    for text in ("-1", "many", "1.5", "%", "-2%", "nan%", ""):
        with pytest.raises(ValueError, match="--max_skipped must be like 100 or 1%"):
            prepare.allowed_skips(text, 10)


def test_without_training_images_there_is_no_vocabulary(photos):
    for entry in photos[1]:
        entry["split"] = "val"
    with pytest.raises(ValueError, match="no usable image in the split 'train'"):
        _prepare(photos)


def test_missing_directories_and_settings(photos):
    with pytest.raises(ValueError, match="directory of images .*nowhere does not exist"):
        _prepare(photos, images=str(photos[0] / "nowhere"))
    with pytest.raises(ValueError, match="directory of features .*nowhere does not exist"):
        _prepare(photos, features=str(photos[0] / "nowhere"), out=str(photos[0] / "b"))
    with pytest.raises(ValueError, match="give --images"):
        _prepare(photos, images=None)
    with pytest.raises(ValueError, match="at least 1, got 0"):
        _prepare(photos, min_count=0)
    with pytest.raises(ValueError, match="no file of weights .*none.h5"):
        _prepare(photos, backbone="mobilenet_v2", weights="none.h5", out=str(photos[0] / "c"))


def test_a_disk_too_small_is_refused_before_any_work(photos, monkeypatch):
    monkeypatch.setattr("shutil.disk_usage", lambda path: os.terminal_size((0, 0)) and _Disk)
    with pytest.raises(ValueError, match="but its disk has 0 MB free"):
        _prepare(photos)
    assert not list((photos[0] / "out").glob("*.tfrecord"))


class _Disk:
    free = 1000


def test_a_network_with_weights_from_a_file(photos):
    folder = photos[0]
    keras.utils.set_random_seed(2)
    shape = (224, 224, 3)
    model = keras.applications.MobileNetV2(weights=None, include_top=False, input_shape=shape)
    path = folder / "mobile.weights.h5"
    model.save_weights(path)
    data = _prepare(photos, backbone="mobilenet_v2", weights=str(path), grid=4)
    made_by = data.fingerprint["backbone"]
    assert (made_by["name"], made_by["grid"], made_by["weights"]) == (
        "mobilenet_v2",
        4,
        "backbone.weights.h5",
    )
    assert made_by["weights_sha256"] == features.file_sha256(folder / "out" / made_by["weights"])
    stored = _examples(data, "train")
    assert {values.shape for values in stored.values()} == {(16, 1280)}
    path.unlink()  # the prepared directory needs nothing else
    again = features.Backbone.from_fingerprint(data.fingerprint, folder / "out")
    picture = again.decode((folder / "images" / "3.jpg").read_bytes())
    np.testing.assert_allclose(again.extract(picture[None])[0], stored[13], rtol=2e-3, atol=1e-5)


def test_ready_features_and_every_kind_of_bad_file(photos):
    folder, entries, _ = photos
    (folder / "npz").mkdir()
    rng = np.random.default_rng(0)
    good = [rng.normal(size=[3 + number % 4, 5]).astype(np.float32) for number in range(12)]

    def save(number, array, **more):
        np.savez(folder / "npz" / f"{10 + number}.npz", feat=array, **more)

    for number, array in enumerate(good):
        save(number, array)
    save(0, good[0][:, :4])
    save(1, good[1] * np.nan)
    save(2, good[2][:0])
    save(3, np.array([{"a": 1}], object))
    (folder / "npz" / "14.npz").write_bytes(b"PK\3\4 cut")
    (folder / "npz" / "15.npz").unlink()
    save(6, good[6] * np.float32(1e6))
    save(7, good[7], boxes=np.tile([0, 0, 0.5, 1], (len(good[7]), 1)))
    data = _prepare(photos, images=None, features=str(folder / "npz"))
    assert data.fingerprint["backbone"] is None and data.images is None
    assert (data.feature_dim, data.max_regions) == (5, 6)
    skipped = {item["id"]: item["reason"] for item in data.fingerprint["skipped"]}
    said = ["4 wide, expected 5", "NaN", "zero regions", "pickled", "not a readable npz",
            "No such file", "float16"]  # fmt: skip
    assert sorted(skipped) == list(range(10, 17))
    assert all(words in skipped[10 + number] for number, words in enumerate(said))
    stored = _examples(data, "train")
    assert list(stored) == [17, 18]
    np.testing.assert_array_equal(stored[17], good[7].astype(np.float16))


def test_ready_features_named_by_file_stem(photos):
    folder = photos[0]
    (folder / "npz").mkdir()
    for number in range(12):
        np.savez(folder / "npz" / f"{number}.npz", features=np.full([2, 3], number, np.float32))
    data = _prepare(photos, images=None, features=str(folder / "npz"))
    assert [int(values[0, 0]) for values in _examples(data, "train").values()] == list(range(9))


def test_command_line(photos):
    folder, entries, _ = photos
    out = str(folder / "cli")
    image_flags = ["--images", str(folder / "images"), "--backbone=pixels", "--min_count=1"]
    captions = ["--captions", _captions(folder, entries), "--out", out]
    calls = [
        [*captions, *image_flags, "--images_per_shard=8"],
        ["--out", out],
        [*captions, *image_flags, "--no_such_flag"],
        ["--captions", str(folder / "none.json"), "--out", out, *image_flags],
    ]
    processes = [
        subprocess.Popen(
            [sys.executable, "-m", "tfcap.prepare", *call],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"},
        )
        for call in calls
    ]
    results = [(*process.communicate(timeout=200), process.returncode) for process in processes]
    said, _, code = results[0]
    assert code == 0 and records.PreparedData.load(out).fingerprint["name"] == "captions"
    lines = said.strip().split("\n")
    assert lines[0].startswith("12 images with 24 captions, about 36 x 194 features each; 3 shards")
    assert [line.split(":")[0] for line in lines[1:4]] == [
        "train-00000-of-00002.tfrecord",
        "train-00001-of-00002.tfrecord",
        "val-00000-of-00001.tfrecord",
    ]
    assert lines[4].startswith(f"{out} is prepared: 12 images, 0 skipped, vocabulary 8;")
    for (_, errors, code), expected, message in zip(
        results[1:], (2, 2, 3), ("give --captions", "no_such_flag", "none.json"), strict=True
    ):
        last = errors.strip().split("\n")[-1]
        assert code == expected and last.startswith("error: ") and message in last
        assert "Traceback" not in errors
