"""Weights of bottom-up attention in the released layouts become the arrays of our detector."""

import dataclasses
import os
import pickle
import shutil

import numpy as np
import pytest
import tensorflow as tf
from helpers import commands, literal_detector, torch_writer
from helpers import released_detectors as released
from helpers.released_files import checkpoint

import tfcap
from tfcap import convert as convert_command
from tfcap import runs
from tfcap.backbones import detector
from tfcap.files import file_sha256, read_json
from tfcap.importers import detector as conversion
from tfcap.importers.convert import convert

SIZES = dict(
    **dict(stem=4, widths=(8, 12, 16, 20), blocks=(1, 2, 3, 2), rpn=6),
    **dict(classes=7, attributes=5, embedding=3, hidden=9),
)
NARROW = detector.Sizes(**SIZES)
TENSORS = released.milvlg(SIZES)
CELL_ANCHORS = "proposal_generator.anchor_generator.cell_anchors.0"
HEAD = "roi_heads.box_predictor"


@pytest.fixture
def path(tmp_path):
    return str(tmp_path / "model.pth")


def caffe(path, factor=999.982):
    layers = released.caffe(SIZES, TENSORS, factor)
    released.write_caffe(path, layers)


def with_anchors(path):
    torch_writer.write(path, {"model": {CELL_ANCHORS: detector.ANCHORS, **TENSORS}, "iteration": 5})


def older(path):
    torch_writer.write_older(path, TENSORS)


@pytest.mark.parametrize("write", [with_anchors, older, caffe])
def test_every_layer_computes_what_it_computed(path, write):
    """Each layer is applied to one random window, in float64."""
    write(path)
    arrays = conversion.read_weights(path, NARROW)
    assert {name: array.shape for name, array in arrays.items()} == detector.shapes(NARROW)
    rng = np.random.default_rng(3)
    for name, _, shape in released.convolutions(SIZES):
        window = rng.normal(size=shape[1:])
        norm = {key: TENSORS[f"{name}.norm.{key}"].astype(np.float64) for key in NORM}
        before = np.einsum("oihw,ihw->o", TENSORS[f"{name}.weight"].astype(np.float64), window)
        before = (before - norm["running_mean"]) / np.sqrt(norm["running_var"] + 1e-5)
        wanted = before * norm["weight"] + norm["bias"]
        result = np.einsum("hwio,ihw->o", arrays[f"{name}.weight"].astype(np.float64), window)
        result += arrays[f"{name}.bias"]
        np.testing.assert_allclose(result, wanted, rtol=1e-6, atol=1e-6, err_msg=name)
    for name in released.HEADS:
        if name != f"{HEAD}.bbox_pred":
            kernel = TENSORS[f"{name}.weight"]
            axes = (2, 3, 1, 0) if kernel.ndim == 4 else (1, 0)
            np.testing.assert_array_equal(arrays[f"{name}.weight"], kernel.transpose(axes))
            np.testing.assert_array_equal(arrays[f"{name}.bias"], TENSORS[f"{name}.bias"])
    np.testing.assert_array_equal(arrays[f"{HEAD}.cls_embed.weight"], TENSORS[released.EMBEDDING])


NORM = ("weight", "bias", "running_mean", "running_var")


def test_a_caffe_normalisation_without_statistics_has_mean_and_variance_0(path):
    """Its number of moving averages is 0, and Caffe then does not divide by it."""
    layers = released.caffe(SIZES, TENSORS)
    layers["bn3b1_branch2a"][2] = np.zeros(1, np.float32)
    released.write_caffe(path, layers)
    name = "backbone.res3.1.conv1"
    arrays = conversion.read_weights(path, NARROW)
    gamma, beta = (TENSORS[f"{name}.norm.{key}"] for key in ("weight", "bias"))
    kernel = TENSORS[f"{name}.weight"][:, :, 0, 0].T * (gamma / 1e-5**0.5)
    np.testing.assert_allclose(arrays[f"{name}.weight"][0, 0], kernel, rtol=1e-6)
    np.testing.assert_array_equal(arrays[f"{name}.bias"], beta)


