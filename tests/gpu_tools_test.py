"""tools/gpu: graphs are exported with what they read, and the table has all works."""

import argparse
import importlib.util
import json
import signal

import numpy as np
import pytest
from helpers import commands

from tfcap.layers import precision


def tool(name):
    path = commands.ROOT / "tools" / "gpu" / f"{name}.py"
    spec = importlib.util.spec_from_file_location(f"gpu_{name}", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def export():
    return tool("export")


@pytest.fixture(scope="module")
def run():
    return tool("run")


@pytest.mark.slow
def test_a_step_is_exported_with_its_inputs_and_variables(export, tmp_path):
    with precision.scope("float32"):
        export.export(export.Work("xlan", "step", "bfloat16", 2), tmp_path, small=True)
    entry = json.loads((tmp_path / "works.jsonl").read_text())
    features, mask, tokens, *captured = entry["arrays"]
    assert features["shape"] == [2, 36, 2048] and features["deviation"] == pytest.approx(1, abs=0.1)
    assert mask == {"shape": [2, 36], "dtype": "bool", "least": 1, "most": 1}
    assert tokens["shape"] == [2, 5, 18] and 4 <= tokens["least"] < tokens["most"] < 9490
    # Each word has a row of weights, and two moments in the optimizer, which begin at zero.
    rows = [array for array in captured if array["shape"] == [9490, 128]]
    assert sorted(array["deviation"] > 0 for array in rows) == [False, False, True]
    assert (tmp_path / "xlan_step_bfloat16_2.mlirbc").read_bytes().startswith(b"ML\xefR")


@pytest.mark.slow
def test_pictures_to_captions_have_random_weights(export):
    with precision.scope("float32"):
        program = export.captioning(export.Work("expansionnet_v2", "picture", "bfloat16", 2), True)
    shapes = {name: tuple(value.shape) for name, value in program.inputs.items()}
    assert shapes == {"mask": (2, 49), "pictures": (2, 224, 224, 3)}
    matrices = [variable for variable in program.variables if len(variable.shape) > 1]
    assert len(matrices) > 50 and all(np.ptp(matrix) > 0 for matrix in matrices)


def test_the_detector_reads_one_picture(export):
    program = export.detection(export.Work("detector", "detect", "bfloat16", 1), True)
    assert program.inputs["pixels"].shape == (160, 224, 3)
    assert program.function(program.inputs).count > 0


def test_a_work_that_ends_without_a_time_is_named(run, tmp_path, capsys):
    entries = [{"name": name, "kind": "detect"} for name in "ab"]
    (tmp_path / "works.jsonl").write_text("\n".join(map(json.dumps, entries)))
    handler = signal.getsignal(signal.SIGTERM)
    try:
        run.main([str(tmp_path), str(tmp_path / "out"), "--jobs=1"])
    finally:
        signal.signal(signal.SIGTERM, handler)
    names = ("a", *(f"a {flag}" for flag in run.FLAGS), "b")
    last = "Without a time: " + ", ".join(f"tfcap {name}" for name in names)
    assert capsys.readouterr().out.splitlines()[-1] == last
    lines = (tmp_path / "out" / "results.jsonl").read_text().splitlines()
    assert [json.loads(line)["exit"] for line in lines] == [1] * 4  # no modules, and no JAX
    assert (tmp_path / "out" / "tfcap_b.txt").read_text().startswith("Traceback")


def test_after_its_time_nothing_starts(run, tmp_path, capsys):
    runner = run.Runner(argparse.Namespace(out=tmp_path))
    runner.stop()
    runner.run(run.Work("tfcap", "a"))
    assert capsys.readouterr().out == "tfcap a exit: not started 0.0\n"


def test_the_ratio_is_that_of_the_faster_released_code(run):
    works = [
        run.Work("tfcap", "a"),
        run.Work("released", "a"),
        run.Work("released", "a", "--compile"),
    ]
    results = [
        {"work": works[0]._asdict(), "milliseconds": [3, 1, 2], "compile_s": 7, "memory_mb": 5},
        {"work": works[1]._asdict(), "milliseconds": [8]},
        {"work": works[2]._asdict(), "milliseconds": [6]},
    ]
    text = run.table([*works, run.Work("tfcap", "b")], results)
    assert "| a | 7 | 2 (1 to 3) | 5 | 8 (8 to 8) | 6 (6 to 6) | 3.0 |" in text
    assert text.endswith("Without a time: tfcap b")
