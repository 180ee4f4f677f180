"""Compares the numbers of the code with those in `goldens/`, which earlier code has written.

`goldens/make.py` wrote the files. A change that may not change a number must keep this test green.
Where a number was wrong, run `make.py` for the part that it concerns, and say in the commit what
changed and why.
"""

import hashlib
import json
import os
import pathlib
import random
import shutil
import zlib

import numpy as np
import pytest
import tensorflow as tf
from helpers import commands, small_models

from tfcap import configs, decoding, files, models
from tfcap.data.document_frequency import document_frequencies
from tfcap.decoding.sampling import sample
from tfcap.decoding.search import Search
from tfcap.models.captioner import options_of
from tfcap.objectives.rewards import Reward
from tfcap.prepare import prepare
from tfcap.training import optim
from tfcap.training.self_critical import SelfCriticalTask
from tfcap.training.task import CaptionTask

GOLDENS = pathlib.Path(__file__).parent / "goldens"

# ---- adapter: the imports above and these functions are all that moves with the package ----------


def search(model, context, length, **options):
    """Tokens [B, K, T] and scores [B, K]."""
    return Search(decoding.Options(**options), length)(model, context)[:2]


def greedy(model, context, length):
    """Tokens [B, T] and log-probabilities [B, T]."""
    return sample(model, context, length)


def cross_entropy(length):
    """A task without data, and an optimizer."""
    settings = configs.Optimizer(name="radam")
    return CaptionTask(configs.Task(max_length=length), None, settings), optim.optimizer(
        settings, 0.1
    )


def self_critical(length, vocabulary, references):
    """The same, and what its batches need of the references [B, S, T']."""
    settings = configs.Optimizer(name="adam")
    config = configs.Task(objective="scst", max_length=length)
    words = [[[w for w in row if w > 2] for row in image] for image in references.numpy().tolist()]
    reward = Reward(document_frequencies(words), vocabulary, cider=1.0, bleu=0.5)
    task = SelfCriticalTask(config, None, settings, reward=reward)
    return task, optim.optimizer(settings, 0.01), reward.references(references)


# ---- systems -------------------------------------------------------------------------------------

IMAGES, CAPTIONS, REGIONS, FEATURES = 3, 2, 5, 8
VOCABULARY, LENGTH, STEPS = 13, 6, 3
BEAM = dict(beam=3)
SEARCHES = {
    "beam": BEAM,
    "retired": dict(beam=3, finished="retire", suppress_unk=False),
    "groups": dict(beam=4, groups=2, length_power=1.0, no_repeat_ngram=2, min_length=2),
}


def build(name, dropout):
    """A small system; Keras takes its seeds from Python's random numbers."""
    random.seed(1)
    options = [option.name for option in options_of(models.MODELS[name])]
    rates = {key: dropout for key in options if key.endswith("_dropout")}
    return models.build(name, VOCABULARY, LENGTH, FEATURES, **small_models.SIZES[name] | rates)


def fill(model):
    """Gives each weight numbers that depend on its name, and not on the order of the layers."""
    trained = {id(variable.value) for variable in model.trainable_variables}
    for name, weight in model.checkpoint_items["weights"].items():
        if id(weight) in trained:
            numbers = np.random.default_rng(zlib.crc32(name.encode())).normal(size=weight.shape)
            if len(weight.shape) > 1:
                weight.assign(1.5 * numbers / np.sqrt(weight.shape[0]))
            else:  # around 0 for a bias and around 1 for the scale of a normalisation
                weight.assign(np.round(weight.numpy()) + 0.1 * numbers)


def batch():
    """Images of 5, 3 and 1 regions with two captions each, BOS first, padded after EOS."""
    rng = np.random.default_rng(5)
    tokens = np.zeros((IMAGES, CAPTIONS, LENGTH), np.int32)
    for row, words in zip(tokens.reshape(-1, LENGTH), (4, 2, 3, 1, 4, 3), strict=True):
        row[0], row[1 : 1 + words], row[1 + words] = 1, rng.integers(3, VOCABULARY, words), 2
    return {
        "features": tf.constant(rng.normal(size=(IMAGES, REGIONS, FEATURES)), tf.float32),
        "mask": tf.sequence_mask([5, 3, 1], REGIONS),
        "id": tf.constant([7, 9, 12], tf.int64),
        "tokens": tf.constant(tokens),
    }