def test_a_file_without_attributes_is_read(path):
    bare = {k: v for k, v in TENSORS.items() if ".attr_" not in k and ".cls_embed." not in k}
    torch_writer.write(path, bare)
    arrays = conversion.read_weights(path, NARROW)
    assert len(detector.shapes(NARROW)) - len(arrays) == 5
    assert not any("attr" in name for name in arrays)


BIAS = f"{HEAD}.cls_score.bias"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({BIAS: None}, f"{BIAS} [8] is missing."),
        ({BIAS: np.zeros(9, np.float32)}, f"{BIAS} is [9] and should be [8]."),
        ({"head.bias": np.zeros(9, np.float32)}, "head.bias is not one of its tensors."),
        ({CELL_ANCHORS: detector.ANCHORS + 1}, "cell_anchors.0 has other anchors."),
        ({BIAS: np.full(8, np.nan, np.float32)}, "cls_score.bias holds NaN"),
        ({f"x{n}": np.zeros(1, np.float32) for n in range(5)}, "x2 is not one of its tensors; and"),
    ],
)
def test_other_tensors_are_refused(path, changes, message):
    tensors = {**TENSORS, **changes}
    torch_writer.write(path, {k: v for k, v in tensors.items() if v is not None})
    with pytest.raises(ValueError) as error:
        conversion.read_weights(path, NARROW)
    assert message in str(error.value) and str(error.value).startswith(path)


def test_a_caffe_layer_of_another_shape_is_refused(path):
    layers = released.caffe(SIZES, TENSORS)
    del layers["scale2a_branch1"]
    layers["bn_conv1"] = layers["bn_conv1"][:2]
    layers["fc_attr"][0] = layers["fc_attr"][0].T
    released.write_caffe(path, layers)
    wanted = "bn_conv1[2] [1] is missing; scale2a_branch1[0] [8] is missing; scale2a_branch1[1] [8]"
    with pytest.raises(ValueError) as error:
        conversion.read_weights(path, NARROW)
    assert f"{wanted} is missing; and 1 more." in str(error.value)


def test_a_file_of_another_format_is_named(path):
    with open(path, "wb") as file:
        file.write(b"\x89HDF\r\n\x1a\n")
    with pytest.raises(ValueError, match="the file is an HDF5 file") as caught:
        conversion.read_weights(path, NARROW)
    assert "caffe" not in str(caught.value) and "Copy" not in str(caught.value)


def airsplay(path):
    names = {f"{HEAD}.cls_embedding.weight": BIAS, f"{HEAD}.fc_attr.weight": BIAS}
    with open(path, "wb") as file:
        pickle.dump({"model": {k: np.zeros(2) for k in names}, "__author__": "x"}, file)


def transformers(path):
    torch_writer.write(path, {**TENSORS, f"{HEAD}.fc_attr.weight": np.zeros((2, 2), np.float32)})


def vinvl(path):
    names = ("backbone.body.stem.conv1.weight", "roi_heads.box.predictor.cls_score.weight")
    torch_writer.write(path, {"model": {f"module.{k}": np.zeros(2, np.float32) for k in names}})


def deep(path):
    torch_writer.write(path, {"model": {**TENSORS, "roi_heads.res5_bn.weight": np.zeros(2)}})


@pytest.mark.parametrize(
    ("write", "name"),
    [
        (airsplay, "airsplay"),
        (transformers, "unc-nlp"),
        (vinvl, "VinVL's ResNeXt-152"),
        (deep, "MILVLG's ResNet-152"),
    ],
)
def test_the_files_of_other_detectors_are_named(path, write, name):
    write(path)
    with pytest.raises(ValueError, match=name) as error:
        conversion.read_weights(path, NARROW)
    assert "Give the .caffemodel or MILVLG's .pth" in str(error.value)


def write_names(path, kind, count):
    lines = [f"{kind} {n},synonym {n}" for n in range(count)]
    path.write_text("\n".join(lines) + "\n")
    return str(path)


