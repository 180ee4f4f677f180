"""The command `tfcap`: what it lists, how it runs the commands, and its errors."""

import pathlib
import subprocess
import sys

import pytest
from architecture_test import COMMANDS

from tfcap import __main__ as command
from tfcap import __version__

ROOT = pathlib.Path(__file__).parents[1]


def tfcap(*arguments: str) -> subprocess.CompletedProcess:
    """`python -m tfcap arguments...`, output as text."""
    return subprocess.run(
        [sys.executable, "-m", "tfcap", *arguments], cwd=ROOT, capture_output=True, text=True
    )


def test_every_command_has_a_line():
    known = command.commands()
    assert {f"tfcap.{name}" for name in known} == set(COMMANDS)
    assert all(15 <= len(text) <= 95 and "`" not in text for text in known.values())


def test_a_new_module_is_listed_without_a_line_elsewhere(tmp_path, monkeypatch):
    (tmp_path / "paint.py").write_text(
        '"""Paints captions: `python -m tfcap.paint`.\n\nMore.\n"""\n\n'
        'if __name__ == "__main__":\n    print("painted")\n'
    )
    (tmp_path / "colours.py").write_text('"""The colours."""\n')
    monkeypatch.setattr(command, "__file__", str(tmp_path / "__main__.py"))
    assert command.commands() == {"paint": "Paints captions"}


@pytest.mark.parametrize("arguments", [[], ["--help"], ["-h"], ["help"]])
def test_without_a_command_the_commands_are_listed(arguments, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["tfcap", *arguments])
    command.main()
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines[3:-3]] == sorted(command.commands())


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("trian", "Received: 'trian'. Did you mean 'train'? "),
        ("zzz", "Received: 'zzz'. `tfcap --help` lists"),
        ("--experiment=xlan", "must be a command. Received: '--experiment=xlan'. "),
        ("captioning", "Received: 'captioning'. Did you mean 'caption'? "),
    ],
)
def test_an_unknown_command_is_one_line_and_exit_code_2(name, hint, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["tfcap", name])
    with pytest.raises(SystemExit) as end:
        command.main()
    error = capsys.readouterr().err
    assert end.value.code == 2 and hint in error and error.count("\n") == 1


def test_it_answers_without_loading_tensorflow(monkeypatch):
    code = (
        "import sys; from tfcap.__main__ import main; main(); sys.exit('tensorflow' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, "--version"], cwd=ROOT, capture_output=True, text=True
    )
    assert (done.returncode, done.stdout) == (0, f"tfcap {__version__}\n")


def test_a_command_gets_its_flags_and_gives_its_exit_code():
    listed = tfcap("train", "--list")
    assert listed.returncode == 0 and "flickr8k/xlan_xe.yaml" in listed.stdout, listed.stderr
    wrong = tfcap("train", "--bogus")
    assert wrong.returncode == 2 and "Unknown command line flag 'bogus'" in wrong.stderr
    # absl also has `profile_file`, which `--help` does not show.
    for given, hint in (("--prefix", " "), ("--model=a", " Did you mean 'model_dir'? ")):
        assert f"'.{hint}(--help lists the flags)" in tfcap("caption", given).stderr
    helped = tfcap("train", "--help")
    assert helped.returncode == 0 and "--config_file" in helped.stdout
