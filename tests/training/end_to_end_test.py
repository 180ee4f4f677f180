"""End-to-end training: its stages, and every command that reads such a run."""

import os

import numpy as np
import pytest
import tensorflow as tf
from helpers import events

import tfcap
from tfcap import runs
from tfcap.data import pipeline
from tfcap.data.prepared import PreparedData
from tfcap.inference.decode import decode_split
from tfcap.prepare import prepare
from tfcap.serving import saved_model
from tfcap.serving.saved_model import export as write_version

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("module_without_java")]

# Without graphs: a few steps of a tiny model, each with a checkpoint.
TINY = {
    "task": {
        "max_length": 8,
        "model": {"attention_lstm": {"width": 8, "attention_width": 4}},
        "train_data": {"global_batch_size": 4, "captions_per_image": 1},
        "validation_data": {"global_batch_size": 2, "captions_per_image": 1, "limit": 2},
        "metrics": ["BLEU"],
        "decoding": {"beam": 1},
    },
    "trainer": {
        "train_steps": 2,
        "steps_per_loop": 1,
        "checkpoint_interval": 1,
        "validation_interval": 2,
        "max_to_keep": 9,
        "shown_images": 0,
        "best_checkpoint_eval_metric": "loss",
        "best_checkpoint_metric_comp": "lower",
        "train_tf_while_loop": False,
        "train_tf_function": False,
        "eval_tf_function": False,
        "optimizer_config": {
            "name": "adam",
            "clip": "none",
            "schedule": {"name": "constant", "learning_rate": 0.003},
        },
    },
}
TRAINED = {"task": {"backbone": {"trainable": True, "learning_rate_factor": 1.0}}}
QUIET = ("save_counter", "validated")  # of files and validations, not of training


@pytest.fixture(scope="module")
def pictures(tmp_path_factory):
    """Prepared drawings with the small network and with their pictures."""
    folder = tmp_path_factory.mktemp("pictures")
    return str(
        prepare(
            folder,
            source="shapes",
            train=16,
            val=8,
            test=0,
            min_count=1,
            backbone="small_cnn",
            keep_pictures=True,
        )
    )


@pytest.fixture(scope="module")
def overrides(pictures):
    return events.merged(TINY, {"task": {"data_dir": pictures}})


@pytest.fixture(scope="module")
def on_features(overrides, tmp_path_factory):
    """The first stage: the captioner learns on the prepared features."""
    folder = tmp_path_factory.mktemp("features")
    events.run(overrides, folder)
    return str(folder)


def second(overrides, on_features):
    start = {"task": {"init_checkpoint": f"{on_features}/best_ckpt"}}
    return events.merged(events.merged(overrides, TRAINED), start)


@pytest.fixture(scope="module")
def whole(overrides, on_features, tmp_path_factory):
    """The second stage: captioner and network are trained, and TensorBoard shows an image."""
    folder = tmp_path_factory.mktemp("whole")
    shown = {"trainer": {"shown_images": 1}}
    events.run(events.merged(second(overrides, on_features), shown), folder)
    return str(folder)


def network_of(folder, step):
    """The weights of the network in a checkpoint."""
    result = events.tensors(f"{folder}/ckpt-{step}")
    return {n: v for n, v in result.items() if n.startswith("weights/backbone")}


def test_the_second_stage_starts_from_both_and_trains_both(whole, on_features):
    assert not network_of(on_features, 2) and len(network_of(whole, 2)) == 10
    first = events.tensors(f"{on_features}/ckpt-2")
    then = [events.tensors(f"{whole}/ckpt-{step}") for step in (1, 2)]
    key = "weights/embed_tokens.Sembeddings/.ATTRIBUTES/VARIABLE_VALUE"
    assert 0 < np.abs(then[0][key] - first[key]).max() < 0.01  # one step of 0.003
    kernel = "weights/backbone.S0.Skernel/.ATTRIBUTES/VARIABLE_VALUE"
    prepared = runs.load(on_features)  # any run: its directory has the prepared weights
    backbone = saved_model.server(prepared).backbone
    change = [np.abs(result[kernel] - backbone.model.weights[0].numpy()).max() for result in then]
    assert 0 < change[0] < 0.01 and change[1] > change[0]


