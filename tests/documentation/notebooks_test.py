"""The notebooks among the documents run from top to bottom."""

import os
import pathlib

import jupytext
import nbclient
import pytest
from helpers import forks
from jupyter_client.provisioning import LocalProvisioner

ROOT = pathlib.Path(__file__).parents[2]
INTERVALS = ("validation", "checkpoint")


@pytest.fixture
def started(tmp_path, monkeypatch, shapes, trained):
    """A directory as after the first command of the front page, and an environment for kernels."""
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "shapes").symlink_to(shapes)
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / "xtransformer").symlink_to(trained)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setattr(LocalProvisioner, "launch_kernel", launch)
    return tmp_path


async def launch(self, command: list[str], cwd: str, env: dict[str, str], **_) -> dict:
    """Starts a kernel as a copy of a process that has imported TensorFlow."""
    self.process = forks.start(command[1:], cwd, env)
    self.process.stdin, self.pid = None, self.process.pid
    return self.connection_info


def outputs(name: str, folder: pathlib.Path, changes: dict[str, str] | None = None) -> list[dict]:
    """Runs a notebook in a folder, with `changes` to its text; returns the output of its cells."""
    text = (ROOT / "docs" / f"{name}.md").read_text(encoding="utf-8")
    for old, new in (changes or {}).items():
        assert text.count(old) == 1, old
        text = text.replace(old, new)
    notebook = jupytext.reads(text, "md")
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
    few = {"train=256, val=24, test=8": "train=32, val=2, test=1"}
    graphs = ("train_tf_function", "train_tf_while_loop", "eval_tf_function")
    eager = "".join(f', "trainer.{name}": False' for name in graphs)
    few |= {'.train_steps": 60': '.train_steps": 1, "trainer.steps_per_loop": 1' + eager}
    few |= {f'.{name}_interval": 60': f'.{name}_interval": 1' for name in INTERVALS}
    found = outputs("notebook_train", started, few)
    assert pictures(found) == 1
    printed = texts(found)
    assert "caption:" in printed and "CIDEr" in printed
    assert (started / "runs" / "small" / "params.yaml").exists()
