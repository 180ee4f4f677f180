"""A C program captions pictures through TensorFlow's own session loader, without Python."""

import os
import pathlib
import shutil
import subprocess

import pytest
import tensorflow as tf

pytestmark = pytest.mark.slow

SOURCE = pathlib.Path(__file__).parents[2] / "tools" / "servers" / "session_captions.c"


@pytest.fixture(scope="module")
def program(tmp_path_factory):
    """The program, compiled against the headers and libraries of the TensorFlow wheel."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if not compiler:
        pytest.skip("no C compiler is installed: install gcc")
    home, path = os.path.dirname(tf.__file__), tmp_path_factory.mktemp("program") / "captions"
    if not os.path.exists(f"{home}/libtensorflow_cc.so.2"):
        pytest.skip(f"{home} has no libtensorflow_cc.so.2 for programs in C")
    libraries = [f"-l:libtensorflow_{name}.so.2" for name in ("cc", "framework")]
    # The library is large: this linker needs a quarter of the time of the usual one.
    fast = ["-fuse-ld=gold"] if shutil.which("ld.gold") else []
    command = [
        compiler,
        *fast,
        "-Wall",
        "-Wextra",
        "-Werror",
        f"-I{home}/include",
        SOURCE,
        "-o",
        path,
    ]
    subprocess.run([*command, f"-L{home}", f"-Wl,-rpath,{home}", *libraries], check=True)
    return path


def _run(program, *arguments):
    environment = {k: v for k, v in os.environ.items() if not k.startswith("PYTHON")}
    return subprocess.run(
        [program, *arguments], env=environment, capture_output=True, text=True, timeout=120
    )


def test_captions_are_those_of_the_command_and_errors_end_one_request(
    program, bundle, pictures, expected, tmp_path
):
    bad = tmp_path / "bad.jpg"
    bad.write_text("no picture")
    wrong = ["--wrong-shape", str(bad), str(tmp_path / "missing.jpg")]
    given = [pictures[-1], *wrong, *pictures[:-1]]  # a JPEG file first
    done = _run(program, f"{bundle}/1", *given)
    lines = [line.split("\t") for line in done.stdout.splitlines()]
    found = {path: (text, float(score)) for path, text, score in lines}
    assert list(found) == [pictures[-1], *pictures[:-1]]
    for path, (texts, scores) in zip(pictures, expected, strict=True):
        assert found[path] == (texts[0], pytest.approx(scores[0], abs=1e-4))
    assert "error: --wrong-shape: code 3: " in done.stderr  # INVALID_ARGUMENT
    assert f"error: {bad}: " in done.stderr  # the status of its row
    assert f"error: {tmp_path}/missing.jpg: the file cannot be read" in done.stderr
    assert done.returncode == 1


def test_a_directory_without_a_model_is_an_error(program, tmp_path):
    done = _run(program, tmp_path, "a.jpg")
    assert done.returncode == 2 and f"error: {tmp_path} cannot be loaded" in done.stderr
    assert _run(program).returncode == 2
