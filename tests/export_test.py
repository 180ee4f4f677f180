"""The export command: its flags and its two names. `runs/server_test` reads what it writes."""

import pytest
from absl import flags
from helpers import commands

from export import savedmodel
from tfcap import cli, runs
from tfcap import export as command


def test_a_run_and_a_directory_must_be_given(tmp_path):
    for flag in ("--model_dir", "--export_dir"):
        with pytest.raises(cli.UsageError, match="is missing"):
            commands.run_here(command, flag, tmp_path)


def test_the_command_of_a_checkout_is_that_of_a_wheel():
    assert savedmodel.main is command.main


def test_the_limit_of_pixels_is_checked():
    for value in ("0", "178956971"):
        with pytest.raises(flags.IllegalFlagValueError, match="max_pixels"):
            commands.parse(command, f"--max_pixels={value}")
    assert commands.parse(command).max_pixels == 50_000_000


def test_a_run_of_several_runs_is_refused():
    flags = "--model_dir=a", "--model_dir=b", "--export_dir=out", "--format=run"
    with pytest.raises(cli.UsageError, match="writes one run"):
        commands.run_here(command, *flags)
    with pytest.raises(cli.UsageError, match="--last needs --format=run"):
        commands.run_here(command, "--model_dir=a", "--export_dir=out", "--last=2")


def test_a_small_run_is_written(trained, tmp_path, capsys):
    out = str(tmp_path / "small")
    commands.run_here(command, "--model_dir", trained, "--export_dir", out, "--format=run")
    assert f" is exported to {out}: 0.0 MB\n" in capsys.readouterr().out
    assert runs.load(out).params.task.decoding.beam == 2


@pytest.mark.parametrize("form", ["run", "saved_model"])
def test_the_command_shows_no_traceback(trained, tmp_path, form):
    flags = ("--model_dir", trained, "--export_dir", tmp_path / "out", f"--format={form}")
    done = commands.run_command("tfcap.export", *map(str, flags))
    assert done.returncode == 0 and "Traceback" not in done.stderr, done.stderr
