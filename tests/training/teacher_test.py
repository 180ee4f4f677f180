"""A teacher in cross-entropy training: its loss, where it takes part, and which runs can teach."""

import dataclasses
import glob
import json

import keras
import numpy as np
import pytest
import tensorflow as tf
from helpers import events, seeds
from helpers.steps import batch, update

from tfcap import configs, models, runs
from tfcap.data.prepared import PreparedData
from tfcap.decoding.sampling import scheduled_sampling
from tfcap.layers import precision
from tfcap.models.ensemble import Ensemble
from tfcap.objectives import losses
from tfcap.prepare import prepare
from tfcap.training import optim
from tfcap.training.stages import train
from tfcap.training.start import load_teacher
from tfcap.training.task import CaptionTask

pytestmark = pytest.mark.usefixtures("module_without_java")

MEMBERS = {"show_tell": {"width": 8}, "updown": {"width": 8, "attention_width": 4}}
# A quick student with dropout; every step a checkpoint.
FAST = {
    "task": {
        "model": {"show_tell": {"width": 8}},
        "validation_data": {"global_batch_size": 4, "limit": 4},
        "decoding": {"beam": 1},
        "metrics": ["BLEU"],
    },
    "trainer": {
        "train_steps": 3,
        "steps_per_loop": 1,
        "checkpoint_interval": 1,
        "max_to_keep": 9,
        "validation_interval": 3,
        "shown_images": 0,
        "train_tf_while_loop": False,
        "train_tf_function": False,
        "eval_tf_function": False,
        "best_checkpoint_eval_metric": "loss",
        "best_checkpoint_metric_comp": "lower",
        "optimizer_config": {"ema_decay": 0.6},
    },
}


@pytest.fixture(autouse=True)
def float32():
    yield
    keras.mixed_precision.set_global_policy("float32")


@pytest.fixture(scope="module")
def plain(small):
    """The configuration of a small Up-Down without dropout."""
    sizes = dict(width=16, attention_width=8)
    sizes |= {f"{name}_dropout": 0.0 for name in ("word", "region", "head")}
    overrides = events.merged(small, {"task": {"model": {"updown": sizes}}})
    del overrides["task"]["model"]["attention_lstm"]
    return configs.resolve("updown", override=json.dumps(overrides))


def taught(params, weight, temperature=1.0, **task):
    teacher = {"weight": weight, "temperature": temperature}
    return params.replace(task={"teacher": teacher, **task})


@pytest.fixture(scope="module")
def teacher(data):
    """A function that makes an ensemble, always with the same weights and with dropout."""

    def make():
        seeds.set_seed(9)
        sizes = len(data.vocab), 12, data.feature_dim
        result = Ensemble([models.build(name, *sizes, **MEMBERS[name]) for name in MEMBERS])
        for variable in result.trainable_variables:  # so that the words before a word matter
            variable.assign(4.0 * variable)
        return result

    return make


# ---- the loss -----------------------------------------------------------------------------------


def log_softmax(x):
    x = x - x.max(-1, keepdims=True)
    return x - np.log(np.exp(x).sum(-1, keepdims=True))


def literal_loss(student, teacher, tokens, smoothing, weight, temperature):
    """The loss of a batch and the perplexity of its words, word by word in float64."""
    total = nll = words = 0.0
    for place in np.argwhere(tokens[..., 1:] != 0):
        word = tokens[..., 1:][tuple(place)]
        mine, theirs = (x[tuple(place)].astype(np.float64) for x in (student, teacher))
        logp = log_softmax(mine)
        target = np.full(len(mine), smoothing / (len(mine) - 1))
        target[word] = 1 - smoothing
        hard = (target * (np.log(target) - logp)).sum()
        soft = -(np.exp(log_softmax(theirs / temperature)) * log_softmax(mine / temperature)).sum()
        total += (1 - weight) * hard + weight * temperature**2 * soft
        nll -= logp[word]
        words += 1
    return total / words, np.exp(nll / words)


