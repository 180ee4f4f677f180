"""Runs commands of the package: in processes of their own, as a person would, or in this one."""

import contextlib
import functools
import inspect
import os
import pathlib
import subprocess
import sys
from types import ModuleType

import pytest
from absl import flags

ROOT = pathlib.Path(__file__).parents[2]


def run(module: str, *arguments: str) -> subprocess.CompletedProcess:
    """`python -m module arguments...` in the checkout, output as text."""
    return python("-m", module, *arguments)


def python(*arguments: str) -> subprocess.CompletedProcess:
    """`python arguments...` in the checkout, output as text."""
    command = [sys.executable, *map(str, arguments)]
    environment = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"}
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)


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
