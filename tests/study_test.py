"""tools/study.py: its settings are those of the kept results, and a finished run is only read."""

import importlib.util
import json
import types

import pytest
from helpers import commands

SMALL = "--rows=mrnn_recurrent --width=16 --examples=50 --scst_examples=0".split()


@pytest.fixture(scope="module")
def study():
    spec = importlib.util.spec_from_file_location("study", commands.ROOT / "tools" / "study.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.slow
@pytest.mark.usefixtures("no_java")
def test_a_run_is_trained_scored_and_then_only_read(study, shapes, tmp_path, capsys, monkeypatch):
    """Its commands run in this process."""

    def here(line, stdout, **_):  # `python -m module arguments...`
        done = commands.run_command(*line[2:])
        stdout.write(done.stdout + done.stderr)
        return done

    monkeypatch.setattr(study, "subprocess", types.SimpleNamespace(run=here, STDOUT=None))
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
