"""The benchmark: one run of the command for all kinds of work. No times are compared."""

import contextlib
import io
import json

import pytest
from helpers import commands

from tfcap import benchmark, errors

TINY = "--experiment=mrnn --images=2 --regions=3 --features=4 --vocab=40 --repeats=3".split()
SIZES = "task.max_length=3,task.decoding.beam=2,task.self_critical.samples=3"
SIZES += ",task.train_data.captions_per_image=2"
PER_IMAGE = {"xe": 2, "scst": 3, "beam": 1, "greedy": 1, "reward": 3, "input": 2}


@pytest.fixture(scope="module")
def lines(shapes):
    """The line of each kind of work."""
    what = ",".join(benchmark.WHAT)
    override = f"--params_override={SIZES}"
    with contextlib.redirect_stdout(io.StringIO()) as stream:
        commands.run_here(benchmark, f"--what={what}", *TINY, override, f"--data_dir={shapes}")
    parsed = [json.loads(line) for line in stream.getvalue().splitlines()]
    return {line["what"]: line for line in parsed}


@pytest.mark.slow
def test_a_line_for_each_kind_of_work(lines):
    assert tuple(lines) == benchmark.WHAT
    for what, line in lines.items():
        assert (line["images"], line["regions"], line["length"], line["vocab"]) == (2, 3, 3, 40)
        assert line["model"]["type"] == "mrnn" and line["dtype"] == "float32"
        assert line["peak_memory_gib"] > 0.1
        seconds, captions = line["seconds"], PER_IMAGE[what] * line.get("batches", 1)
        assert 0 < seconds["min"] <= seconds["median"] <= seconds["max"]
        milliseconds = 1000 * seconds["median"] / (2 * captions)
        assert line["milliseconds_per_caption"] == pytest.approx(milliseconds, rel=1e-3)
    assert isinstance(lines["greedy"]["full_length"], bool)
    assert lines["reward"]["captions"] == 6 and lines["reward"]["ngrams"] > 1000


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (["--what=beam,nothing"], "beam,nothing"),
        (["--what=input"], "--data_dir"),
        (["--params_override=task.backbone.trainable=true"], "input"),
    ],
)
def test_wrong_flags(arguments, word):
    with pytest.raises(errors.UsageError, match=word):
        commands.run_here(benchmark, *arguments)
