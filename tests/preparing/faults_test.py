"""Preparing data sets: bad images, features, settings, and a full disk."""

import shutil

import numpy as np
import pytest
import tensorflow as tf
from helpers.photos import examples, make_photos, run

from tfcap.backbones.backbone import Backbone

photos = pytest.fixture(make_photos)


def _damage(photos):
    """One of each kind of bad image; returns what must be said of each."""
    folder, entries, _ = photos
    images = folder / "images"
    (images / "0.jpg").rename(images / "0.JPG")
    whole = (images / "1.jpg").read_bytes()
    (images / "1.jpg").write_bytes(whole[: len(whole) // 2])
    (images / "2.jpg").write_text("<html>404</html>")
    (images / "3.jpg").write_bytes(b"")
    entries[5]["sentences"] = []
    entries[6]["sentences"] = [{"raw": " "}, {"raw": "?!"}]
    entries[7]["sentences"].insert(0, {"raw": "\n"})
    return {
        10: "the picture file does not exist; 0.JPG is there",
        11: "a truncated or damaged JPEG file",
        12: "a picture must be JPEG, PNG, BMP, GIF, WebP or TIFF",
        13: "the file is empty",
        15: "no captions",
        16: "no captions",
    }


@pytest.mark.slow
def test_bad_images_are_skipped_counted_and_listed(photos, capsys):
    """Images beside bad ones keep their own features."""
    reasons = _damage(photos)
    data = run(photos, images_per_shard=3)
    skipped = {item["id"]: item["reason"] for item in data.fingerprint["skipped"]}
    assert sorted(skipped) == sorted(reasons)
    assert all(skipped[image_id].startswith(reason) for image_id, reason in reasons.items())
    assert list(examples(data, "train")) == [14, 17, 18] == list(data.references("train"))
    assert data.references("train")[17] == ["A dog runs.", "The dog!"]
    assert data.fingerprint["dropped_captions"] == 3
    assert data.document_frequencies().images == 3
    said = capsys.readouterr()
    assert "6 skipped" in said.out
    assert "skipped image 11 (1.jpg): a truncated or damaged JPEG" in said.err
    assert "captions without a word, dropped: 1 of 7.jpg" in said.err
    # The first shard had three bad images: it has no file, and the others keep their names.
    shards = data.fingerprint["splits"]["train"]["shards"]
    assert [(s["file"], s["records"]) for s in shards] == [
        ("train-00001-of-00003.tfrecord", 1),
        ("train-00002-of-00003.tfrecord", 2),
    ]
    backbone = Backbone("pixels")
    for image_id, values in examples(data, "train").items():
        picture = tf.io.read_file(f"{photos[2]['images']}/{image_id - 10}.jpg")
        expected = backbone.extract(backbone.decode(picture)[None])[0]
        np.testing.assert_allclose(values, expected, rtol=1e-3, atol=1e-6)


@pytest.mark.slow
def test_too_many_bad_images_stop_it_and_nothing_is_lost(photos):
    _damage(photos)
    with pytest.raises(ValueError, match="Images that cannot be used: "):
        run(photos, max_skipped="4")
    out = photos[0] / "out"
    assert not (out / "dataset.json").exists() and not list(out.glob(".tmp-*"))
    whole, second = sorted((out / ".shards").iterdir())
    assert second.name == "train-00001-of-00003.json"
    before = whole.stat().st_mtime_ns
    assert len(run(photos, max_skipped="50%").fingerprint["skipped"]) == 6
    assert whole.stat().st_mtime_ns == before


def test_without_training_images_there_is_no_vocabulary(photos):
    for entry in photos[1]:
        entry["split"] = "val"
    with pytest.raises(ValueError, match="No image of the split 'train' has a caption.* `vocab`"):
        run(photos)


def test_missing_directories_and_settings(photos):
    with pytest.raises(ValueError, match="`images`: there is no directory .*nowhere"):
        run(photos, images=str(photos[0] / "nowhere"))
    with pytest.raises(ValueError, match="`images`, the directory of the pictures, is missing"):
        run(photos, images=None)
    with pytest.raises(ValueError, match="`weights`: there is no file none.h5"):
        run(photos, backbone="mobilenet_v2", weights="none.h5", out=str(photos[0] / "c"))


@pytest.mark.slow
def test_wrong_settings_and_lost_pictures_do_not_remove_what_was_extracted(photos, capsys):
    """Pictures may be deleted when all features are extracted."""
    data = run(photos)
    with pytest.raises(ValueError, match="Give as `images` the directory"):
        run(photos, images=str(photos[0]), min_count=2, overwrite=True)
    assert len(data.document_frequencies().counts) and len(examples(data, "train")) == 9
    shutil.rmtree(photos[0] / "images")
    run(photos)
    assert "is prepared already" in capsys.readouterr().out


@pytest.mark.slow
@pytest.mark.parametrize("name", ["train.index.npz", "vocab.txt"])
def test_a_lost_file_of_a_finished_directory_is_made_again(photos, name):
    run(photos)
    path = photos[0] / "out" / name
    content = path.read_bytes()
    path.unlink()
    run(photos)
    assert path.read_bytes() == content


@pytest.mark.parametrize(
    "name", ["references_mine.json", "x.index.npz", "splits.json", "train-00000-of-00002.tfrecord"]
)
def test_files_that_prepare_did_not_write_are_not_replaced(photos, name):
    out = photos[0] / "out"
    out.mkdir()
    (out / name).write_text("mine")
    with pytest.raises(ValueError, match=f"{name}, which prepare did not write.*`overwrite`"):
        run(photos)
    assert (out / name).read_text() == "mine"
