"""A full disk ends a command with one line, and what was written before stays."""

import json
import subprocess

import pytest
from helpers import commands

from tfcap import exhausted
from tfcap.files import read_json, write_json
from tfcap.scoring.score_files import ScoreFiles


@pytest.fixture
def disk(tmp_path):
    """Mounts a disk of the given kilobytes, or changes its size; only the administrator can."""
    place = tmp_path / "disk"
    place.mkdir()

    def mount(kilobytes):
        again = "remount," if place.is_mount() else ""
        options = ["-t", "tmpfs", "-o", f"{again}size={kilobytes}k", "none", str(place)]
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
    message = exhausted.full_disk(caught.value)
    assert message.startswith("The disk is full: ") and "scores.npy cannot be written" in message
    assert [path.name for path in (folder / "scores").iterdir()] == ["pairs.json"]


def test_a_file_that_was_written_before_stays(disk):
    path = disk(24) / "x.json"
    write_json(path, [1])
    with pytest.raises(OSError) as caught:
        write_json(path, "x" * 100_000)
    assert exhausted.full_disk(caught.value)
    assert read_json(path, "") == [1] and [one.name for one in path.parent.iterdir()] == ["x.json"]


@pytest.mark.slow
def test_training_ends_with_one_line_and_goes_on_when_there_is_space(disk, shapes):
    overrides = {
        "task": {"data_dir": shapes, "metrics": ["CIDEr"], "model": {"show_tell": {"width": 64}}},
        "trainer": {"train_steps": 3, "checkpoint_interval": 1, "steps_per_loop": 1},
    }
    overrides["trainer"] |= {"summary_interval": 1, "validation_interval": 2}
    flags = ["--experiment=show_tell", f"--params_override={json.dumps(overrides)}", "--mode=train"]
    command = ["tfcap.train", f"--model_dir={disk(1500) / 'run'}", *flags]
    done = commands.forked(*command)
    assert done.returncode == 3, done.stderr
    (line,) = commands.errors(done)
    assert "The disk is full: " in line and "give the same command again" in line
    disk(20_000)
    done = commands.forked(*command)
    assert done.returncode == 0, done.stderr
    assert "goes on from step 1 to step 3" in done.stdout
