"""The data of a run is found from every directory, and after a project was moved."""

import os
import shutil

import pytest
from helpers import events
from helpers.prepared import with_other_vocabulary

from tfcap import configs, runs
from tfcap.data.prepared import PreparedData
from tfcap.runs import data_of
from tfcap.training.run import resolve_stages


@pytest.fixture
def project(tmp_path, shapes, trained):
    """A directory with `data/mine` and `runs/one`, whose params.yaml has a relative path."""
    shutil.copytree(shapes, tmp_path / "project" / "data" / "mine")
    run = shutil.copytree(trained, tmp_path / "project" / "runs" / "one")
    text = (run / "params.yaml").read_text()
    assert f"data_dir: {shapes}" in text
    (run / "params.yaml").write_text(text.replace(shapes, "data/mine"))
    (tmp_path / "elsewhere").mkdir()
    return tmp_path / "project"


def test_a_relative_path_of_an_older_run_is_found_from_another_directory(
    project, monkeypatch, tmp_path
):
    monkeypatch.chdir(tmp_path / "elsewhere")
    run = runs.load(str(project / "runs" / "one"))
    assert run.data_dir == str(project / "data" / "mine")
    monkeypatch.chdir(project)
    assert runs.load("runs/one").data_dir == "data/mine"
    monkeypatch.chdir(project / "runs")
    assert runs.load("one").data_dir == str(project / "data" / "mine")


def test_a_run_is_continued_from_another_directory(project, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path / "elsewhere")
    run = str(project / "runs" / "one")
    [(params, experiment, folder)] = resolve_stages("train", ("", run, [], ""), [])
    assert (experiment, folder) == ("attention_lstm", run)
    assert params.task.data_dir == str(project / "data" / "mine")


def test_data_is_found_after_the_project_was_moved(project, monkeypatch, tmp_path, small):
    monkeypatch.chdir(project)
    mine = events.merged(small, {"task": {"data_dir": "data/mine"}})
    params = configs.resolve("attention_lstm", changes=mine)
    assert runs.begin("runs/new", "attention_lstm", params, PreparedData.load("data/mine")) == 0
    stored = configs.load("runs/new/params.yaml").task.data_dir
    assert stored == str(project / "data" / "mine")  # usable from every directory
    words = runs.read_fingerprint("runs/new")["vocab_sha256"]
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert data_of(str(project / "runs" / "new"), stored, words) == stored
    moved = shutil.move(project, tmp_path / "moved")
    found = data_of(os.path.join(moved, "runs", "new"), stored, words)
    assert found == str(tmp_path / "moved" / "data" / "mine")


def test_data_of_another_vocabulary_is_not_taken(tmp_path, shapes):
    with_other_vocabulary(shapes, tmp_path / "near" / "data" / "mine")
    words = PreparedData.load(shapes).vocab.sha256
    run = str(tmp_path / "near" / "runs" / "one")
    assert data_of(run, "data/mine", words) == "data/mine"
    shutil.copytree(shapes, tmp_path / "data" / "mine")
    assert data_of(run, "data/mine", words) == str(tmp_path / "data" / "mine")
    (tmp_path / "data" / "mine" / "dataset.json").write_text("{")
    assert data_of(run, "data/mine", words) == "data/mine"


def test_the_built_in_data_stays_unnamed(tmp_path, small, shapes):
    """An empty path makes the shapes wherever a run is continued."""
    mine = events.merged(small, {"task": {"data_dir": ""}})
    params = configs.resolve("attention_lstm", changes=mine)
    runs.begin(str(tmp_path / "run"), "attention_lstm", params, PreparedData.load(shapes))
    assert configs.load(str(tmp_path / "run" / "params.yaml")).task.data_dir == ""
