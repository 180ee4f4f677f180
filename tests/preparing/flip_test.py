"""`prepare --flip`: a mirrored copy of each training image, and everything else as without it."""

import dataclasses
import json
import pathlib
import re

import numpy as np
import pytest
import tensorflow as tf
from helpers import commands, literal_detector
from helpers.photos import examples
from PIL import Image, ImageOps

from tfcap import configs, doctor, prepare
from tfcap.backbones import detector
from tfcap.backbones.backbone import Backbone
from tfcap.data.prepared import PreparedData
from tfcap.preparing.mirror import exchanged, with_mirrored
from tfcap.preparing.pictures import ClipFeatures, DetectedRegions, Pictures
from tfcap.preparing.sources.entry import Entry
from tfcap.training.stages import train

# Split and id of each image; the copies of 3, 90, 5 and 8 are 91 to 94.
IMAGES = {3: "train", 90: "train", 11: "val", 5: "train", 8: "train", 12: "test"}
COPIES = {91: 3, 92: 90, 93: 5, 94: 8}


def test_only_whole_words_are_exchanged_and_keep_their_capitals():
    text = "Left of it, a right-handed man turns LEFT: leftovers, all right? Links und rechts."
    other = "Right of it, a left-handed man turns RIGHT: leftovers, all left? Links und rechts."
    assert exchanged(text) == other and exchanged(other) == text
    assert exchanged("LeFt aleft right_1 copyright lefts") == "LeFt aleft right_1 copyright lefts"


def test_copies_of_train_follow_with_ids_of_their_own():
    train = Entry(7, "a.jpg", "train", ("A left turn.",), (("a", "left", "turn"),), domain="in")
    other = Entry(40, "b.jpg", "val", ("right",))
    stored = train._replace(id=0, stored=("a left turn",))
    first, second = with_mirrored([train, other, stored])[3:]
    assert with_mirrored([train, other, stored])[:3] == [train, other, stored]
    expected = train._replace(
        id=41, captions=("A right turn.",), words=(("a", "right", "turn"),), mirrored=True
    )
    assert first == expected
    assert second == expected._replace(id=42, stored=("a right turn",))


# ---- pictures -----------------------------------------------------------------------------------


def picture(path, seed, size=(97, 60)):
    """Writes a picture, without loss for a PNG file."""
    noise = np.random.default_rng(seed).integers(0, 256, (*size[::-1], 3), np.uint8)
    Image.fromarray(noise).save(path)


def mirror(path, out):
    """Writes a mirrored copy of a picture."""
    with Image.open(path) as image:
        ImageOps.mirror(image).save(out)


def same(one, other):
    assert one.reason is other.reason is None
    np.testing.assert_array_equal(one.features, other.features)
    np.testing.assert_array_equal(one.boxes, other.boxes)


@pytest.fixture
def two(tmp_path):
    """Two pictures and mirrored copies of them, and the entry of both pictures."""
    for number in range(2):
        picture(tmp_path / f"{number}.png", number, (97 + number, 60))
        mirror(tmp_path / f"{number}.png", tmp_path / f"m{number}.png")
    return tmp_path, Entry(0, "0.png", "train", ("A.",), further=("1.png",))


def test_a_mirrored_picture_gives_the_features_of_a_mirrored_file(two):
    folder, entry = two
    reader = Pictures(folder, Backbone("pixels", 3))
    files = entry.renamed(lambda name: f"m{name}")
    turned, plain, of_file = reader.read([entry._replace(mirrored=True), entry, files])
    same(turned, of_file)
    assert np.abs(turned.features - plain.features).max() > 0.1


def test_the_stored_picture_is_mirrored(two):
    folder, entry = two
    shades = np.linspace(0, 255, 64).astype(np.uint8)  # JPEG keeps them
    Image.fromarray(np.tile(shades, (48, 1))).save(folder / "shades.png")
    one = Entry(0, "shades.png", "train", ("A.",))
    reader = Pictures(folder, Backbone("pixels", 3), keep=True)
    turned, plain = reader.read([one._replace(mirrored=True), one])
    assert plain.picture == (folder / "shades.png").read_bytes()
    pixels = tf.io.decode_jpeg(turned.picture).numpy().astype(int)
    assert pixels.shape == (48, 64, 3)
    assert np.abs(pixels[..., 0] - shades[::-1]).max() < 6


