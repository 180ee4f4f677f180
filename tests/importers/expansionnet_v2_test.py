"""A whole ExpansionNet v2, with its Swin, is converted; the run does what the demo does."""

import json
import os
import pathlib

import numpy as np
import pytest
import tensorflow as tf
from helpers import commands, photos, swins, torch_writer
from helpers.released_files import V2_OPTIONS, checkpoint, v2_checkpoint, v2_state
from PIL import Image

import tfcap
from tfcap import evaluate as evaluate_command
from tfcap import models, runs
from tfcap import prepare as prepare_command
from tfcap.backbones import swin
from tfcap.export import export
from tfcap.importers import systems
from tfcap.importers.convert import convert
from tfcap.serving import saved_model

pytestmark = pytest.mark.slow

LENGTH = 11
BUFFERS = ("attn_mask", "relative_position_index")
TENSORS = pathlib.Path(__file__).parents[1] / "goldens" / "expansionnet_v2_tensors.json"


@pytest.fixture(scope="module", autouse=True)
def narrow():
    with pytest.MonkeyPatch.context() as patch:
        swins.add(patch)
        yield


@pytest.fixture(scope="module")
def arrays():
    return swins.arrays_of()


@pytest.fixture(scope="module")
def cfg(arrays):
    return json.loads(str(arrays["cfg"]))


def made(folder, state, **options):
    source = v2_checkpoint(folder, state, **options)
    return convert(*source, str(folder / "run"), LENGTH, V2_OPTIONS), str(folder / "run")


@pytest.fixture(scope="module")
def converted(tmp_path_factory):
    return made(tmp_path_factory.mktemp("first"), v2_state())


@pytest.fixture(scope="module")
def run(converted):
    return converted[1]


@pytest.fixture(scope="module")
def pictures(arrays, tmp_path_factory):
    """PNG files of the size that the network reads."""
    folder = tmp_path_factory.mktemp("pictures")
    for number, pixels in enumerate(arrays["in/pixels"]):
        Image.fromarray(pixels).save(folder / f"{number}.png")
    return [str(folder / f"{number}.png") for number in range(3)]


def texts(cfg, name):
    """The best caption of each picture that the released search `name` finds, as we write it."""
    rows = [image[0][1:] for image in cfg[name]]
    rows = [row[: row.index(cfg["eos"])] if cfg["eos"] in row else row for row in rows]
    words = [[cfg["words"][i] for i in row] for row in rows]
    return [" ".join(row).replace("\n", "\\n").replace("UNK", "<unk>") for row in words]


def test_the_run_directory(converted, run):
    line, _ = converted
    assert line.startswith("swin_narrow and expansionnet_v2, ") and "42 words" in line
    assert "encoder_groups 2 3 5, heads 4" in line
    assert sorted(os.listdir(run)) == [
        *("MODEL_CARD.md", "backbone.weights.h5", "checkpoint", "ckpt-0.data-00000-of-00001"),
        *("ckpt-0.index", "dataset.json", "params.yaml", "vocab.txt"),
    ]
    card = (pathlib.Path(run) / "MODEL_CARD.md").read_text("utf-8")
    assert "MIT" in card and "jchenghu/ExpansionNet_v2" in card
    decoding = runs.load(run).params.task.decoding
    assert (decoding.beam, decoding.length_power, decoding.suppress_unk) == (5, 1.0, False)


def test_features_are_not_rounded(run, arrays):
    backbone = saved_model.server(runs.load(run)).backbone
    features = backbone.extract(tf.constant(arrays["in/pixels"], tf.float32))
    assert np.abs(features - arrays["out/swin"]).max() < 1e-5


@pytest.mark.parametrize("members", [1, 2])
def test_bfloat16_reaches_the_backbone(run, arrays, members):
    loaded = runs.load_together([run] * members, dtype="bfloat16")
    backbone = saved_model.server(loaded).backbone
    assert {variable.dtype for variable in backbone.model.weights} == {"bfloat16", "float32"}
    features = backbone.extract(tf.constant(arrays["in/pixels"], tf.float32))
    assert 1e-3 < np.abs(features - arrays["out/swin"]).mean() < 0.03


def test_a_litert_export_has_the_captions_of_the_run(run, pictures, tmp_path):
    folder = str(tmp_path / "portable")
    export(model_dir=run, export_dir=folder, format="litert", weights="float32")
    expected, found = (tfcap.load(path)(pictures) for path in (run, folder))
    assert [str(caption) for caption in found] == [str(caption) for caption in expected]


def test_a_savedmodel_has_the_released_captions_and_scores(run, cfg, arrays, pictures, tmp_path):
    """The two tests below find captions in Python."""
    expected = texts(cfg, "beam5")
    exported = tf.saved_model.load(tfcap.load(run).export(tmp_path))
    contents = [pathlib.Path(path).read_bytes() for path in pictures]
    served = exported.signatures["serving_default"](image_bytes=tf.constant(contents))
    assert [row[0].decode() for row in served["captions"].numpy()] == expected
    assert len(set(expected)) > 1
    lengths = [len(image[0]) for image in cfg["beam5"]]  # SOS counts
    scores = arrays["out/beam5_logp"][:, 0].sum(-1) / lengths
    np.testing.assert_allclose(served["scores"][:, 0], scores, atol=1e-5)


def test_an_ensemble_of_two_has_both_backbones(run, cfg, pictures, tmp_path):
    _, other = made(tmp_path, v2_state("w2/"))
    captions = tfcap.load([run, other], beam=3)(pictures)
    assert [caption.text for caption in captions] == texts(cfg, "ens_beam3")