def test_self_critical_training_follows(whole, overrides, tmp_path, capsys):
    """It starts from both; with the factor 0 the network stays as it is."""
    start = {"task": {"init_checkpoint": f"{whole}/best_ckpt", "label_smoothing": 0.0}}
    start["task"]["backbone"] = {"trainable": True, "learning_rate_factor": 0.0}
    start["task"]["self_critical"] = {"samples": 2}
    start["trainer"] = {"train_steps": 1, "validation_interval": 1}
    events.run(events.merged(overrides, start), tmp_path, experiment="attention_lstm_scst")
    assert "the weights were loaded correctly" in capsys.readouterr().out
    best, then = network_of(whole, 2), network_of(tmp_path, 1)
    for name, value in best.items():
        np.testing.assert_array_equal(then[name], value)


def test_a_batch_holds_the_pictures_and_depends_on_seed_and_number_only(pictures, whole):
    backbone = runs.load(whole).backbone
    data = PreparedData.load(pictures).with_backbone(backbone)
    options = pipeline.BatchOptions(batch_size=4, captions_per_image=1, max_length=8)
    batches = [
        next(iter(pipeline.training_batches(data, options, seed=3, start_batch=start).skip(skip)))
        for start, skip in ((0, 5), (5, 0))
    ]
    assert batches[0].keys() == {"pictures", "mask", "tokens", "id"}
    for key, value in batches[0].items():
        np.testing.assert_array_equal(value, batches[1][key])
    names = data.file_names("train")
    for image, picture in zip(batches[0]["id"].numpy(), batches[0]["pictures"], strict=True):
        file = os.path.join(data.images, names[int(image)])
        np.testing.assert_array_equal(picture, backbone.decode(tf.io.read_file(file)))


def test_commands_use_the_trained_network(whole, pictures, tmp_path):
    """Captions of the records, of the files, and of a SavedModel are the same."""
    run = runs.load(whole)
    data = run.view(PreparedData.load(pictures))
    result = decode_split(run, data, "val", 4)
    names, images = data.file_names("val"), list(result.captions)
    paths = [os.path.join(data.images, names[image]) for image in images]
    captions = tfcap.load(whole)(paths)
    assert [c.text for c in captions] == [result.captions[image][0] for image in images]
    scores = [result.scores[image][0] for image in images]
    np.testing.assert_allclose([c.score for c in captions], scores, atol=1e-4)

    exported = tf.saved_model.load(write_version(saved_model.server(run), str(tmp_path)))
    contents = tf.constant([open(path, "rb").read() for path in paths])
    served = exported.signatures["serving_default"](image_bytes=contents)
    np.testing.assert_allclose(served["scores"][:, 0], scores, atol=1e-4)

    frozen = PreparedData.load(pictures)  # the features of the prepared network are others
    other = decode_split(run, frozen, "val", 4)
    assert np.abs(np.array([other.scores[image][0] for image in images]) - scores).max() > 1e-3


def test_members_of_an_ensemble_have_their_own_networks(whole, on_features, pictures):
    members = [runs.load(folder) for folder in (whole, on_features)]
    together = runs.load_together([whole, on_features])
    plain = PreparedData.load(pictures)
    data = together.view(plain)
    ids = data.index("val").id[:3].tolist()
    tokens = tf.constant([[[1, 5, 6, 7]]] * 3)
    batch = data.read("val", ids)
    assert batch["features"].shape == [3, 36, 256] and together.model.feature_dim == 256
    each = [
        tf.nn.softmax(m.model({**m.view(plain).read("val", ids), "tokens": tokens}))
        for m in members
    ]
    expected = (each[0] + each[1]) / 2
    np.testing.assert_allclose(
        tf.exp(together.model({**batch, "tokens": tokens})), expected, atol=5e-5
    )
    caption = tfcap.load([whole, on_features])(next(iter(data.picture_paths("val").values())))
    assert caption.words


def test_a_backbone_without_weights_cannot_be_trained(small, tmp_path):
    options = dict(train=8, val=4, test=0, keep_pictures=True)
    folder = prepare(tmp_path / "data", source="shapes", **options)
    data = {"task": {"data_dir": str(folder)}}
    with pytest.raises(ValueError, match="pixels has no weights to train"):
        events.run(events.merged(events.merged(small, TRAINED), data), tmp_path / "run")