@pytest.mark.slow
def test_a_detector_sees_the_mirrored_picture(two):
    folder, entry = two
    sizes = dataclasses.replace(
        literal_detector.NARROW, short=96, long=160, candidates=100, proposals=20, boxes=(4, 8)
    )
    weights, card = literal_detector.random_weights(sizes), literal_detector.card_of(sizes)
    detector.write(folder / "weights", weights, card)
    reader = DetectedRegions(folder, detector.load(str(folder / "weights")))
    one = entry._replace(further=())
    turned, plain, of_file = reader.read(
        [one._replace(mirrored=True), one, one._replace(file_name="m0.png")]
    )
    same(turned, of_file)
    assert not np.array_equal(turned.boxes, plain.boxes)


def test_all_frames_of_a_clip_are_mirrored(two):
    folder, _ = two
    for name in ("", "m"):
        (folder / f"clip{name}").mkdir()
        for number in range(2):
            path = folder / f"clip{name}" / f"{number}.png"
            path.write_bytes((folder / f"{name}{number}.png").read_bytes())
    reader = ClipFeatures(folder, Backbone("pixels", vector=True), 3)
    entries = [Entry(0, "clip", "train", ("A.",)), Entry(0, "clipm", "train", ("A.",))]
    turned, of_file = reader.read([entries[0]._replace(mirrored=True), entries[1]])
    same(turned, of_file)


# ---- directories --------------------------------------------------------------------------------


def settings(folder, out, **changes):
    values = {"captions": folder / "captions.json", "images": folder / "images"}
    values |= {"backbone": "pixels", "grid": 3, "min_count": 2, "images_per_shard": 3}
    return {"out": folder / out} | values | changes


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    """Six photographs with two captions each; `left` occurs twice in train and `right` once."""
    folder = tmp_path_factory.mktemp("flip")
    (folder / "images").mkdir()
    rows = []
    for number, split in IMAGES.items():
        picture(folder / "images" / f"{number}.png", number)
        side = {3: "left", 90: "left", 5: "right"}.get(number, "middle")
        texts = [f"A dog in the {side}.", f"Dog {number} runs."]
        sentences = [{"raw": text} for text in texts]
        name = f"{number}.png"
        rows.append({"filename": name, "split": split, "imgid": number, "sentences": sentences})
    (folder / "captions.json").write_text(json.dumps({"images": rows}))
    return folder


@pytest.fixture(scope="module")
def plain(photos):
    return PreparedData.load(prepare.prepare(**settings(photos, "plain")))


@pytest.fixture(scope="module")
def flipped(photos):
    return PreparedData.load(prepare.prepare(**settings(photos, "flipped", flip=True)))


def content(data):
    """The content of all files of a prepared directory but its notes."""
    return {
        path.name: path.read_bytes()
        for path in sorted(pathlib.Path(data.folder).iterdir())
        if path.is_file() and not path.name.startswith(".")
    }


@pytest.mark.slow
def test_records_and_references_have_the_copies(photos, plain, flipped):
    train = [number for number, split in IMAGES.items() if split == "train"]
    assert flipped.index("train").id.tolist() == [*train, *COPIES]
    assert flipped.mirrored("train") == set(COPIES) and flipped.mirrored("val") == set()
    entry = flipped.split("train")
    assert (entry["images"], entry["captions"], len(entry["shards"])) == (8, 16, 3)
    assert entry["lengths"] == [2 * count for count in plain.split("train")["lengths"]]
    names, references = flipped.file_names("train"), flipped.references("train")
    of_records, without = examples(flipped, "train"), examples(plain, "train")
    reader = Pictures(photos / "images", Backbone("pixels", 3))
    for copy, image in COPIES.items():
        mirror(photos / "images" / f"{image}.png", photos / "images" / f"m{image}.png")
        (of_file,) = reader.read([Entry(0, f"m{image}.png", "train", ("A.",))])
        np.testing.assert_array_equal(of_records[copy], of_file.features.astype(np.float16))
        np.testing.assert_array_equal(of_records[image], without[image])
        assert names[copy] == names[image] == f"{image}.png"
        assert references[image] == plain.references("train")[image]
        assert references[copy] == [*map(exchanged, references[image])]
    assert references[91][0] == "A dog in the right." and references[93][0] == "A dog in the left."
    batch = flipped.read("train", [91])
    assert batch["captions"].to_list() == [[b"A dog in the right.", b"Dog 3 runs."]]
    assert set(flipped.picture_paths("train")) == set(train)  # no file shows a copy


