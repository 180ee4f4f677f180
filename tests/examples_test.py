"""The examples in docstrings run, and every public layer, model and metric has one."""

import doctest
import importlib
import inspect
import pathlib

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfcap
from tfcap import models
from tfcap.layers import common, expansion, loops, multimodal, positions, recording
from tfcap.metrics import bootstrap, calibration, chair, clipscore, coco, diversity, retrieval
from tfcap.models.end_to_end import EndToEnd
from tfcap.models.ensemble import Ensemble

ROOMS = ("layers", "models", "metrics", "objectives", "inference")
# Functions that are used as layers are.
BLOCKS = [
    common.linear,
    common.embedding,
    common.layer_norm,
    common.activation,
    common.gated,
    common.masked_mean,
    common.image_vector,
    expansion.linear,
    loops.loop,
    multimodal.scaled_tanh,
    positions.sinusoids,
    recording.recording,
]
# The functions and classes of `tfcap.metrics` that compute scores.
METRICS = [
    bootstrap.bleu,
    bootstrap.compare,
    bootstrap.differences,
    bootstrap.intervals,
    calibration.bins_of,
    calibration.error_of,
    calibration.kept_ratio,
    calibration.risks,
    chair.chair,
    clipscore.clipscore,
    coco.CocoScorer,
    coco.leave_one_out_cider,
    diversity.distinct_share,
    diversity.div,
    diversity.mbleu,
    diversity.novel_share,
    diversity.self_cider,
    retrieval.image_to_text,
    retrieval.log_marginal,
    retrieval.ranks,
    retrieval.summarize,
    retrieval.text_to_image,
]


def public(room):
    """Full names and values of the public functions and classes that a package defines."""
    for path in sorted(pathlib.Path(tfcap.__file__).parent.joinpath(room).glob("[a-z]*.py")):
        module = importlib.import_module(f"tfcap.{room}.{path.stem}")
        for name, value in vars(module).items():
            is_here = getattr(value, "__module__", None) == module.__name__
            if is_here and not name.startswith("_") and callable(value):
                yield f"{module.__name__}.{name}", value


PUBLIC = {name: value for room in ROOMS for name, value in public(room)}
LAYERS = [
    value
    for name, value in PUBLIC.items()
    if name.startswith("tfcap.layers.")
    and inspect.isclass(value)
    and issubclass(value, keras.layers.Layer)
    and value is not common.Layer  # the base of the others
]
SYSTEMS = [*models.MODELS.values(), Ensemble, EndToEnd]
EXAMPLES = {
    name: value
    for name, value in PUBLIC.items()
    if ">>>" in (value.__doc__ or "")
    # A default such as 0 has the docstring of its type.
    or any(
        ">>>" in (v.__doc__ or "") and v.__doc__ != type(v).__doc__ for v in vars(value).values()
    )
}


def test_there_are_as_many_as_expected():
    """So that no change of names or places leaves a test without anything to test."""
    assert len(LAYERS) >= 20 and len(SYSTEMS) >= 16


@pytest.mark.parametrize(
    "value",
    [*LAYERS, *BLOCKS, *SYSTEMS, *METRICS],
    ids=lambda value: f"{value.__module__}.{value.__qualname__}",
)
def test_an_example_is_there(value):
    text = inspect.cleandoc(value.__doc__ or "")
    assert "\nExample:\n" in text and ">>>" in text, "the docstring has no example"


@pytest.mark.parametrize("name", EXAMPLES)
def test_the_example_runs(name):
    value = EXAMPLES[name]
    names = {"keras": keras, "np": np, "ops": keras.ops, "tf": tf, "models": models}
    module = inspect.getmodule(value)
    assert module is not None
    finder = doctest.DocTestFinder(exclude_empty=True)
    runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE)
    report: list[str] = []
    for test in finder.find(value, name, module, globs=vars(module) | names):
        if test.examples:
            runner.run(test, out=report.append)
    assert runner.tries and not runner.failures, "".join(report)