def losses(model, objective, steps):
    """The loss of each step of training; the weights stay as they were."""
    inputs, before = batch(), [variable.numpy() for variable in model.trainable_variables]
    if objective == "xe":
        task, optimizer = cross_entropy(LENGTH)
    else:
        references = inputs["tokens"][..., 1:]
        task, optimizer, inputs["references"] = self_critical(LENGTH, VOCABULARY, references)
    optimizer.build(model.trainable_variables)
    result = [float(task.train_step(inputs, model, optimizer)[task.loss]) for _ in range(steps)]
    for variable, value in zip(model.trainable_variables, before, strict=True):
        variable.assign(value)
    return result


def numbers_of_system(name):
    """Everything that is frozen of a system, as JSON can hold it."""
    model = build(name, 0.0)
    start = {
        key: [list(weight.shape), float(np.sum(weight)), float(np.sum(np.square(weight)))]
        for key, weight in model.checkpoint_items["weights"].items()
    }
    fill(model)
    inputs = batch()
    context = model.encode(inputs)
    greedy_tokens, logps = greedy(model, context, LENGTH)
    result = {"start": start, "logits": np.asarray(model(inputs))}
    result["greedy"] = {"ids": greedy_tokens, "scores": tf.reduce_sum(logps, 1)}
    for key, options in (SEARCHES if name == "attention_lstm" else {"beam": BEAM}).items():
        ids, scores = search(model, context, LENGTH, **options)
        result[key] = {"ids": ids, "scores": scores}
    dropping = build(name, 0.3)
    fill(dropping)
    result["loss"] = {
        "xe": losses(model, "xe", STEPS),
        "scst": losses(model, "scst", STEPS),
        "xe_with_dropout": losses(dropping, "xe", 1),
    }
    return plain(result)


