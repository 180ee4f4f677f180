"""What the commands share: errors in one line, exit codes, help, progress; and `tfcap` itself."""

import errno
import importlib
import io
import os
import subprocess
import sys

import pytest
import tensorflow as tf
from absl import flags
from helpers import commands

import tfcap
from tfcap import __main__ as command
from tfcap import cli, configs, errors, gpus, progress
from tfcap.models import captioner


def no_space(name=None):
    return OSError(errno.ENOSPC, "No space left on device", name)


@pytest.mark.parametrize(
    ("error", "code", "word"),
    [
        (errors.UsageError("--out is\nmissing."), 2, "--out is missing."),
        (ValueError("line 3"), 3, "line 3"),
        (FileNotFoundError(2, "No such file", "a.csv"), 3, "a.csv"),
        (no_space("a.json"), 3, "The disk is full: a.json"),
        (
            tf.errors.ResourceExhaustedError(None, None, "run/x; No space left on device"),
            3,
            "run/x",
        ),
        (tf.errors.ResourceExhaustedError(None, None, "Graph:\nOOM when x"), 3, "OOM when x"),
        (MemoryError(), 3, "not enough memory"),
        (errors.Interrupted("Step 5 is saved.", 75), 75, "Step 5 is saved."),
        (KeyboardInterrupt(), 130, "Interrupted."),
    ],
)
def test_an_expected_error_is_one_line_and_an_exit_code(error, code, word, capsys):
    def main():
        raise error

    with pytest.raises(SystemExit) as end:
        cli.guard(main)
    said = capsys.readouterr()
    assert end.value.code == code and said.out == ""
    assert said.err.startswith("error: ") and word in said.err and said.err.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        ("prepare", "--out is missing"),
        ("export", "--export_dir is missing"),
        ("convert --from=xlan a.pth", "--vocab is missing"),
        ("train xlan", "'xlan' is not a flag"),
        ("train --bogus", "Unknown flag --bogus"),
        ("caption --model=a", "Did you mean 'model_dir'?"),
        ("caption --beam=0 a.jpg", "--beam"),
        ("caption --num_beams=5 a.jpg", "Unknown flag --num_beams. Write --decoding=beam=VALUE."),
        ("caption --do_sample a.jpg", "Write --decoding=search=sample."),
        ("evaluate --top_p=0.9", "Write --decoding=top_p=VALUE."),
        ("prepare --import=not_there", "--import=not_there: No module named 'not_there'."),
        ("prepare --import=./mine.py", "--import=./mine.py must be the name of a Python module"),
        ("trian", "There is no command trian. Did you mean 'train'?"),
    ],
)
def test_a_wrong_command_line_is_one_line_and_exit_code_2(arguments, word):
    done = commands.python("-m", "tfcap", *arguments.split())
    (line,) = commands.errors(done)
    assert done.returncode == 2 and word in line and done.stderr.count("\n") == 1


def test_a_module_of_the_user_registers_its_system(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine_for_test.py").write_text(
        "from tfcap.models import captioner, show_tell\n"
        "class Mine(show_tell.ShowTell):\n    'A system of my own.'\n"
        "    def __init__(self, *sizes: int, units: int = 8, **kwargs):\n"
        "        super().__init__(*sizes, width=units, **kwargs)\n"
        "captioner.register('mine')(Mine)\n"
    )
    try:
        done = commands.run_command("tfcap.train", "--list", "--import=mine_for_test")
        assert done.returncode == 0 and "A system of my own." in done.stdout
        changed = configs.resolve("mine", override="task.model.mine.units=3")
        assert changed.task.model.mine.units == 3
        monkeypatch.setattr(os, "cpu_count", lambda: 2)  # then the width matters, if there is one
        override = f"--params_override=task.data_dir={tmp_path / 'missing'}"
        done = commands.run_command("tfcap.train", "--experiment=mine", override)
        assert done.returncode == 3 and "missing" in commands.errors(done)[-1]
    finally:
        for registry in (captioner.MODELS, captioner.SMALL):
            registry.pop("mine", None)


@pytest.mark.parametrize("name", sorted(command.commands()))
def test_help_shows_the_description_and_the_flags_without_tensorflow(name):
    program = (
        "import runpy, sys; sys.argv = ['x', '--help']\n"
        f"try: runpy.run_module('tfcap.{name}', run_name='__main__', alter_sys=True)\n"
        "except SystemExit as end: sys.exit(end.code or 9 * ('tensorflow' in sys.modules))"
    )
    done = commands.python("-c", program)
    assert done.returncode == 0 and done.stderr == ""
    module = importlib.import_module(f"tfcap.{name}")
    assert done.stdout.startswith(module.__doc__.split("\n")[0])
    missing = [flag for flag in commands.defined(module) if f"{flag}:" not in done.stdout]
    assert not missing and "debug:" in done.stdout


SHORT = "from tfcap import cli; cli.run(lambda: print('hi'))"  # it stays in a buffer until the end


