"""The export command: its flags and its two names. `runs/savedmodel_test` reads what it writes."""

import pytest
from helpers import commands

from export import savedmodel
from tfcap import console
from tfcap import export as command


def test_a_run_and_a_directory_must_be_given(tmp_path):
    for flag in ("--model_dir", "--export_dir"):
        with pytest.raises(console.UsageError, match="--model_dir and --export_dir must be given"):
            commands.run_here(command, flag, tmp_path)


def test_the_command_of_a_checkout_is_that_of_a_wheel():
    assert savedmodel.main is command.main
