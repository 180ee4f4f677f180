"""The page of `--help` of every command: all flags, an example, without loading TensorFlow."""

import importlib
import json
import os
import subprocess
import sys

import pytest
from absl import flags
from helpers import commands

from tfcap import usage

COMMANDS = sorted(
    path.stem for path in commands.ROOT.glob("tfcap/*.py") if "console.run(" in path.read_text()
)
# Each command in a process of its own: a fork of one that has loaded what all of them need.
EVERY = """
import io, json, os, runpy, sys
import absl.app, absl.logging, numpy
for command in sys.argv[1:]:
    reader, writer = os.pipe()
    if not os.fork():
        os.dup2(writer, 1)
        os.environ["COLUMNS"] = "100"
        sys.argv = [command, "--help"]
        code, end = None, os._exit
        os._exit = sys.exit  # a command that ends its process at once must come back here
        try:
            runpy.run_module("tfcap." + command, run_name="__main__", alter_sys=True)
        except SystemExit as error:
            code = error.code
        heavy = {"tensorflow", "keras", "matplotlib", "faiss"} & set(sys.modules)
        print(json.dumps([code, sorted(heavy)]), flush=True)
        end(0)
    os.close(writer)
    with open(reader) as file:
        print(json.dumps([command, file.read()]))
    os.wait()
"""


@pytest.fixture(scope="module")
def pages():
    """The output of `--help` of each command, its exit code, and the heavy modules it loads."""
    environment = {**os.environ, "PYTHONPATH": str(commands.ROOT)}
    done = subprocess.run(
        [sys.executable, "-c", EVERY, *COMMANDS], env=environment, capture_output=True, text=True
    )
    assert not done.stderr
    found = {}
    for line in done.stdout.splitlines():
        command, text = json.loads(line)
        text, _, last = text.rstrip().rpartition("\n")
        found[command] = (text, *json.loads(last))
    return found


def test_the_commands_are_found():
    assert {"caption", "evaluate", "prepare", "train", "export"} <= set(COMMANDS)


@pytest.mark.parametrize("command", COMMANDS)
def test_help_ends_well_and_loads_no_tensorflow(pages, command):
    _, code, heavy = pages[command]
    assert code == 0 and heavy == []


@pytest.mark.parametrize("command", COMMANDS)
def test_help_shows_an_example_and_every_flag(pages, command):
    text = pages[command][0]
    assert f"python -m tfcap.{command} " in text
    given = commands.defined(importlib.import_module(f"tfcap.{command}"))
    lines = {line.split()[0].removeprefix("--").removeprefix("[no]") for line in shown(text)}
    assert lines == {*given, "debug", "helpfull"}
    assert all(len(line) <= 100 for line in text.partition("Flags:")[2].splitlines())


def shown(text):
    return [line for line in text.splitlines() if line.startswith("  --")]


def test_help_shows_the_shared_and_required_flags_with_values_and_defaults(pages):
    lines = [line.strip() for line in shown(pages["caption"][0])]
    assert "--model_dir TEXT  (repeatable)" in lines
    assert "--checkpoint TEXT  (default: best)" in lines
    assert "--batch_size NUMBER  (default: 16)" in lines
    assert "--rerank consensus|oracle" in lines
    assert "--[no]json  (default: false)" in lines
    assert "--rerank_references A,B,...  (default: train)" in lines


def test_help_says_what_absl_adds_only_once(pages):
    text = pages["evaluate"][0]
    assert "\n      Reorder the captions of each image: consensus" in text
    assert "repeat this" not in text and "<" not in text.partition("Flags:")[2]


def test_help_behind_the_flags_is_not_asked_for():
    assert usage.asked(["caption", "a.png", "--help"])
    assert usage.asked(["caption", "-h"])
    assert not usage.asked(["caption", "--beam=3", "help"])
    assert not usage.asked(["caption", "--", "--help"])


def test_a_long_help_text_is_wrapped(monkeypatch):
    monkeypatch.setenv("COLUMNS", "40")
    given = flags.FlagValues()
    flags.DEFINE_string("name", "x", "word " * 30, flag_values=given)
    text = usage.page("Does it.\n", given)
    assert text.startswith("Does it.\n\nFlags:\n  --name TEXT  (default: x)\n      word")
    assert max(map(len, text.splitlines()[:-1])) <= 40


@pytest.mark.parametrize(
    ("command", "flag"), [("compare", "--help"), ("train", "--help"), ("train", "--list")]
)
def test_a_reader_that_stops_early_sees_no_error(command, flag):
    """As `python -m tfcap.evaluate --help | head -n 1`, with a reader that is gone at once."""
    command = [sys.executable, "-m", f"tfcap.{command}", flag]
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run(command, cwd=commands.ROOT, stdout=writer, stderr=subprocess.PIPE)
    os.close(writer)
    assert done.stderr == b""


@pytest.mark.parametrize(
    "line",
    [
        "2026-11-22 06:06:27.955422: E tensorflow/core/util/util.cc:131] oneDNN supports DT_HALF",
        "I0000 00:00:1732252015.1 1234 gpu_device.cc:2022] Created device",
        "WARNING: All log messages before absl::InitializeLog() is called",
        "INFO:tensorflow:Assets written to: served/1/assets",
        "/a/b.py:12: UserWarning: The structure of `inputs`",
    ],
)
def test_lines_of_libraries_are_found(line):
    assert commands.chatter(f"note: ours\n{line}\nerror: ours") == [line]
    assert not commands.chatter("warning: The driver shows 1 GPUs\nstep 5 of 9, loss 1.000\n")
