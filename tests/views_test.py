"""Images with several pictures, such as the views of X-ray studies, from prepare to exports."""

import base64
import dataclasses
import json
import os
import pathlib
import shutil
import subprocess
import sys

import numpy as np
import pytest
import tensorflow as tf
from helpers import commands, literal_detector, picture_bytes, services
from helpers.rest_service import RestService
from PIL import Image

import tfcap
from tfcap import caption as command
from tfcap import configs, errors
from tfcap.backbones import detector
from tfcap.backbones.backbone import Backbone
from tfcap.backbones.views import Views
from tfcap.data import clips
from tfcap.data.prepared import PreparedData
from tfcap.preparing.build import prepare
from tfcap.preparing.settings import Settings
from tfcap.serving.client import captions_client
from tfcap.training.stages import train
from tfcap.visualize.attention import shown_paths

SIZES = [(96, 80), (64, 96)]  # width and height of the first and the second picture


def study(folder, number, views):
    """Writes the pictures of a study; returns their names."""
    names = [f"s{number}/{view + 9}.png" for view in range(views)]  # 9.png comes before 10.png
    for view, name in enumerate(names):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        rng = np.random.default_rng(10 * number + view)
        small = Image.fromarray(rng.integers(0, 256, (6, 6, 3), np.uint8))
        small.resize(SIZES[view], Image.Resampling.NEAREST).save(folder / name)
    return names


@pytest.fixture(scope="module")
def studies(tmp_path_factory):
    """A folder with annotation.json of R2Gen, of which every third report has one picture."""
    folder = tmp_path_factory.mktemp("studies")
    content = {"train": [], "val": [], "test": []}
    for number in range(12):
        split = "train" if number < 8 else "val"
        names = study(folder / "images", number, 1 if number % 3 == 2 else 2)
        row = {"id": f"s{number}", "report": f"Scene {number} is clear .", "split": split}
        content[split].append({**row, "image_path": names})
    (folder / "annotation.json").write_text(json.dumps(content))
    return folder


def settings(studies, **changes):
    values = {"captions": str(studies / "annotation.json"), "images": str(studies / "images")}
    return values | {"min_count": 1, "images_per_shard": 3} | changes


@pytest.fixture(scope="module", params=["pixels", "bottom_up"])
def network(request, tmp_path_factory):
    """Settings of a grid, and of a detector, which finds other regions in each picture."""
    if request.param == "pixels":
        return {"backbone": "pixels", "grid": 3}
    folder = tmp_path_factory.mktemp("detector") / "weights"
    sizes = dataclasses.replace(
        literal_detector.NARROW, short=96, long=160, candidates=100, proposals=20, boxes=(4, 8)
    )
    detector.write(folder, literal_detector.random_weights(sizes), literal_detector.card_of(sizes))
    return {"backbone": "bottom_up", "weights": str(folder)}


@pytest.fixture(scope="module")
def prepared(studies, network, tmp_path_factory):
    out = str(tmp_path_factory.mktemp("views") / "data")
    prepare(Settings(out=out, **settings(studies, **network)))
    return out


@pytest.fixture(scope="module")
def run(prepared, small, tmp_path_factory):
    folder = str(tmp_path_factory.mktemp("run") / "run")
    task = {**small["task"], "data_dir": prepared, "max_length": 6}
    graphs = ("train_tf_function", "train_tf_while_loop", "eval_tf_function")
    trainer = {**small["trainer"], "train_steps": 2, "validation_interval": 2}
    override = json.dumps({"task": task, "trainer": trainer | dict.fromkeys(graphs, False)})
    with commands.hidden_java(tmp_path_factory.mktemp("no_java")):
        train(configs.resolve("attention_lstm", override=override), "attention_lstm", folder)
    return folder


@pytest.fixture(scope="module")
def grid(network):
    """Leaves out a test for the detector, which would take as long again."""
    if network["backbone"] != "pixels":
        pytest.skip("tested with a grid")


