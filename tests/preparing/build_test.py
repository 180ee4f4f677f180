"""Preparing data sets: what is written, resuming after SIGKILL, the command line."""

import json
import signal
import subprocess
import time

import numpy as np
import pytest
from helpers import commands
from helpers.photos import examples, make_features, make_photos, messages, run, write_captions

from tfcap import errors
from tfcap import prepare as command
from tfcap.backbones.backbone import Backbone
from tfcap.data import tokens
from tfcap.data.prepared import PreparedData
from tfcap.files import file_sha256
from tfcap.ids import EOS, UNK
from tfcap.prepare import prepare

pytestmark = pytest.mark.slow  # nearly every test prepares a directory

# A shard takes some milliseconds; with many small ones the kill comes in the midst of them.
_MANY_SHARDS = {"train": 40, "val": 12, "test": 8, "images_per_shard": 8, "min_count": 1}


photos = pytest.fixture(make_photos)
ready = pytest.fixture(make_features)


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
    return prepare(tmp_path_factory.mktemp("data") / "shapes", source="shapes", **_MANY_SHARDS)


def test_everything_is_written_and_agrees(finished):
    data = PreparedData.load(finished)
    made = data.fingerprint
    assert made["name"] == "shapes" and made["skipped"] == []
    assert {
        s: (e["images"], e["captions"], len(e["shards"])) for s, e in made["splits"].items()
    } == {
        "train": (40, 200, 5),
        "val": (12, 60, 2),
        "test": (8, 40, 1),
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
        assert list(examples(data, split)) == [image["imgid"] for image in mine]


def test_vocabulary_and_statistics_come_from_train_alone(ready):
    _, entries, _ = ready
    for entry in entries[9:]:
        entry["sentences"] = [{"raw": "zebra zebra"}] * 5
    entries[0]["sentences"].append({"raw": "once"})
    data = run(ready, min_count=2)
    assert set(data.vocab.words) == {*tokens.SPECIALS, "a", "dog", "runs", "the"}
    table = data.document_frequencies()
    assert table.images == 9
    allowed = {tuple(n[n > 0].tolist()): c for n, c in zip(table.ngrams, table.counts, strict=True)}
    (dog,) = data.vocab.ids(["dog"])
    assert allowed[(dog,)] == allowed[(dog, EOS)] == 9 and allowed[(UNK, EOS)] == 1
    values = np.concatenate(list(examples(data, "train").values())).astype(np.float64)
    expected = {"dim": 5, "max_regions": 3, "mean": values.mean(), "std": values.std(),
                "mean_norm": np.linalg.norm(values, axis=1).mean()}  # fmt: skip
    assert data.fingerprint["features"] == pytest.approx(expected, rel=1e-5)


def test_sigkill_and_resume_redo_nothing_and_give_the_same(finished, tmp_path):
    out = tmp_path / "killed"
    code = "from tfcap.prepare import prepare\n"
    code += f"prepare({str(out)!r}, source='shapes', **{_MANY_SHARDS!r})"
    process = commands.start("-c", code, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + 120
        while len(list(out.glob("*.tfrecord"))) < 3:
            assert process.poll() is None and time.monotonic() < deadline
            time.sleep(0.002)
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
    assert not (out / "dataset.json").exists()
    with pytest.raises(ValueError, match="dataset.json"):
        PreparedData.load(out)
    noted = [f"{path.stem}.tfrecord" for path in (out / ".shards").glob("[!.]*.json")]
    before = {name: (out / name).stat() for name in noted}
    assert 2 <= len(before) < 8
    for name in before:  # under a final name nothing is ever half-written
        assert messages(out / name) == messages(finished / name)
    (out / ".tmp-999-train-00004-of-00005.tfrecord").write_bytes(b"left by the kill")
    prepare(out, source="shapes", **_MANY_SHARDS)
    after = {name: (out / name).stat() for name in before}
    for name, old in before.items():
        new = after[name]
        assert (new.st_ino, new.st_mtime_ns) == (old.st_ino, old.st_mtime_ns)
    result, expected = _bytes(out), _bytes(finished)
    result["dataset.json"] = result["dataset.json"].replace(bytes(out), bytes(finished))
    for name in [name for name in result if name.endswith(".tfrecord")]:
        # Another process may serialize the fields of an Example in another order.
        assert len(result.pop(name)) == len(expected.pop(name))
        assert messages(out / name) == messages(finished / name)
    assert result == expected
    assert not list(out.glob(".tmp-*"))


def test_a_finished_directory_is_left_alone_and_a_damaged_one_mended(ready, capsys):
    data = run(ready)
    out = ready[0] / "out"
    before, whole = _bytes(out), {p.name: p.stat().st_mtime_ns for p in out.iterdir()}
    run(ready)
    assert "is prepared already" in capsys.readouterr().out
    del whole[".prepare.lock"]
    assert all((out / name).stat().st_mtime_ns == changed for name, changed in whole.items())
    shard = data.fingerprint["splits"]["train"]["shards"][1]["file"]
    (out / shard).write_bytes(before[shard][:-1])
    run(ready)
    assert _bytes(out) == before


def test_other_settings_need_another_directory_or_overwrite(ready):
    run(ready)
    out = ready[0] / "out"
    before = _bytes(out)
    with pytest.raises(ValueError, match="other settings .min_count.*`overwrite`"):
        run(ready, min_count=2)
    ready[1].pop()
    with pytest.raises(ValueError, match="other settings .captions"):
        run(ready)
    assert _bytes(out) == before
    data = run(ready, images_per_shard=100, overwrite=True)
    assert [len(e["shards"]) for e in data.fingerprint["splits"].values()] == [1, 1]
    assert not list(out.glob("*-of-00003*"))


def test_a_network_with_weights_from_a_file(photos):
    folder = photos[0]
    path = folder / "small.weights.h5"
    first = Backbone("small_cnn", image_size=48)
    kernel = first.model.weights[0]
    kernel.assign(kernel * 2)  # the first weights are the same in every process
    first.network.save(path)
    network = {"backbone": "small_cnn", "weights": str(path), "image_size": 48}
    data = run(photos, **network, grid=2, images_per_shard=9)
    made_by = data.fingerprint["backbone"]
    assert (made_by["name"], made_by["grid"], made_by["weights"]) == (
        "small_cnn",
        2,
        "backbone.weights.h5",
    )
    assert made_by["weights_sha256"] == file_sha256(folder / "out" / made_by["weights"])
    stored = examples(data, "train")
    assert {values.shape for values in stored.values()} == {(4, 128)}
    with open(folder / "out" / made_by["weights"], "ab") as file:
        file.write(b"x")
    run(photos, **network, grid=2, images_per_shard=9)  # as the doctor says of changed weights
    assert made_by["weights_sha256"] == file_sha256(folder / "out" / made_by["weights"])
    path.unlink()  # the prepared directory needs nothing else
    again = Backbone.from_fingerprint(data.fingerprint, folder / "out")
    picture = again.decode((folder / "images" / "3.jpg").read_bytes())
    np.testing.assert_allclose(again.extract(picture[None])[0], stored[13], rtol=2e-3, atol=1e-5)


def test_command_line(photos):
    folder, entries, _ = photos
    out = str(folder / "cli")
    image_flags = ["--images", str(folder / "images"), "--backbone=pixels", "--min_count=1"]
    captions = ["--captions", write_captions(folder, entries), "--out", out]
    done = commands.run_command("tfcap.prepare", *captions, *image_flags, "--images_per_shard=8")
    assert done.returncode == 0 and PreparedData.load(out).fingerprint["name"] == "captions"
    lines = done.stdout.strip().split("\n")
    assert lines[:2] == [
        "source: karpathy (1 file)",
        "vocabulary: all 4 different words; none becomes <unk>",
    ]
    del lines[:2]
    assert lines[0].startswith("12 images with 24 captions, about 36 x 194 features each; 3 shards")
    assert lines[1].startswith(f"{out} is prepared: 12 images, 0 skipped, vocabulary 8;")
    with pytest.raises(errors.UsageError, match="--captions, the caption file, is missing"):
        commands.run_here(command, "--out", out)
    with pytest.raises(ValueError, match="none.json"):
        commands.run_here(command, "--captions", folder / "none.json", "--out", out, *image_flags)
