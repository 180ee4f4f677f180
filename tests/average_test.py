"""The command that averages checkpoints. `runs/average_test` checks the numbers."""

import pytest
from helpers import commands

from tfcap import average, cli, runs


def test_the_command_says_what_it_averaged(trained, tmp_path, capfd):
    """Nothing at all is on standard error."""
    given = ("--model_dir", trained, "--out", f"{tmp_path}/mean")
    commands.run_here(average, *given)
    printed, errors = capfd.readouterr()
    assert errors == ""
    assert "the mean of 2 checkpoints, steps 4, 6" in printed
    assert f"python -m tfcap.evaluate --model_dir {tmp_path}/mean" in printed
    assert runs.load(f"{tmp_path}/mean").checkpoint == f"{tmp_path}/mean/ckpt-0"


def test_a_run_and_a_place_must_be_given(tmp_path):
    with pytest.raises(cli.UsageError, match="is missing"):
        commands.run_here(average, "--model_dir", tmp_path)
