"""The whole way from photographs to captions over the regions of a narrow random detector."""

import base64
import dataclasses
import json
import os
import pathlib
import shutil

import numpy as np
import pytest
import tensorflow as tf
from helpers import commands, literal_detector, photos

import tfcap
from tfcap import configs, errors, runs
from tfcap.backbones import detector, saved
from tfcap.captioning.demo_page import Model
from tfcap.data.prepared import PreparedData
from tfcap.inference.decode import decode_split
from tfcap.inference.retrieval import Pairs, find_sentences
from tfcap.preparing.build import prepare
from tfcap.preparing.settings import Settings
from tfcap.training.stages import train

SIZES = dataclasses.replace(
    literal_detector.NARROW, short=160, long=256, candidates=200, proposals=40, boxes=(10, 20)
)


@pytest.fixture(scope="module")
def weights(tmp_path_factory):
    folder = tmp_path_factory.mktemp("detector") / "weights"
    detector.write(folder, literal_detector.random_weights(SIZES), literal_detector.card_of(SIZES))
    return str(folder)


@pytest.fixture(scope="module")
def few(shapes, weights, tmp_path_factory):
    """Settings, without `out`, for 12 training and 5 validation scenes."""
    folder = tmp_path_factory.mktemp("few")
    images = json.loads(pathlib.Path(shapes, "dataset_shapes.json").read_text())["images"]
    splits = [[image for image in images if image["split"] == name] for name in ("train", "val")]
    captions = folder / "captions.json"
    captions.write_text(json.dumps({"images": splits[0][:12] + splits[1][:5]}))
    values = {"images": f"{shapes}/images", "backbone": "bottom_up", "weights": weights}
    values |= {"objects": True, "min_count": 1, "images_per_shard": 4}
    return {"captions": str(captions), **values}


@pytest.fixture(scope="module")
def prepared(few, tmp_path_factory):
    out = str(tmp_path_factory.mktemp("regions") / "data")
    prepare(Settings(out=out, **few))
    return out


@pytest.fixture(scope="module")
def region_run(small, prepared, tmp_path_factory):
    return trained("attention_lstm", small, prepared, tmp_path_factory)


def trained(name, small, prepared, tmp_path_factory, **changes):
    folder = str(tmp_path_factory.mktemp(f"{name}_run") / "run")
    task = {**small["task"], "data_dir": prepared, **changes}
    # Two steps and one validation take less time than their graphs.
    graphs = ("train_tf_function", "train_tf_while_loop", "eval_tf_function")
    trainer = {**small["trainer"], "train_steps": 2, "validation_interval": 2, "shown_images": 0}
    override = json.dumps({"task": task, "trainer": trainer | dict.fromkeys(graphs, False)})
    with commands.hidden_java(tmp_path_factory.mktemp("no_java")):
        train(configs.resolve(name, override=override), name, folder)
    return folder


@pytest.mark.slow
def test_records_have_regions_boxes_and_names(prepared, few, weights, capsys):
    data = PreparedData.load(prepared)
    assert data.fingerprint["backbone"]["name"] == "bottom_up"
    assert not data.fingerprint["skipped"]
    network = detector.load(weights)
    image = int(data.index("val").id[0])
    path = os.path.join(few["images"], data.file_names("val")[image])
    content = tf.io.read_file(path)
    result = network.regions(network.decode(content)[None])
    count, read = int(result.count[0]), data.read("val", [image])
    assert 10 <= count <= 20
    np.testing.assert_array_equal(read["features"][0, :count], result.features[0, :count])
    unit = np.clip(result.boxes[0, :count] / 96, 0, 1)
    np.testing.assert_allclose(read["boxes"][0, :count], unit, atol=1e-6)
    feature = photos.messages(data.shard_paths("val")[0])[0].features.feature
    names = [f"class {i}" for i in result.classes[0, :count].numpy()]
    assert [name.decode() for name in feature["objects/classes"].bytes_list.value] == names
    scores = feature["objects/attributes/scores"].float_list.value
    np.testing.assert_allclose(scores, result.attribute_scores[0, :count], rtol=1e-6)
    assert list(feature["image/size"].int64_list.value) == [96, 96]
    prepare(Settings(out=prepared, **few))  # the same command again
    assert "is prepared already" in capsys.readouterr().out


@pytest.mark.slow
def test_shards_that_are_finished_are_kept(few, prepared, tmp_path, capsys):
    """A killed prepare leaves no description of the shard that it was writing."""
    out, name = tmp_path / "data", "train-00002-of-00003"
    shutil.copytree(prepared, out)
    (out / "dataset.json").unlink()
    (out / ".shards" / f"{name}.json").unlink()
    prepare(Settings(out=str(out), **few))
    assert "finished already: 13 images" in capsys.readouterr().out
    for file in (f"{name}.tfrecord", "dataset.json"):
        assert (out / file).read_bytes() == pathlib.Path(prepared, file).read_bytes()