def test_evaluation_of_pictures(run, cfg, pictures, tmp_path, capsys):
    """Data that was prepared with the weights of the run has its features."""
    entries = [
        {"filename": f"{i}.png", "split": "test", "sentences": [{"raw": "a cat on the bed"}]}
        for i in range(3)
    ]
    weights = ("--backbone", swins.NAME, "--weights", f"{run}/backbone.weights.h5")
    words = ("--captions", photos.write_captions(tmp_path, entries), "--vocab", f"{run}/vocab.txt")
    images, data = ("--images", os.path.dirname(pictures[0])), str(tmp_path / "data")
    commands.run_here(prepare_command, *weights, *words, *images, "--out", data)
    output = str(tmp_path / "captions.json")
    where = ("--model_dir", run, "--data_dir", data, "--split=test", "--output", output)
    commands.run_here(evaluate_command, *where, "--scores=BLEU")
    captions = [row["caption"] for row in json.loads(pathlib.Path(output).read_text())]
    assert captions == texts(cfg, "beam5")
    assert "BLEU" in capsys.readouterr().out


def test_the_older_layout_and_a_file_without_buffers(run, tmp_path):
    _, again = made(tmp_path, v2_state(without=BUFFERS), write=torch_writer.write_older)
    for name in ("backbone.weights.h5", "ckpt-0.data-00000-of-00001", "vocab.txt"):
        paths = [pathlib.Path(folder, name) for folder in (run, again)]
        assert paths[0].read_bytes() == paths[1].read_bytes(), name


def test_a_file_without_a_backbone_becomes_a_run_on_features(arrays, tmp_path):
    line, folder = made(tmp_path, v2_state(without=["swin_transf."]))
    loaded = runs.load(folder)
    assert line.startswith("expansionnet_v2, ") and loaded.fingerprint["backbone"] is None
    assert "backbone.weights.h5" not in os.listdir(folder)
    inputs = {"features": tf.constant(arrays["out/swin"]), "mask": tf.ones((3, 16), bool)}
    encoded = loaded.model.encode(inputs)["encoded"]
    assert np.abs(encoded - arrays["out/encoded"]).max() < 1e-5


KEY = "swin_transf.layers.1.blocks.0.mlp.fc1.bias"


@pytest.mark.parametrize(
    ("family", "changes", "override", "word"),
    [
        ("expansionnet_v2", {KEY: None}, V2_OPTIONS, "layers.1.blocks.0.mlp.fc1.bias"),
        (
            "expansionnet_v2",
            {"pos_encoder.weight": None},
            V2_OPTIONS,
            "embed_positions.* is missing",
        ),
        ("expansionnet_v2", {}, "", "10 static vectors, but the groups 32 64 128"),
        ("expansionnet", {}, "", "Use `family=expansionnet_v2`"),
        (
            "expansionnet_v2",
            {"swin_transf.patch_embed.proj.weight": np.ones((16, 3, 4, 4), "f4")},
            V2_OPTIONS,
            r"no known Swin .* has 16 channels, \(2, 3, 2\) blocks, 1 heads and windows of 4",
        ),
    ],
)
def test_a_file_that_does_not_fit_is_refused(family, changes, override, word, tmp_path):
    state = {k: v for k, v in (v2_state() | changes).items() if v is not None}
    _, path, words = v2_checkpoint(tmp_path, state)
    with pytest.raises(ValueError, match=word):
        convert(family, path, words, str(tmp_path / "run"), LENGTH, override)
    assert not (tmp_path / "run").exists()


def test_a_first_expansionnet_is_refused(tmp_path):
    _, path, words = checkpoint(tmp_path, "expansion")
    with pytest.raises(ValueError, match="8 static vectors.*`family=expansionnet` if"):
        convert("expansionnet_v2", path, words, str(tmp_path / "run"))


def test_a_second_expansionnet_without_its_backbone_is_no_first_one(tmp_path):
    """One group of all vectors would be other mathematics."""
    state = v2_state(without=["swin_transf."])
    for name, value in state.items():
        if "stc_exp" in name and "exp_vectors" in name:
            state[name] = np.resize(value, (992, value.shape[1]))
    _, path, words = v2_checkpoint(tmp_path, state)
    with pytest.raises(ValueError, match="the checkpoint is an ExpansionNet v2"):
        convert("expansionnet", path, words, str(tmp_path / "run"))


def test_every_tensor_of_the_released_file_has_its_place():
    """By names and shapes alone, without its buffers: the numbers are 0.9 GB."""
    shapes = json.loads(TENSORS.read_text("utf-8"))
    state = {name: np.broadcast_to(np.float32(1), shape) for name, shape in shapes.items()}
    assert len(state) == 485 and sum(v.size for v in state.values()) == 233_803_076
    checkpoint = systems.recognize("expansionnet_v2", state)
    assert swin.name_of(checkpoint.backbone) == "swin_large_384"
    with tf.Graph().as_default():
        sizes = checkpoint.rows + 2, 20, checkpoint.feature_dim
        model = models.build("expansionnet_v2", *sizes, **checkpoint.options)
        network = swin.build(swin.SIZES["swin_large_384"], 384)
    assert runs.count_parameters(model) == 38_606_610
    result = {name: list(tensor.shape) for name, tensor in checkpoint.tensors.items()}
    for name, axis in model.vocabulary_axes.items():
        result[name][axis] += 2  # <pad> and <bos>
    weights = model.checkpoint_items["weights"]
    assert result == {name: weight.shape.as_list() for name, weight in weights.items()}
    wanted = {}
    for layer, name, _ in swin.tensors(network):
        values = [weight.shape for weight in layer.weights]
        names = [name] if name.endswith("table") else [f"{name}.weight", f"{name}.bias"]
        wanted |= {n: sorted(v) for n, v in zip(names, values, strict=False)}
    assert {n: sorted(v.shape) for n, v in checkpoint.backbone.items()} == wanted