@pytest.fixture(scope="module")
def captioner(run):
    return tfcap.load(run)


@pytest.fixture(scope="module")
def folders(studies):
    return [str(studies / "images" / f"s{number}") for number in (8, 9, 10, 11)]  # 1, 2, 2, 1


@pytest.mark.slow
def test_records_have_the_regions_of_both_pictures_one_after_the_other(
    studies, network, prepared, tmp_path
):
    content = json.loads((studies / "annotation.json").read_text())
    halves = []
    for view in range(2):  # each picture as an image of its own
        rows = {split: [] for split in content}
        for split in content:
            for row in content[split]:
                path = row["image_path"][view : view + 1] or row["image_path"][:1]
                rows[split].append({**row, "image_path": path})
        (tmp_path / "rows.json").write_text(json.dumps(rows))
        values = settings(studies, captions=str(tmp_path / "rows.json"), **network)
        prepare(Settings(out=str(tmp_path / str(view)), **values))
        halves.append(PreparedData.load(tmp_path / str(view)))
    data = PreparedData.load(prepared)
    assert (data.views, halves[0].views) == (2, 1) and "views" not in halves[0].fingerprint
    ids = list(data.file_names("val"))
    whole, *parts = (one.read("val", ids) for one in (data, *halves))
    for row, names in enumerate(data.picture_names("val").values()):
        used = parts[: len(names)]
        masks = [part["mask"][row] for part in used]
        features = tf.concat([p["features"][row][m] for p, m in zip(used, masks, strict=True)], 0)
        own = whole["mask"][row]
        np.testing.assert_array_equal(whole["features"][row][own], features)
        boxes = [p["boxes"][row][m].numpy() for p, m in zip(used, masks, strict=True)]
        if len(names) == 2:  # side by side
            boxes = [box * [0.5, 1, 0.5, 1] + [n / 2, 0, n / 2, 0] for n, box in enumerate(boxes)]
        np.testing.assert_allclose(whole["boxes"][row][own], np.concatenate(boxes), atol=1e-6)


@pytest.mark.slow
def test_a_missing_second_picture_is_named_and_finished_shards_are_kept(studies, tmp_path, capsys):
    folder = shutil.copytree(studies, tmp_path / "studies")
    (folder / "images/s3/10.png").unlink()
    (folder / "images/s9/10.png").write_bytes(b"no picture")
    out = tmp_path / "data"
    values = settings(folder, out=str(out), backbone="pixels")
    prepare(Settings(**values))
    skipped = {s["file_name"]: s["reason"] for s in PreparedData.load(out).fingerprint["skipped"]}
    assert list(skipped) == ["s3/9.png", "s9/9.png"]
    path = str(folder / "images/s3/10.png")
    assert skipped["s3/9.png"].startswith(f"{path}: the picture file does not exist")
    assert "s9/10.png: a picture must be JPEG" in skipped["s9/9.png"]
    assert "8 images have several pictures, up to 2" in capsys.readouterr().out
    before = {path.name: path.read_bytes() for path in out.glob("*.tfrecord")}
    (out / "dataset.json").unlink()
    (out / ".shards/train-00000-of-00003.json").unlink()
    prepare(Settings(**values))
    assert before == {path.name: path.read_bytes() for path in out.glob("*.tfrecord")}


@pytest.mark.parametrize("name", ["frames", "keep_pictures"])
def test_what_reads_one_picture_of_an_image_is_refused(studies, tmp_path, name):
    values = settings(studies, backbone="small_cnn", **{name: 4 if name == "frames" else True})
    with pytest.raises(errors.UsageError, match=f"`{name}` cannot be used with images of several"):
        prepare(Settings(out=str(tmp_path / "data"), **values))


