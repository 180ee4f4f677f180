"""tools/study.py: its settings are those of the kept results, and a finished run is only read."""

import importlib.util
import json
import re

import pytest
from helpers import commands

RESULTS = commands.ROOT / "docs" / "results"
# Width, captions that a run sees, images that choose.
STUDIES = {
    "flickr8k_lite": (192, 90_000, 500),
    "flickr8k_lite_width96": (96, 90_000, 500),
    "flickr8k_lite_grid4": (192, 90_000, 500),
    "shapes": (128, 200_000, 100),
    "shapes_long": (128, 400_000, 100),
}
SMALL = "--rows=mrnn_recurrent --width=16 --examples=50 --scst_examples=0".split()


@pytest.fixture(scope="module")
def study():
    spec = importlib.util.spec_from_file_location("study", commands.ROOT / "tools" / "study.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("name", STUDIES)
def test_the_kept_results_have_the_settings_of_the_script(study, name):
    width, examples, half = STUDIES[name]
    flags = [f"--width={width}", f"--examples={examples}", "--scst_examples=100000", "--data=none"]
    given, compared = study.parsed(flags), 0
    for path in (RESULTS / name).glob("*.json"):
        pattern = r"(\w+)_(xe|scst)_lr([\d.]+)_dropout([\d.]+)_seed(\d+)"
        if found := re.fullmatch(pattern, path.stem):  # else an ensemble of several seeds
            row, stage, *numbers = found.groups()
            job = study.Job(row, stage, *map(float, numbers))._replace(seed=int(numbers[-1]))
            settings = json.loads(path.read_text())["settings"]
            settings.pop("data")
            wanted = json.loads(json.dumps(study.changes(job, given, half)))
            assert job.name == path.stem and settings == wanted
            compared += 1
    assert compared >= 4


@pytest.mark.slow
@pytest.mark.usefixtures("no_java")
def test_a_run_is_trained_scored_and_then_only_read(study, shapes, tmp_path, capsys):
    out, flags = tmp_path / "out", [f"--data={shapes}", *SMALL]
    study.main([f"--out={out}", *flags])
    line, table = capsys.readouterr().out.split("\n\n")
    first = json.loads(line.splitlines()[-1])
    assert first["step"] == 1 and first["scores"]["CIDEr"] > 0
    kept = json.loads((out / "results" / f"{first['name']}.json").read_text())
    mean = sum(kept["images"]["CIDEr"]) / 6  # of twelve images, six judge
    assert mean == pytest.approx(first["scores"]["CIDEr"], abs=0.01)
    assert f"| {first['scores']['CIDEr']:.1f} |" in table
    before = {path: path.stat().st_mtime_ns for path in (out / "runs").rglob("*")}
    study.main([f"--out={out}", *flags])
    assert capsys.readouterr().out.endswith(table)
    assert {path: path.stat().st_mtime_ns for path in (out / "runs").rglob("*")} == before
    with pytest.raises(ValueError, match="has other settings"):
        study.main([f"--out={out}", *flags, "--examples=100"])