def test_files_of_names_must_have_a_line_for_each_class(tmp_path):
    assert conversion.class_names(write_names(tmp_path / "a.txt", "dog", 3), 3)[1:] == [
        *("dog 1", "dog 2")
    ]
    with pytest.raises(ValueError, match="a.txt must have a name on each of 4 lines"):
        conversion.class_names(str(tmp_path / "a.txt"), 4)


@pytest.mark.slow
@pytest.mark.parametrize("layout", ["caffe", "milvlg"])
def test_a_file_of_the_released_sizes_becomes_a_detector(tmp_path, layout, capsys):
    tensors = released.milvlg(released.RELEASED)
    if layout == "caffe":
        path = tmp_path / "resnet101_faster_rcnn_final.caffemodel"
        released.write_caffe(path, released.caffe(released.RELEASED, tensors))
    else:
        path = tmp_path / "bua-caffe-frcn-r101_with_attributes.pth"
        torch_writer.write(path, {"model": tensors})
    out = tmp_path / "detector"
    asked = [f"--objects_vocab={write_names(tmp_path / 'objects.txt', 'thing', 1600)}"]
    asked += [f"--attributes_vocab={write_names(tmp_path / 'attributes.txt', 'kind', 400)}"]
    asked += ["--boxes=36", "--form=milvlg"] if layout == "milvlg" else []
    commands.run_here(convert_command, "--from=bottom_up", path, "--out", out, *asked)
    assert "1,600 classes, 400 attributes" in capsys.readouterr().out
    card = read_json(out / detector.CARD, "")
    assert card["sha256"] == file_sha256(path)
    assert card["classes"][1599] == "thing 1599" and card["attributes"][0] == "kind 0"
    wanted = {"form": "milvlg", "boxes": [36, 36]} if layout == "milvlg" else {}
    assert card["sizes"] == wanted
    assert card["licence"] == {"caffe": "MIT", "milvlg": "Apache-2.0"}[layout]
    model = detector.load(out)
    assert model.feature_dim == 2048 and model.num_regions == (36 if wanted else 100)
    bias = f"{HEAD}.attr_linear2.bias"
    np.testing.assert_array_equal(model.weights[bias], tensors[bias])
    os.remove(path)


def regions(folder, width=32):
    """Writes a narrow detector with random weights and returns its directory."""
    sizes = dataclasses.replace(
        literal_detector.NARROW,
        **dict(widths=(8, 16, 24, width), short=160, long=256),
        **dict(candidates=200, proposals=40, boxes=(10, 20)),
    )
    weights, card = literal_detector.random_weights(sizes), literal_detector.card_of(sizes)
    detector.write(folder / "detector", weights, card)
    return str(folder / "detector")


@pytest.mark.slow
def test_a_model_with_its_detector_captions_photographs(pictures, tmp_path):
    """The run has a copy of the detector, and its features are those that the model reads."""
    source, out, folder = checkpoint(tmp_path, "updown"), str(tmp_path / "run"), regions(tmp_path)
    asked = ("--from", source[0], source[1], "--vocab", source[2], "--model_dir", out)
    commands.run_here(convert_command, *asked, "--regions", folder)
    network, run = detector.load(folder), runs.load(out)
    shutil.rmtree(folder)
    result = network.regions(network.decode(tf.io.read_file(pictures[0]))[None])
    count = int(result.count[0])
    assert 10 <= count <= 20
    features = result.features[:, :count]
    context = run.model.encode({"features": features, "mask": tf.ones([1, count], bool)})
    wanted = run.vocab.detokenize(run.search()(run.model, context)[0][:, 0])[0].numpy().decode()
    caption = tfcap.load(out)(pictures[0])
    assert caption.text == wanted


@pytest.mark.slow
def test_a_detector_of_another_width_is_refused(tmp_path):
    source = checkpoint(tmp_path, "xlan")
    with pytest.raises(ValueError, match="reads features 32 wide, but those of .* are 48 wide"):
        convert(*source, str(tmp_path / "run"), regions=regions(tmp_path, 48))
    assert not (tmp_path / "run").exists()