def test_ready_features_are_those_of_the_whole_image(studies, tmp_path):
    (tmp_path / "features").mkdir()
    for number in range(12):
        values = np.random.default_rng(number).random((3, 5), np.float32)
        np.savez(tmp_path / f"features/{number}.npz", features=values)
    content = json.loads((studies / "annotation.json").read_text())
    for row in (row for rows in content.values() for row in rows):
        row["id"] = int(row["id"][1:])
    (tmp_path / "rows.json").write_text(json.dumps(content))
    values = {"captions": str(tmp_path / "rows.json"), "features": str(tmp_path / "features")}
    prepare(Settings(out=str(tmp_path / "data"), min_count=1, **values))
    data = PreparedData.load(tmp_path / "data")
    assert data.views == 1 and data.max_regions == 3


def test_two_reports_may_share_a_picture(studies, tmp_path):
    from tfcap.preparing import inputs

    names = ["s0/9.png", "s0/10.png", "s1/9.png"]
    rows = [(names[0], names[1]), (names[0], names[2]), names[:1], (names[0], names[1])]
    lines = [{"image_path": list(path), "report": f"Lung {n} ."} for n, path in enumerate(rows)]
    (tmp_path / "rows.jsonl").write_text("\n".join(map(json.dumps, lines)))
    values = settings(studies, captions=str(tmp_path / "rows.jsonl"), backbone="pixels")
    entries = inputs.read(Settings(out=str(tmp_path / "data"), **values).checked()).entries
    assert [(entry.pictures, len(entry.captions)) for entry in entries] == [
        (tuple(names[:2]), 2),
        ((names[0], names[2]), 1),
        ((names[0],), 1),
    ]


def test_a_missing_picture_has_no_regions():
    inner = Backbone("pixels", grid=2)
    network = Views(inner, 3)
    rng = np.random.default_rng(1)
    pictures = [inner.resize(rng.integers(0, 256, (50, 40, 3), np.uint8)) for _ in range(3)]
    full, two = network.stack(pictures), network.stack(pictures[:2])
    gap = network.without(full[None], tf.constant([[False, True, False]]))[0]
    features = network.extract(tf.stack([full, two, gap])).numpy()
    single = [inner.extract(picture[None])[0].numpy() for picture in pictures]
    nothing = np.zeros_like(single[0])
    np.testing.assert_array_equal(features[1], np.concatenate([*single[:2], nothing]))
    np.testing.assert_array_equal(features[2], np.concatenate([single[0], nothing, single[2]]))
    ordered, boxes = network.regions(tf.stack([full, two, gap]))
    np.testing.assert_array_equal(ordered[2], np.concatenate([single[0], single[2], nothing]))
    np.testing.assert_array_equal(ordered[:2], features[:2])
    assert boxes is None
    counts = network.mask(ordered).numpy().sum(1).tolist()
    assert counts == [12, 8, 8]
    assert network.mask(ordered[:, :6]).numpy().all()  # regions beyond a limit are cut off
    zeros = network.mask(np.zeros_like(ordered)).numpy()
    assert zeros[:, :4].all() and not zeros[:, 4:].any()


@pytest.mark.slow
def test_a_folder_of_pictures_is_one_image(captioner, prepared, folders):
    data = PreparedData.load(prepared)
    records = data.read("val", list(data.file_names("val")))
    features = captioner.features(folders)
    most = records["features"].shape[1]
    np.testing.assert_array_equal(features[:, :most], records["features"])
    assert not features[:, most:].any()
    whole = captioner(folders)
    assert len(whole) == 4 and [caption.source for caption in whole] == folders
    one = captioner(folders[1])
    assert one.text == whole[1].text and one.score == pytest.approx(whole[1].score, abs=1e-4)
    paths = [f"{folders[1]}/{number}.png" for number in (9, 10)]
    contents = tuple(pathlib.Path(path).read_bytes() for path in paths)
    pixels = [np.asarray(Image.open(path)) for path in paths]
    for [caption] in (captioner([paths]), captioner([contents]), captioner([pixels])):
        assert caption.score == pytest.approx(one.score, abs=1e-4)
    assert captioner(paths[0]).score != pytest.approx(one.score, abs=1e-4)
    assert [caption.source for caption in captioner(paths)] == paths  # two images
    [above] = {os.path.dirname(folder) for folder in folders}
    assert len(captioner(above)) == 12