@pytest.mark.parametrize("sampled", [False, True])
def test_the_loss_of_a_step_is_that_of_the_definition(sampled, plain, data, teacher):
    """With drawn words, the teacher reads those that the student reads."""
    ramp = {"increase": 0.7, "every": 1, "maximum": 0.7}
    params = taught(plain, 0.3, 2.0, **({"scheduled_sampling": ramp} if sampled else {}))
    ours = teacher()
    task = CaptionTask(params.task, data, configs.Optimizer(clip="none"), teacher=ours)
    student, metrics = task.build_model(), task.build_metrics()
    inputs = batch(data, [3, 5, 2, 9], 0)
    words = inputs["tokens"][..., :-1]
    optimizer = keras.optimizers.SGD(0.1)
    optimizer.build(student.trainable_variables)
    optimizer.iterations.assign(1)
    if sampled:
        rows, seed = tf.reshape(words, (4, 11)), task.seed(tf.constant(1, tf.int64))
        rate = optim.sampling_probability(params.task.scheduled_sampling, optimizer.iterations)
        _, words = scheduled_sampling(student, student.encode(inputs), rows, rate, seed)
        words = tf.reshape(words, (2, 2, 11))
        assert (words.numpy() != inputs["tokens"][..., :-1].numpy()).any()
    logits = [model(inputs | {"tokens": words}).numpy() for model in (student, ours)]
    expected = literal_loss(*logits, inputs["tokens"].numpy(), 0.1, 0.3, 2.0)
    before = [v.numpy() for v in ours.variables]
    logs = task.train_step(inputs, student, optimizer, metrics)
    assert float(logs["loss"]) == pytest.approx(expected[0], rel=1e-5)
    assert [float(m.result()) for m in metrics] == pytest.approx(expected, rel=1e-5)
    for value, variable in zip(before, ours.variables, strict=True):
        np.testing.assert_array_equal(value, variable)
    # Validation measures the references alone.
    metrics = task.build_metrics()
    inputs |= {"real": tf.constant([True] * 2), "id": tf.range(2, dtype=tf.int64)}
    inputs["references"] = task.cider.references(inputs["tokens"][..., 1:])
    task.validation_step(inputs, student, metrics)
    logits = student(inputs | {"tokens": inputs["tokens"][..., :-1]}).numpy()
    expected = literal_loss(logits, logits, inputs["tokens"].numpy(), 0.1, 0.0, 1.0)
    assert [float(m.result()) for m in metrics] == pytest.approx(expected, rel=1e-5)


def test_no_gradient_flows_into_the_teacher():
    logits = tf.Variable(np.random.default_rng(0).normal(size=(2, 3, 5)).astype(np.float32))
    theirs = tf.Variable(logits + 1.0 * tf.range(5.0))
    with tf.GradientTape() as tape:
        loss = losses.distillation(logits, theirs, tf.constant([[4, 2, 0], [3, 3, 2]]), 3.0)
    gradient, none = tape.gradient(loss, [logits, theirs])
    assert none is None
    # T^2 (p / T - q / T) of each word, and nothing at PAD.
    p, q = (np.exp(log_softmax(x.numpy() / 3.0)) for x in (logits, theirs))
    expected = 3.0 * (p - q)
    expected[0, 2] = 0
    np.testing.assert_allclose(gradient, expected, atol=1e-6)


def test_weight_0_is_no_teacher(plain, data, teacher):
    """Bit for bit; and weight 1 is another step."""
    inputs = [batch(data, [3, 5, 2, 9], 0)]
    expected = update(plain, data, inputs)
    result = update(taught(plain, 0.0), data, inputs, teacher=teacher)
    np.testing.assert_array_equal(result[1], expected[1])
    assert result[2:] == expected[2:]
    other = update(taught(plain, 1.0), data, inputs, teacher=teacher)
    assert np.abs(other[1] - expected[1]).max() > 0.01 * np.abs(expected[1]).max()


@pytest.mark.slow
def test_replicas_micro_batches_and_xla_take_the_same_step(plain, data, teacher):
    """Few words on one replica or part, many on the other."""
    short, long = batch(data, [1, 1, 1, 1], 0), batch(data, [10, 10, 10, 10], 1)
    both = {key: tf.concat([short[key], long[key]], 0) for key in short}
    params = taught(plain, 0.6, 2.0)
    _, one, metrics, [loss] = update(params, data, [both], teacher=teacher)
    parted = taught(plain, 0.6, 2.0, micro_batches=2)
    for result in (
        update(params, data, [short, long], teacher=teacher),
        update(parted, data, [both], teacher=teacher, scaled=True),
        update(params, data, [both], teacher=teacher, xla=True),
    ):
        assert np.abs(result[1] - one).max() < 1e-5 * np.abs(one).max()
        assert result[2] == pytest.approx(metrics, rel=1e-5)
        assert np.mean(result[3]) == pytest.approx(loss, rel=1e-5)


# ---- a run --------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def overrides(small, trained):
    """Changes that make `show_tell` a quick student of `trained`, twice."""
    teacher = {"task": {"teacher": {"model_dir": [trained, trained]}}}
    overrides = events.merged(small, FAST | {"task": FAST["task"] | teacher["task"]})
    del overrides["task"]["model"]["attention_lstm"]
    return overrides


def run(overrides, folder):
    params = configs.resolve("show_tell", override=json.dumps(overrides))
    return train(params, "show_tell", str(folder))


