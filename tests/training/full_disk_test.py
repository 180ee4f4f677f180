"""A full disk ends training with one line; the checkpoint that was written before stays."""

import json
import subprocess

import pytest
from helpers import commands

from tfcap import runs
from tfcap.runs.checkpoints import newest_checkpoint


@pytest.fixture
def disk(tmp_path):
    """A disk of 1.5 MB; only the administrator can mount one."""
    place = tmp_path / "disk"
    place.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=1500k", "none", str(place)]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        pytest.skip(f"a small disk cannot be mounted: {done.stderr.strip()}")
    yield place
    subprocess.run(["umount", "-l", str(place)], capture_output=True)


@pytest.mark.slow
def test_training_ends_with_one_line_and_keeps_its_last_checkpoint(disk, shapes):
    overrides = {
        "task": {"data_dir": shapes, "metrics": ["CIDEr"], "model": {"show_tell": {"width": 64}}},
        "trainer": {"train_steps": 3, "checkpoint_interval": 1, "steps_per_loop": 1},
    }
    overrides["trainer"] |= {"summary_interval": 1, "validation_interval": 2}
    flags = ["--experiment=show_tell", f"--params_override={json.dumps(overrides)}", "--mode=train"]
    done = commands.run_command("tfcap.train", f"--model_dir={disk / 'run'}", *flags)
    assert done.returncode == 3, done.stderr
    (line,) = commands.errors(done)
    assert "disk is full" in line
    assert runs.step_of(newest_checkpoint(str(disk / "run"))) == 1