def plain(value):
    """Nested lists and numbers of seven digits in place of arrays."""
    if isinstance(value, dict):
        return {key: plain(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [plain(inner) for inner in value]
    if isinstance(value, float):
        return float(f"{value:.7g}")
    return (
        value
        if value is None or isinstance(value, int | str)
        else plain(np.asarray(value).tolist())
    )


def compare(found, expected, where, rtol=1e-4, atol=1e-5):
    """Floats must be close, everything else equal. A failure names the first place that differs."""
    if isinstance(expected, dict):
        assert list(found) == list(expected), f"{where} has other keys"
        for key in expected:
            compare(found[key], expected[key], f"{where}/{key}", rtol, atol)
    elif isinstance(expected, list):
        assert len(found) == len(expected), f"{where} has another length"
        for place, (one, two) in enumerate(zip(found, expected, strict=True)):
            compare(one, two, f"{where}/{place}", rtol, atol)
    elif isinstance(expected, float):
        assert found == pytest.approx(expected, rel=rtol, abs=atol), where
    else:
        assert found == expected, where


def read(name):
    return json.loads((GOLDENS / name).read_text(encoding="utf-8"))


def test_all_systems_are_here():
    assert sorted(models.MODELS) == sorted(small_models.SIZES)
    missing = models.MODELS.keys() ^ read("systems.json").keys()
    assert not missing, f"python tests/goldens/make.py systems stores the numbers of {missing}"


@pytest.mark.parametrize("name", small_models.params(models.MODELS))
def test_system(name):
    compare(numbers_of_system(name), read("systems.json")[name], name)


# ---- prepared directories ------------------------------------------------------------------------

# Arguments of `prepare`, in a folder with a copy of goldens/sources. The pictures are drawings.
SOURCES = {
    "csv": dict(
        captions="sources/captions.csv",
        images="sources/images",
        backbone="pixels",
        image_size=32,
        min_count=6,
        seed=3,
    ),
    "karpathy": dict(
        captions="sources/shapes.json",
        images="sources/images",
        backbone="pixels",
        image_size=32,
        keep_pictures=True,
        min_count=1,
        images_per_shard=5,
    ),
    "ready": dict(
        captions="sources/shapes.json",
        features="sources/regions.tsv",
        min_count=1,
        images_per_shard=5,
    ),
}


def prepared(name, folder):
    """Prepares one of `SOURCES` in `folder` and returns what is frozen of its files.

    Files of ready features are compared byte by byte. Features of pictures may depend on the
    processor in the last bit. So their records are compared by field, and the statistics of the
    features with a tolerance. Of `.npz` files the arrays are compared, and all other files
    byte by byte.
    """
    prepare(f"data/{name}", **SOURCES[name])
    result = {}
    for path in sorted(pathlib.Path("data", name).iterdir()):
        if path.name.startswith("."):  # what prepare needs to continue
            continue
        content = path.read_bytes()
        if name != "ready" and path.suffix == ".tfrecord":
            result[path.name] = [fields(record) for record in records(path)]
        elif name != "ready" and path.name == "dataset.json":
            result[path.name] = plain(json.loads(content.replace(f"{folder}/".encode(), b"")))
        elif path.suffix == ".npz":  # versions of NumPy pack the same arrays differently
            with np.load(path) as arrays:
                result[path.name] = files.arrays_sha256(dict(arrays))
        else:
            result[path.name] = hashlib.sha256(content).hexdigest()
    return result


def records(path):
    return tf.data.TFRecordDataset(str(path)).as_numpy_iterator()


def fields(record):
    """The fields of a record: features as a few of their numbers, everything else as a digest."""
    result = {}
    for name, feature in sorted(tf.train.Example.FromString(record).features.feature.items()):
        if name == "features/data":
            numbers = np.frombuffer(feature.bytes_list.value[0], np.float16)
            result[name] = [numbers.size, plain(numbers[::97].astype(float))]
        else:
            result[name] = hashlib.sha256(feature.SerializeToString(deterministic=True)).hexdigest()
    return result


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A working directory with a copy of the inputs."""
    path = tmp_path_factory.mktemp("goldens").resolve()
    shutil.copytree(GOLDENS / "sources", path / "sources")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(path)
        yield path


@pytest.mark.parametrize("name", SOURCES)
def test_prepared(name, folder):
    # Features are float16: one bit of a number near 1 is 0.001.
    compare(prepared(name, folder), read("prepared.json")[name], name, rtol=2e-3, atol=1e-3)


# ---- runs of earlier code ------------------------------------------------------------------------

DATA = {  # further data directories of the runs
    "cnn": dict(
        captions="sources/shapes.json",
        images="sources/images",
        backbone="small_cnn",
        image_size=32,
        keep_pictures=True,
        min_count=1,
    ),
    "clips": dict(
        captions="sources/clips.json",
        images="sources/clips",
        backbone="pixels",
        image_size=32,
        frames=4,
        min_count=1,
    ),
    "converted": dict(
        captions="sources/shapes.json",
        features="sources/regions.tsv",
        vocab="runs/converted/vocab.txt",
    ),
}
PICTURES = [f"sources/images/{name}_000001.png" for name in ("train", "val", "test")]
CLIPS = ["sources/clips/train_000001.gif", "sources/clips/val_000001.gif"]
# Each kind of run: its directories, its data, and the pictures that are captioned.
RUNS = {
    "features": (["features"], "karpathy", PICTURES),
    "ready": (["ready"], "ready", []),
    "pixels": (["pixels"], "cnn", PICTURES),
    "clips": (["clips"], "clips", CLIPS),
    "ensemble": (["features", "other"], "karpathy", PICTURES),
    "converted": (["converted"], "converted", []),
}


def run(command, *arguments):
    """Runs `tfcap command arguments...` and returns the lines that it prints."""
    done = commands.run_command(f"tfcap.{command}", *arguments)
    assert not done.returncode, done.stderr
    return done.stdout.splitlines()


def said(kind):
    """What evaluate, caption and export say of a kind of run, as JSON can hold it.

    The working directory has `runs` and the `data` of this kind.
    """
    runs, data, pictures = RUNS[kind]
    where, out = [f"--model_dir=runs/{name}" for name in runs], pathlib.Path("out", kind)
    out.mkdir(parents=True)
    files = [f"--{name}={out}/{name}.json" for name in ("output", "metrics", "hypotheses")]
    evaluate = ["--split=val", "--scores=BLEU,ROUGE-L,CIDEr", f"--data_dir=data/{data}", *files]
    run("evaluate", *where, *evaluate)
    run("export", *where, f"--export_dir={out}/served")
    result = {
        name: json.loads((out / f"{name}.json").read_text())
        for name in ("output", "metrics", "hypotheses")
    }
    if pictures:
        exported = [f"--model_dir={out}/served"]
        for name, source in (("caption", where), ("exported", exported)):
            lines = run("caption", *source, "--json", *pictures)
            result[name] = [json.loads(line) for line in lines if line.startswith("{")]
    else:
        result["exported"] = served(f"{out}/served/1", read_features(f"data/{data}"))
    return plain(result)


def read_features(folder):
    """The features float32 [R, F] of each validation image of a prepared directory."""
    result = []
    for record in records(next(pathlib.Path(folder).glob("val-*.tfrecord"))):
        example = tf.train.Example.FromString(record).features.feature
        shape = example["features/shape"].int64_list.value
        values = np.frombuffer(example["features/data"].bytes_list.value[0], np.float16)
        result.append(values.reshape(shape).astype(np.float32))
    return result


def served(path, images):
    """The answer of an exported model to one image after the other."""
    signature = tf.saved_model.load(path).signatures["serving_default"]
    answers = []
    for features in images:
        answer = signature(
            features=tf.constant(features[None]), num_regions=tf.constant([len(features)])
        )
        answers.append({name: decoded(value) for name, value in sorted(answer.items())})
    return answers


def decoded(value):
    """A tensor as nested lists, with text in place of bytes."""
    value = value.numpy()
    return (np.char.decode(value.astype(bytes)) if value.dtype == object else value).tolist()


def checkpoint(path):
    """Names, shapes and sums of everything in a checkpoint."""
    reader = tf.train.load_checkpoint(path)
    result = {}
    for name, shape in sorted(reader.get_variable_to_shape_map().items()):
        value = np.asarray(reader.get_tensor(name))
        if value.dtype.kind == "f":
            result[name] = [shape, float(np.sum(value)), float(np.abs(value).sum())]
        else:  # numbers of steps and seeds, and the description of the whole checkpoint
            result[name] = value.tolist() if value.dtype.kind in "iub" else shape
    return plain(result)


def go_on():
    """Trains the run on features for two more steps, and returns its new checkpoint."""
    shutil.copytree("runs/features", "resumed")
    run("train", "--model_dir=resumed", "--params_override=trainer.train_steps=22")
    return checkpoint("resumed/ckpt-22")


def data_of(kind):
    """Prepares the data of a kind of run, unless another test has done it."""
    name = RUNS[kind][1]
    if not os.path.exists(f"data/{name}/dataset.json"):
        prepare(f"data/{name}", **(SOURCES | DATA)[name])
    if name == "cnn":  # 1 MB that the run and its data share
        shutil.copy("data/cnn/backbone.weights.h5", "runs/pixels")


@pytest.fixture(scope="module")
def runs_folder(folder):
    shutil.copytree(GOLDENS / "runs", folder / "runs")
    return folder


@pytest.mark.parametrize("kind", [pytest.param(kind, marks=pytest.mark.slow) for kind in RUNS])
def test_old_run(kind, runs_folder):
    data_of(kind)
    compare(said(kind), read(f"said_{kind}.json"), kind, rtol=1e-3, atol=1e-4)


@pytest.mark.slow
def test_old_run_goes_on(runs_folder):
    data_of("features")
    compare(go_on(), read("resumed.json"), "resumed", rtol=1e-3, atol=1e-3)


@pytest.mark.slow
def test_conversion(runs_folder):
    """The same weights and words as the run that was converted before."""
    released = ["--from=self_critical", "sources/att2in.pth", "--vocab=sources/att2in.txt"]
    run("convert", *released, "--model_dir=again")
    for name in ("vocab.txt", "dataset.json"):
        old = pathlib.Path("runs/converted", name).read_bytes()
        assert pathlib.Path("again", name).read_bytes() == old, name
    compare(checkpoint("again/ckpt-0"), checkpoint("runs/converted/ckpt-0"), "again")