@pytest.mark.slow
def test_python_savedmodel_and_demo_give_the_same_captions(
    region_run, prepared, pictures, tmp_path
):
    captioner = tfcap.load(region_run)
    captions = captioner(pictures, attention="attention")
    texts = [str(one) for one in captions]
    assert all(texts)

    captioner.export(tmp_path / "served")
    served = tfcap.load(tmp_path / "served")(pictures)
    assert [str(one) for one in served] == texts
    scores = [one.score for one in captions]
    np.testing.assert_allclose([one.score for one in served], scores, atol=1e-4)
    assert np.ptp(scores) > 1e-3  # the pictures differ, even where captions after two steps do not

    data = PreparedData.load(prepared)
    records = data.read("val", list(data.file_names("val")))
    counts = records["mask"].numpy().sum(1)
    assert counts.min() < counts.max()
    for one, boxes, count in zip(captions, records["boxes"], counts, strict=True):
        np.testing.assert_allclose(one.boxes, boxes[:count], atol=1e-6)
        assert one.weights.shape == (len(one.words), count)
    assert sum(captions[0].log_probs) == pytest.approx(captions[0].score, abs=1e-3)
    score = captioner.score(pictures[0], texts[0])[0, 0]
    assert score == pytest.approx(captions[0].score, abs=1e-3)
    captions[0].draw(tmp_path / "figure.png")
    place = int(counts.argmin())  # padding is no region
    [[nearest]] = captioner.collection().nearest(pictures[place], top=1)
    assert nearest.position == place and nearest.similarity == pytest.approx(1, abs=1e-5)

    content = base64.b64encode(open(pictures[0], "rb").read()).decode()
    request = {"instances": [{"image_bytes": {"b64": content}}], "attention": "attention"}
    [prediction] = Model("regions", captioner).predict(request)["predictions"]
    assert prediction["captions"][0] == texts[0] and not prediction["tiles"]


@pytest.mark.slow
def test_a_picture_without_regions_fails_alone(region_run, pictures, tmp_path):
    tiny = tmp_path / "tiny.png"
    tf.io.write_file(str(tiny), tf.io.encode_png(np.full((8, 8, 3), 99, np.uint8)))
    good, bad = tfcap.load(region_run).stream([pictures[0], str(tiny)])
    assert str(good) and bad.reason == "no region is found: the picture is too small."


@pytest.mark.slow
def test_an_ensemble_of_other_detectors_is_refused(region_run, tmp_path):
    other = shutil.copytree(region_run, tmp_path / "other")
    path = other / "dataset.json"
    fingerprint = json.loads(path.read_text())
    network = other / fingerprint["backbone"]["weights"]
    shutil.rmtree(network)
    weights = literal_detector.random_weights(SIZES, seed=2)
    detector.write(network, weights, literal_detector.card_of(SIZES))
    fingerprint["backbone"]["weights_sha256"] = saved.digest(network).sha256
    path.write_text(json.dumps(fingerprint))
    runs.load_together([region_run, region_run])
    with pytest.raises(ValueError, match="need the same detector"):
        runs.load_together([region_run, str(other)])


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"weights": None}, "`weights` of bottom_up is missing"),
        ({"grid": 7}, "Leave out `grid`"),
        ({"keep_pictures": True}, "cannot be trained"),
        ({"backbone": "pixels", "weights": None}, "`objects` needs `backbone=bottom_up`"),
    ],
)
def test_refused_settings(changes, message):
    values = {"images": "images", "backbone": "bottom_up", "weights": "a", "objects": True}
    with pytest.raises(errors.UsageError, match=message):
        Settings("out", "captions.json", **(values | changes)).checked()


@pytest.mark.slow
def test_a_system_that_reads_boxes_gets_them_in_data_python_and_savedmodel(
    small, prepared, pictures, tmp_path_factory
):
    """Training read them, too: a batch of the data has other inputs than one of a grid."""
    model = {"ort": {"width": 32, "heads": 2, "encoder_layers": 1, "decoder_layers": 1}}
    folder = trained("ort", small, prepared, tmp_path_factory, model=model)
    run, data = runs.load(folder), PreparedData.load(prepared)
    assert data.input_specs.keys() == {"features", "mask", "boxes"}
    captioner = tfcap.load(folder)
    captions = captioner(pictures, attention="attention")
    found = decode_split(run, data, "val", batch_size=2)
    scores = [found.scores[image][0] for image in data.file_names("val")]
    np.testing.assert_allclose([one.score for one in captions], scores, atol=1e-4)
    export = tmp_path_factory.mktemp("export")
    served = tfcap.load(captioner.export(export))(pictures)
    np.testing.assert_allclose([one.score for one in served], scores, atol=1e-4)
    for one in captions:
        assert sum(one.log_probs) == pytest.approx(one.score, abs=1e-4)
    [score] = captioner.score(pictures[0], str(captions[0]))[0]
    assert score == pytest.approx(scores[0], abs=1e-3)
    inputs = captioner.encoder_inputs(pictures[:2])
    assert inputs["boxes"].shape == (*inputs["mask"].shape, 4)
    best = [own[0] for own in find_sentences(Pairs(run, data, "val", 0, 2), inputs, 1, 0, 1)]
    for picture, (text, score) in zip(pictures, best, strict=False):
        assert score == pytest.approx(captioner.score(picture, text)[0][0], abs=1e-3)

    signature = tf.saved_model.load(str(export / "1")).signatures["features"]
    batch = data.read("val", list(data.file_names("val")))
    counts = tf.reduce_sum(tf.cast(batch["mask"], tf.int32), 1)
    inputs = {"features": batch["features"], "num_regions": counts, "boxes": batch["boxes"]}
    np.testing.assert_allclose(signature(**inputs)["scores"][:, 0], scores, atol=1e-4)
    inputs["boxes"] = tf.zeros_like(batch["boxes"])  # a grid of cells
    assert np.abs(signature(**inputs)["scores"][:, 0] - scores).max() > 1e-3