@pytest.mark.parametrize(
    ("output", "code", "line"),
    [("closed", 141, ["-m", "tfcap", "train", "--help"]), ("/dev/full", 3, ["-c", SHORT])],
)
def test_output_that_nobody_reads_and_a_full_disk_show_no_traceback(output, code, line):
    if output == "closed":
        reader, writer = os.pipe()
        os.close(reader)
    else:
        writer = os.open(output, os.O_WRONLY)
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONUNBUFFERED"}
    done = subprocess.run(
        [sys.executable, *line],
        cwd=commands.ROOT,
        env=environment,
        stdout=writer,
        stderr=subprocess.PIPE,
        text=True,
    )
    os.close(writer)
    assert done.returncode == code and "Traceback" not in done.stderr
    assert done.stderr == "" if output == "closed" else "The disk is full" in done.stderr


def test_tfcap_lists_the_commands_and_its_version_without_tensorflow():
    program = (
        "import sys; from tfcap.__main__ import main; main(); sys.exit('keras' in sys.modules)"
    )
    listed, version = (commands.python("-c", program, word) for word in ("--help", "--version"))
    assert listed.returncode == version.returncode == 0
    assert {"caption", "evaluate", "prepare", "train"} <= set(command.commands())
    assert all(f"\n  {name} " in listed.stdout for name in command.commands())
    assert version.stdout == f"tfcap {tfcap.__version__}\n"


@pytest.mark.parametrize(
    ("word", "written"),
    [
        ("--out=~/x", "--out=/home/a/x"),
        ("--then=xlan:~/a.yaml,~/b.yaml", "--then=xlan:/home/a/a.yaml,/home/a/b.yaml"),
        ("--out=gs://a/~/x", "--out=gs://a/~/x"),
        ("--query=a dog ~ 5 kg", "--query=a dog ~ 5 kg"),
    ],
)
def test_the_home_directory_is_written_out(monkeypatch, word, written):
    monkeypatch.setenv("HOME", "/home/a")
    values = flags.FlagValues()
    monkeypatch.setattr(flags, "FLAGS", values)
    for name in ("out", "captions", "then", "query"):
        flags.DEFINE_string(name, None, "", flag_values=values)
    cli._parse(["command", word])
    name, _, value = written.removeprefix("--").partition("=")
    assert values[name].value == value


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_a_terminal_has_a_bar_with_rate_and_time_left(monkeypatch, capsys):
    monkeypatch.setattr(sys, "stderr", Terminal())
    for item in progress.progress(range(4), 4, "pictures", "picture"):
        if item == 2:
            progress.say("a line")
    shown = sys.stderr.getvalue()
    assert "\rpictures:   0%|" in shown and "0/4 [00:00<?, ?picture/s]" in shown
    assert shown.endswith("\r") and capsys.readouterr().out == "a line\n"


def test_only_a_terminal_is_told_that_models_are_loaded(monkeypatch, capsys):
    cli.say_loading(["flickr8k"])
    assert capsys.readouterr() == ("", "")
    monkeypatch.setattr(sys, "stderr", Terminal())
    cli.say_loading(["runs/a", "b\n"])
    assert sys.stderr.getvalue() == "loading runs/a + b\\n ...\n"


def test_a_log_has_a_line_every_30_seconds(monkeypatch, capsys):
    now = 100.0
    monkeypatch.setattr(progress.time, "monotonic", lambda: now)
    with progress.Bar(200, "training", "step", done=10) as bar:
        for _ in range(70):
            now += 1
            bar.update(2, "loss 1.500")
    first = "training: 70/200 [00:30<01:05,  2.00step/s, loss 1.500]"
    assert capsys.readouterr().err.splitlines()[0] == first and bar.done == 150
    with progress.Bar(9, "short") as bar:
        bar.update(9)
    assert capsys.readouterr() == ("", "")


def test_gpus_that_tensorflow_does_not_use_are_named(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert gpus.unused_gpus(0) == ""
    tool = tmp_path / "nvidia-smi"
    tool.write_text('#!/bin/sh\necho "GPU 0: NVIDIA T4 (UUID: GPU-5c)"\necho "  MIG 1g.5gb"\n')
    tool.chmod(0o755)
    assert "1 GPUs (NVIDIA T4) and TensorFlow uses 0" in gpus.unused_gpus(0)
    assert gpus.unused_gpus(1) == ""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert gpus.unused_gpus(0) == ""


@pytest.mark.slow
def test_keras_is_imported_without_libraries_that_no_command_uses():
    program = """
import sys
from tfcap import cli
unused = ("matplotlib", "pandas", "sklearn")
def work():
    import official.core, tensorflow, tf_keras
    assert "keras" in sys.modules and not set(unused) & set(sys.modules), sys.modules.keys()
    for name in unused:
        __import__(name)
cli.run(work)
"""
    done = commands.python("-c", program)
    assert done.returncode == 0, done.stderr
