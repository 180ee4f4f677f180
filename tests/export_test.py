"""The export command: its flags and its two names. `saved_model_test` reads what it writes."""

import pytest
from helpers import commands

from export import savedmodel
from tfcap import errors
from tfcap import export as command


def test_the_command_of_a_checkout_is_that_of_a_wheel():
    assert savedmodel.main is command.main


def test_flags_that_choose_other_weights_are_refused():
    flags = "--model_dir=a", "--model_dir=b", "--export_dir=out", "--format=run"
    with pytest.raises(errors.UsageError, match="averages the best checkpoints. Leave out"):
        commands.run_here(command, *flags, "--checkpoint=latest")
    with pytest.raises(errors.UsageError, match="--last needs --format=run"):
        commands.run_here(command, "--model_dir=a", "--export_dir=out", "--last=2")


def test_a_file_is_no_directory_for_an_export(tmp_path):
    (tmp_path / "notes").write_text("mine")
    with pytest.raises(errors.UsageError, match="notes is a file. Name a directory"):
        commands.run_here(command, "--export_dir", tmp_path / "notes")
    assert (tmp_path / "notes").read_text() == "mine"
