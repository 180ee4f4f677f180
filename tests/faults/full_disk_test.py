"""A full disk and a read-only one end a command with one line; what was written before stays."""

import contextlib
import json
import subprocess

import pytest
from helpers import commands

from tfcap import cli, runs
from tfcap.files import read_json, write_json
from tfcap.preparing.run import prepare_shapes
from tfcap.runs.checkpoints import newest_checkpoint
from tfcap.runs.savedmodel import export
from tfcap.scoring.score_files import ScoreFiles
from tfcap.training.start import begin


@pytest.fixture
def disk(tmp_path):
    """Mounts a disk of the given kilobytes, or changes its size; only the administrator can."""
    place = tmp_path / "disk"
    place.mkdir()

    def mount(kilobytes, more=""):
        again = "remount," if place.is_mount() else ""
        options = ["-t", "tmpfs", "-o", f"{again}size={kilobytes}k{more}", "none", str(place)]
        done = subprocess.run(["mount", *options], capture_output=True, text=True)
        if done.returncode:
            pytest.skip(f"a small disk cannot be mounted: {done.stderr.strip()}")
        return place

    yield mount
    subprocess.run(["umount", "-l", str(place)], capture_output=True)


def test_a_matrix_of_scores_is_refused_before_its_rows_are_computed(disk):
    """A write into the map of a file that the disk cannot hold would end the process."""
    folder = disk(24)
    with pytest.raises(OSError) as caught:
        ScoreFiles(str(folder / "scores"), {}, {}).rows("scores", (100, 200))
    message = cli.exhausted(caught.value)
    assert message.startswith("The disk is full: ") and "scores.npy cannot be written" in message
    assert [path.name for path in (folder / "scores").iterdir()] == ["pairs.json"]


def test_a_file_that_was_written_before_stays(disk):
    path = disk(24) / "x.json"
    write_json(path, [1])
    with pytest.raises(OSError) as caught:
        write_json(path, "x" * 100_000)
    assert cli.exhausted(caught.value).startswith(f"The disk is full: {path} cannot be")
    assert read_json(path, "") == [1] and [one.name for one in path.parent.iterdir()] == ["x.json"]


@pytest.mark.parametrize(
    "write",
    [
        lambda folder: prepare_shapes(folder / "data", train=1, val=0, test=0),
        lambda folder: begin(contextlib.ExitStack(), f"{folder}/run", "xlan", None, None, "train"),
        lambda folder: export(None, str(folder / "served")),
        lambda folder: ScoreFiles(str(folder / "scores"), {}, {}),
        lambda folder: write_json(folder / "results.json", []),
    ],
    ids=["prepare", "train", "export", "retrieve", "evaluate"],
)
def test_a_read_only_directory_is_named_before_any_work(disk, write):
    with pytest.raises(OSError, match="Read-only file system: .*disk"):
        write(disk(100, ",ro"))


@pytest.mark.slow
def test_training_ends_with_one_line_and_keeps_its_last_checkpoint(disk, shapes):
    overrides = {
        "task": {"data_dir": shapes, "metrics": ["CIDEr"], "model": {"show_tell": {"width": 64}}},
        "trainer": {"train_steps": 3, "checkpoint_interval": 1, "steps_per_loop": 1},
    }
    overrides["trainer"] |= {"summary_interval": 1, "validation_interval": 2}
    flags = ["--experiment=show_tell", f"--params_override={json.dumps(overrides)}", "--mode=train"]
    folder = disk(1500) / "run"
    done = commands.forked("tfcap.train", f"--model_dir={folder}", *flags)
    assert done.returncode == 3, done.stderr
    (line,) = commands.errors(done)
    assert "The disk is full: " in line and "same command again" in line
    assert runs.step_of(newest_checkpoint(str(folder))) == 1
