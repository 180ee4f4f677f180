"""Runs commands of the package in processes of their own, as a person would."""

import os
import pathlib
import subprocess
import sys

ROOT = pathlib.Path(__file__).parents[1]


def run(module: str, *arguments: str) -> subprocess.CompletedProcess:
    """`python -m module arguments...` in the checkout, output as text."""
    command = [sys.executable, "-m", module, *map(str, arguments)]
    environment = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"}
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)


def errors(result: subprocess.CompletedProcess) -> list[str]:
    """The lines `error: ...` on standard error; there must be no traceback beside them."""
    assert "Traceback" not in result.stderr, result.stderr
    return [line for line in result.stderr.splitlines() if line.startswith("error: ")]
