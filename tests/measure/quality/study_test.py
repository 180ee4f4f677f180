"""A study of one system: real runs in processes of their own, kept and read again."""

import json
import os
import shutil

import pytest
from helpers import commands

from tfcap import benchmark
from tfcap.measure import quality
from tfcap.measure.quality import judge, processes

pytestmark = pytest.mark.slow

NAME = "mrnn_recurrent_xe_lr0.002_dropout0.1_seed1"


@pytest.fixture(scope="module", autouse=True)
def quick():
    """METEOR is left out."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(judge, "METRICS", ("BLEU", "CIDEr"))
        patch.setattr(processes, "_NICE", 0)  # other tests run beside this one
        yield


def options(shapes, **changes):
    sizes = {"width": 16, "examples": 50, "scst_examples": 0}
    return quality.Options(shapes, ("mrnn_recurrent",), **sizes | changes)


@pytest.fixture(scope="module")
def studied(shapes, tmp_path_factory):
    folder = str(tmp_path_factory.mktemp("quality"))
    first = list(quality.study(options(shapes), folder))
    before = _times(folder)
    second = list(quality.study(options(shapes), folder))
    return folder, first, second, before


def _times(folder):
    return {
        path: os.stat(path).st_mtime_ns
        for part in ("runs", "captions", "results", "logs")
        for place, _, names in os.walk(os.path.join(folder, part))
        for path in (os.path.join(place, name) for name in names)
    }


def test_a_run_is_trained_and_judged(studied):
    folder, (result,), _, _ = studied
    assert result["name"] == NAME and result["finished"]
    assert result["step"] == 1 and result["parameters"] > 1000 and result["cpu_minutes"] >= 0
    assert set(result["scores"]) >= {"CIDEr", "BLEU-4"}
    mean = sum(result["images"]["CIDEr"]) / 6  # of twelve images, six judge
    assert mean == pytest.approx(result["scores"]["CIDEr"], abs=0.01)
    assert list(result["curve"]) == ["1"] and result["curve"]["1"] == round(result["chosen"], 3)
    with open(os.path.join(folder, "captions", f"{NAME}.json"), encoding="utf-8") as file:
        assert len(json.load(file)) == 12
    with open(os.path.join(folder, "quality.md"), encoding="utf-8") as file:
        row = file.read().splitlines()[2]
    assert row.startswith("| m-RNN, image in the recurrent layer |")
    with open(os.path.join(folder, "curves.csv"), encoding="utf-8") as file:
        assert file.read().splitlines()[1].startswith(f"{NAME},1,")


def test_results_are_enough_to_write_the_same_table(studied, shapes, tmp_path):
    folder, (result,), _, _ = studied
    shutil.copytree(os.path.join(folder, "results"), tmp_path / "results")
    (copied,) = quality.study(options(shapes), str(tmp_path))
    assert copied == result and not any((tmp_path / "runs").iterdir())
    with open(os.path.join(folder, "quality.md"), encoding="utf-8") as file:
        assert (tmp_path / "quality.md").read_text() == file.read()


def test_a_run_without_weights_is_trained_again_before_an_ensemble_needs_it(
    studied, shapes, tmp_path
):
    shutil.copytree(os.path.join(studied[0], "results"), tmp_path / "results")
    results = list(quality.study(options(shapes, seeds=2, jobs=2), str(tmp_path)))
    name = NAME.removesuffix("1")
    assert [result["name"] for result in results] == [NAME, f"{name}2", NAME, f"{name}1+2"]
    first, _, again, together = results
    assert again["images"] == first["images"] and again["step"] == first["step"]
    assert together["parameters"] == 2 * first["parameters"] and together["finished"]


def test_finished_runs_are_only_read(studied):
    folder, first, second, before = studied
    assert second == first and _times(folder) == before


def test_results_of_other_settings_are_refused(studied, shapes):
    differs = "Expected settings.changes.trainer.train_steps: 2. Received: 1. Remove it"
    with pytest.raises(ValueError, match=f"{NAME}.json must have the settings .*{differs}"):
        next(quality.study(options(shapes, examples=100), studied[0]))


def test_the_command_prints_a_short_line_for_each_run(studied, shapes, capsys):
    sizes = "--width=16 --steps=1 --scst_examples=0 --rows=mrnn_recurrent".split()
    commands.run_here(
        benchmark, "--what=quality", f"--data={shapes}", f"--out={studied[0]}", *sizes
    )
    line, table = capsys.readouterr().out.split("\n\n", 1)
    shown = ["name", "finished", "cpu_minutes", "scores", "chosen", "step", "parameters"]
    assert list(json.loads(line)) == shown and len(line) < 400
    with open(os.path.join(studied[0], "quality.md"), encoding="utf-8") as file:
        assert table == file.read()


def test_a_failed_run_is_named_with_its_error(shapes, tmp_path):
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / NAME).write_text("this is no directory")
    with pytest.raises(ValueError, match=f"1 runs failed. {NAME}: .* must be a directory"):
        next(quality.study(options(shapes), str(tmp_path)))
