"""The comparison of the families: real runs in processes of their own, kept and read again."""

import os
import sys

import pytest
from helpers import commands, forks

from tfcap import models
from tfcap.measure import quality

pytestmark = pytest.mark.slow

ROWS = (quality.Row("m-RNN, image in the recurrent layer", "mrnn", dict(variant="vis_in_rnn")),)


@pytest.fixture(scope="module", autouse=True)
def python(tmp_path_factory):
    """The processes of runs are copies of one that has imported TensorFlow."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "executable", forks.executable(tmp_path_factory.mktemp("python")))
        yield


@pytest.fixture(scope="module")
def compared(shapes, tmp_path_factory):
    folder = str(tmp_path_factory.mktemp("quality"))
    with pytest.MonkeyPatch.context() as patch:
        for name, value in commands.hide_java(tmp_path_factory.mktemp("no_java")).items():
            patch.setenv(name, value)
        patch.setattr(quality, "ROWS", ROWS)
        first = list(quality.compare(folder, shapes, steps=1))
        before = _times(folder)
        second = list(quality.compare(folder, shapes, steps=1))
    return folder, first, second, before


def _times(folder):
    return {
        path: os.stat(path).st_mtime_ns
        for place, _, names in os.walk(folder)
        for path in (os.path.join(place, name) for name in names)
    }


def test_every_family_has_a_row():
    assert {row.experiment for row in quality.ROWS} == set(models.MODELS)
    assert len({row.name for row in quality.ROWS}) == len(quality.ROWS)


def test_each_row_is_trained_and_scored(compared):
    folder, first, _, _ = compared
    assert [result["name"] for result in first] == [row.name for row in ROWS]
    assert sorted(os.listdir(folder)) == ["m-rnn_image_in_the_recurrent_layer"]
    for result in first:
        assert result["step"] == 1 and result["minutes"] > 0
        assert result["CIDEr"] >= 0 and result["parameters"] > 1000


def test_finished_rows_are_only_read(compared):
    folder, first, second, before = compared
    assert [result["minutes"] for result in second] == [None]
    assert [r | {"minutes": 0} for r in second] == [r | {"minutes": 0} for r in first]
    assert _times(folder) == before


def test_the_table_has_a_line_for_each_row(compared):
    head, rule, *rows = quality.table(compared[1]).splitlines()
    assert head.split("|")[1].strip() == "system" and set(rule) == {"|", "-"}
    for row, result in zip(rows, compared[1], strict=True):
        cells = [cell.strip() for cell in row.strip("|").split("|")]
        assert cells[0] == result["name"] and cells[-1] == str(result["CIDEr"])
        assert cells[1] == f"{result['parameters'] / 1e6:.2f} M"


def test_runs_with_other_settings_are_refused(compared, shapes, monkeypatch):
    monkeypatch.setattr(quality, "ROWS", ROWS)
    with pytest.raises(
        ValueError, match="recurrent_layer holds a run with other data, seed, steps"
    ):
        next(quality.compare(compared[0], shapes, steps=1, seed=7))


def test_a_failed_run_is_named_with_its_error(tmp_path, monkeypatch):
    monkeypatch.setattr(quality, "ROWS", ROWS)
    with pytest.raises(
        ValueError, match="The run of m-RNN, image in the recurrent layer failed: .*dataset.json"
    ):
        next(quality.compare(str(tmp_path), str(tmp_path / "nothing"), steps=2))
