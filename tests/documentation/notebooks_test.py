"""The notebooks among the documents run from top to bottom."""

import os
import pathlib

import jupytext
import nbclient
import pytest

ROOT = pathlib.Path(__file__).parents[2]


@pytest.fixture
def started(tmp_path, monkeypatch, shapes, trained):
    """A directory as after the first command of the front page, and an environment for kernels."""
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "shapes").symlink_to(shapes)
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / "xtransformer").symlink_to(trained)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    return tmp_path


def outputs(name: str, folder: pathlib.Path) -> list[dict]:
    """Runs a notebook in a folder; returns the output of its cells."""
    notebook = jupytext.read(ROOT / "docs" / f"{name}.md")
    options = {"timeout": 200, "kernel_name": "python3"}
    resources = {"metadata": {"path": os.fspath(folder)}}
    nbclient.NotebookClient(notebook, resources=resources, **options).execute()
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    return [output for cell in cells for output in cell.outputs]


def texts(found: list[dict]) -> str:
    return "".join(output.text for output in found if output.output_type == "stream")


def pictures(found: list[dict]) -> int:
    return sum("image/png" in output.get("data", {}) for output in found)


@pytest.mark.slow
def test_caption_your_photographs(started):
    found = outputs("notebook_caption", started)
    assert pictures(found) == 1
    printed = texts(found)
    assert "score -" in printed
    assert "failed: no_picture.jpg: " in printed
    assert printed.count(".png: ") == 3


@pytest.mark.slow
def test_train_your_own_model(started):
    found = outputs("notebook_train", started)
    assert pictures(found) == 1
    printed = texts(found)
    assert "caption:" in printed and "CIDEr" in printed
    assert (started / "runs" / "small" / "params.yaml").exists()