@pytest.mark.slow
def test_the_pictures_of_a_request_are_one_image(grid, captioner, folders):
    contents = [pathlib.Path(f"{folders[1]}/{number}.png").read_bytes() for number in (9, 10)]
    texts = [base64.b64encode(content).decode() for content in contents]
    row = {"image_bytes": [{"b64": text} for text in texts]}
    alone = {"image_bytes": [{"b64": texts[0]}, {"b64": ""}]}
    with services.serving(captioner) as site:
        _, answer = site.ask("/api/generate", {"images": texts, "stream": False})
        _, others = site.ask("/v1/models/small:predict", {"instances": [row, alone]})
    both, first = captioner([tuple(contents), tuple(contents[:1])])
    assert [one["score"] for one in answer["captions"]] == [pytest.approx(both.score, abs=1e-4)]
    told = [one["scores"][0] for one in others["predictions"]]
    assert told == [pytest.approx(one.score, abs=1e-4) for one in (both, first)]


@pytest.mark.slow
def test_bad_images_have_a_reason(grid, captioner, folders, tmp_path):
    shutil.copytree(folders[1], tmp_path / "three")
    shutil.copy(tmp_path / "three/9.png", tmp_path / "three/11.png")
    shutil.copytree(folders[1], tmp_path / "cut")
    os.truncate(tmp_path / "cut/10.png", 300)
    values = [tmp_path / "three", tmp_path / "cut", tmp_path / "a.mp4", folders[1], ("a.png",)]
    (tmp_path / "a.mp4").write_bytes(b"\0\0\0\x18ftypmp42")
    three, cut, film, good, missing = captioner.stream(values)
    assert "an image of 3 pictures, but the model reads 1 to 2" in three.reason
    assert "a truncated or damaged PNG file" in cut.reason and str(good)
    assert film.reason.startswith("a film, or a HEIC or AVIF picture")
    assert missing.reason == "there is no such file; check the path"


@pytest.mark.slow
def test_attention_is_drawn_over_both_pictures(captioner, prepared, folders, tmp_path):
    data = PreparedData.load(prepared)
    records = data.read("val", list(data.file_names("val")))
    for row, caption in enumerate(captioner(folders, attention="attention")):
        own = records["mask"][row]
        np.testing.assert_allclose(caption.boxes, records["boxes"][row][own], atol=1e-5)
        assert caption.weights.shape == (len(caption.words), int(np.sum(own)))
    pixels = [np.asarray(Image.open(f"{folders[1]}/{number}.png")) for number in (9, 10)]
    picture = captioner(folders[1], attention="contribution").picture
    assert picture.shape == (80, 192, 3)
    np.testing.assert_array_equal(picture, clips.sheet(pixels))
    np.testing.assert_array_equal(picture[:, :96], pixels[0])
    shown = shown_paths(data, "val")
    sizes = [Image.open(path).size for path in shown.values()]
    assert sizes == [(96, 80), (192, 80), (192, 80), (96, 80)]
    captioner(folders[1], attention="attention").draw(tmp_path / "seen.png")