@pytest.mark.slow
def test_everything_else_is_as_without_copies(plain, flipped):
    one, other = content(plain), content(flipped)
    for name in ("vocab.txt", "document_frequency.npz", "val.index.npz", "references_val.json",
                 "val-00000-of-00001.tfrecord", "test-00000-of-00001.tfrecord"):  # fmt: skip
        assert one[name] == other[name], name
    assert "left" in flipped.vocab.words and "right" not in flipped.vocab.words
    assert plain.fingerprint.keys() ^ flipped.fingerprint.keys() == {"flip"}
    assert flipped.fingerprint["flip"] is True and b"mirrored" not in one["references_train.json"]
    assert flipped.split("val") == plain.split("val")


@pytest.mark.slow
def test_a_resumed_directory_and_that_of_two_processes_have_the_same_bytes(photos, flipped, capsys):
    expected = content(flipped)
    capsys.readouterr()
    prepare.prepare(**settings(photos, "flipped", flip=True))
    assert "is prepared already" in capsys.readouterr().out
    pathlib.Path(flipped.shard_paths("train")[2]).unlink()
    prepare.prepare(**settings(photos, "flipped", flip=True))
    assert "note: 4 of them are mirrored images of train; left and right are exchanged in 3 of " \
        "their 8 captions" in capsys.readouterr().out  # fmt: skip
    assert content(flipped) == expected
    workers = prepare.prepare(**settings(photos, "workers", flip=True, workers=2))
    assert content(PreparedData.load(workers)) == expected
    with pytest.raises(ValueError, match=r"prepared with other settings \(flip\)"):
        prepare.prepare(**settings(photos, "flipped"))


@pytest.mark.slow
def test_an_unreadable_picture_is_told_and_counted_once(photos, tmp_path, capsys):
    rows = json.loads((photos / "captions.json").read_text())["images"]
    rows[0]["filename"] = "none.png"
    (tmp_path / "captions.json").write_text(json.dumps({"images": rows}))
    captions = str(tmp_path / "captions.json")
    values = settings(photos, tmp_path / "data", captions=captions, flip=True)
    with pytest.raises(ValueError, match="cannot be used: 1, but `max_skipped` allows 0"):
        prepare.prepare(**values, max_skipped="10%")  # of 6 images, not of 10 with copies
    printed = capsys.readouterr()
    assert printed.err.count("none.png)") == 1
    assert "vocabulary: 6 of 12 different words occur at least 2 times" in printed.out
    data = PreparedData.load(prepare.prepare(**values, max_skipped=1))
    assert [item["id"] for item in data.fingerprint["skipped"]] == [3]
    assert "none.png" not in capsys.readouterr().err
    assert data.index("train").id.tolist() == [90, 5, 8, 92, 93, 94]
    assert data.split("train")["images"] == 6


@pytest.mark.slow
def test_the_doctor_compares_and_counts_images_without_their_copies(plain, flipped):
    def found(data):
        checks = ("same pictures", "same captions")
        lines = doctor.findings(data_dir=data.folder)
        return [str(finding) for finding in lines if finding.check in checks]

    assert found(plain) == found(flipped) and len(found(plain)) > 1


@pytest.mark.slow
def test_sentences_of_reports_are_counted_without_copies(photos, tmp_path):
    rows = json.loads((photos / "captions.json").read_text())["images"]
    for row in rows:
        row["sentences"] = [{"raw": f"Report {row['imgid']} is here."}]
    (tmp_path / "captions.json").write_text(json.dumps({"images": rows}))
    captions = str(tmp_path / "captions.json")
    out = prepare.prepare(**settings(photos, tmp_path / "data", captions=captions, flip=True))
    texts = [f.text for f in doctor.findings(data_dir=str(out)) if f.check == "same captions"]
    assert texts and not [text for text in texts if re.search("sentences stand in several", text)]


@pytest.mark.slow
def test_it_trains_on_images_and_copies(flipped, small, tmp_path):
    task = {**small["task"], "data_dir": flipped.folder, "max_length": 6}
    batches = {"global_batch_size": 8, "captions_per_image": 2}  # more than the images alone
    task |= {"train_data": batches, "validation_data": {**batches, "global_batch_size": 1}}
    graphs = ("train_tf_function", "train_tf_while_loop", "eval_tf_function")
    trainer = {**small["trainer"], "train_steps": 1, "validation_interval": 1}
    override = json.dumps({"task": task, "trainer": trainer | dict.fromkeys(graphs, False)})
    with commands.hidden_java(tmp_path):
        train(
            configs.resolve("attention_lstm", override=override), "attention_lstm", tmp_path / "r"
        )
    assert (tmp_path / "r" / "ckpt-1.index").exists()