def test_a_taught_run_resumes_bit_for_bit_and_stores_no_teacher(overrides, tmp_path, capsys):
    """Weight 0 shows that loading the teacher changes no random number."""
    whole = tmp_path / "whole"
    task = run(overrides, whole)
    assert capsys.readouterr().out.count("teacher: ") == 2 and task.teacher.members
    run(events.merged(overrides, {"trainer": {"train_steps": 1}}), tmp_path / "parts")
    run(overrides, tmp_path / "parts")
    zero = events.merged(overrides, {"task": {"teacher": {"weight": 0.0}}})
    run(zero, tmp_path / "zero")
    alone = events.merged(overrides, {"task": {"teacher": {"model_dir": []}}})
    run(alone, tmp_path / "alone")
    saved = {path.name: events.tensors(f"{path}/ckpt-3") for path in tmp_path.iterdir()}
    assert len({frozenset(tensors) for tensors in saved.values()}) == 1
    weights = [name for name in saved["whole"] if name.startswith(("weights/", "average/"))]
    assert len(weights) > 10
    for name in saved["whole"].keys() - {n for n in saved["whole"] if "save_counter" in n}:
        np.testing.assert_array_equal(saved["whole"][name], saved["parts"][name], err_msg=name)
        np.testing.assert_array_equal(saved["zero"][name], saved["alone"][name], err_msg=name)
    assert any((saved["whole"][name] != saved["zero"][name]).any() for name in weights)
    info = json.loads((whole / "best_ckpt" / "info.json").read_text())
    assert info["signature"] == "cross-entropy with a teacher"
    assert glob.glob(f"{tmp_path}/alone/ckpt-3*")


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_the_teacher_computes_in_the_precision_of_training(dtype, overrides, data):
    runtime = {"runtime": {"mixed_precision_dtype": dtype}}
    params = configs.resolve("show_tell", override=json.dumps(events.merged(overrides, runtime)))
    precision.set_global(dtype)
    teacher = load_teacher(params, data)
    inputs = [batch(data, [3, 5, 2, 9], 0)]
    policies = {layer.dtype_policy.name for layer in teacher.members[0].layers}
    assert all(dtype in name or name == "float32" for name in policies) and len(policies) <= 2
    assert any(dtype in name for name in policies)
    _, change, _, [loss] = update(params, data, inputs, scaled=True, teacher=lambda: teacher)
    assert np.isfinite(loss) and np.isfinite(change).all() and np.abs(change).max() > 0


# ---- errors -------------------------------------------------------------------------------------


def refused(params, data, text):
    with pytest.raises(ValueError, match=text):
        load_teacher(params, data)


def test_a_teacher_needs_the_words_and_features_of_the_data(overrides, data, tmp_path, trained):
    params = configs.resolve("show_tell", override=json.dumps(overrides))
    assert isinstance(load_teacher(params, data), Ensemble)
    prepare(str(tmp_path / "other"), source="shapes", train=8, val=2, test=2, min_count=2)
    other = PreparedData.load(str(tmp_path / "other"))
    refused(params, other, f"other has another vocabulary .* than {trained} ")
    changed = dict(data.fingerprint, backbone=dict(data.fingerprint["backbone"], grid=3))
    other = dataclasses.replace(data, fingerprint=changed)
    refused(params, other, "has another backbone .* than")
    longer = params.replace(task={"max_length": 13})
    refused(longer, data, "has task.max_length=12, below the 13 of this training")
    missing = params.replace(task={"teacher": {"model_dir": [str(tmp_path / "none")]}})
    refused(missing, data, "There is no run directory")


def test_a_teacher_with_a_trained_backbone_is_refused(overrides, small, tmp_path):
    prepare(str(tmp_path / "data"), source="shapes", train=8, val=2, test=2, backbone="small_cnn")
    data = PreparedData.load(str(tmp_path / "data"))
    options = events.merged(small, {"task": {"backbone": {"trainable": True}}})
    its = configs.resolve("attention_lstm", override=json.dumps(options))
    captioner = runs.build_model(its.task, len(data.vocab), data.fingerprint["features"])
    model = runs.with_backbone(captioner, its.task, data.fingerprint, data.folder)
    folder = str(tmp_path / "end_to_end")
    weights = glob.glob(f"{data.folder}/backbone*")
    runs.create(folder, "attention_lstm", its, data.vocab, data.fingerprint, model, weights)
    params = configs.resolve("show_tell", override=json.dumps(overrides))
    params = params.replace(task={"teacher": {"model_dir": [folder]}})
    refused(params, data, "end_to_end has a backbone of its own, and cannot read the features")