@pytest.mark.slow
def test_a_saved_model_reads_as_many_pictures(captioner, folders, tmp_path, capsys):
    version = captioner.export(tmp_path)
    served = tfcap.load(tmp_path)
    wanted = captioner(folders)
    for results in (served(folders), served([[f"{folders[1]}/9.png", f"{folders[1]}/10.png"]])):
        one = results[1] if len(results) > 1 else results[0]
        assert one.text == wanted[1].text
        assert one.score == pytest.approx(wanted[1].score, abs=1e-4)
    scores = [one.score for one in served(folders)]
    assert scores == pytest.approx([one.score for one in wanted], abs=1e-4)
    bad = [[pathlib.Path(folders[1], "9.png").read_bytes(), b"no picture"]]
    [failure] = served.stream(bad)
    assert failure.reason.startswith("not a JPEG, PNG, BMP, GIF or WebP file")
    gone = shutil.copytree(folders[1], tmp_path / "gone")

    def paths():
        yield gone
        shutil.rmtree(gone)  # before its pictures are read

    [failure] = served.stream(paths())
    assert failure.reason == "No such file or directory"
    function = tf.saved_model.load(version).signatures["serving_default"]
    first = picture_bytes.file("PNG")
    rows = tf.constant([[first, b""], [b"", first], [first, first[:90]]])
    status = function(image_bytes=rows)["status"].numpy().tolist()
    assert status == [b"ok", b"the file is empty", b"a truncated or damaged PNG file"]
    service = RestService(version)
    try:
        client = captions_client.Client(service.url, views=2)
        for result, one in zip(client.caption(folders), wanted, strict=True):
            assert (result.status, result.source) == ("ok", one.source)
            assert result.score == pytest.approx(one.score, abs=1e-4)
        hidden = shutil.copytree(folders[1], tmp_path / "hidden")
        (hidden / "._9.png").write_bytes(b"")  # as macOS writes it beside 9.png
        assert [one.status for one in client.caption([hidden])] == ["ok"]
        assert captions_client.main(["--url", service.url, "--views", "2", *folders]) == 0
        assert capsys.readouterr().out.count("\n") == 4
        [refused] = client.caption([folders[:1] * 3])
        assert refused.status == "an image of 3 pictures, but the model reads 2"
    finally:
        service.close()


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["litert", "onnx"])
def test_a_portable_export_reads_as_many_pictures(network, run, captioner, folders, tmp_path, kind):
    from tfcap import export

    flags = [f"--model_dir={run}", f"--export_dir={tmp_path}/export", f"--format={kind}"]
    if network["backbone"] != "pixels":
        with pytest.raises(ValueError, match="its detector finds a different number"):
            commands.run_here(export, *flags)
        return
    commands.run_here(export, *flags, "--weights=float32")
    portable = tfcap.load(tmp_path / "export")
    wanted = captioner(folders)
    for one, other in zip(portable(folders), wanted, strict=True):
        assert one.text == other.text and one.score == pytest.approx(other.score, abs=1e-4)
    (tmp_path / "alone").mkdir()  # the script without tfcap
    (tmp_path / "alone/._1.png").write_bytes(b"")  # as macOS writes it beside 1.png
    done = subprocess.run(
        [sys.executable, str(tmp_path / "export/caption.py"), *folders, str(tmp_path / "alone")],
        capture_output=True,
        text=True,
    )
    lines = [line.split("\t") for line in done.stdout.splitlines()]
    assert lines == [[folder, one.text] for folder, one in zip(folders, wanted, strict=True)]
    assert done.returncode == 3 and "an image of 0 pictures. Give 1 to 2." in done.stderr
    with pytest.raises(ValueError, match="its page reads one picture of an image"):
        commands.run_here(export, flags[0], f"--export_dir={tmp_path}/web", "--format=web")


@pytest.mark.slow
def test_the_command_captions_folders(grid, run, captioner, folders, tmp_path, capsys):
    commands.run_here(command, f"--model_dir={run}", *folders, f"--attention={tmp_path}/a.png")
    lines = [line.split("\t") for line in capsys.readouterr().out.splitlines()]
    assert lines == [[one.source, one.text] for one in captioner(folders)]
    assert sorted(os.listdir(tmp_path)) == [f"a-s{n}.png" for n in (10, 11, 8, 9)]
