"""Commands with damaged flags end with a line in words: no traceback, no hang, no gigabytes.

The suite tries two lines of one command. `TFCAP_DAMAGED=50 pytest tests/faults/flags_test.py` tries
50 of each command.
"""

import importlib
import json
import os
import random
import shutil
import subprocess

import pytest
import tensorflow as tf
from faults.damage_test import GIGABYTES, SECONDS, make_captions
from helpers import commands, forks, photos

TRIES = int(os.environ.get("TFCAP_DAMAGED", 2))
# The page of `demo` and the workers of `train` and `prepare` have tests of their own.
NAMES = ["evaluate"]
if "TFCAP_DAMAGED" in os.environ:
    NAMES += ["average", "caption", "compare", "convert", "doctor", "export"]
    NAMES += ["prepare", "retrieve", "submit", "train"]
# Runs a command that gets an error when it asks for more memory.
PROGRAM = f"""
import resource, runpy, sys
resource.setrlimit(resource.RLIMIT_DATA, ({GIGABYTES << 30}, {GIGABYTES << 30}))
runpy.run_module(sys.argv.pop(1), run_name="__main__", alter_sys=True)
"""
TEXTS = ["", " ", "-1", "0", "1", "7", "1.5", "nan", "inf", "-inf", "1e30", "1000000000", "true"]
TEXTS += ["None", "null", "{", "[1, 2", "a,b,,c", "=", "x=1", "search=sample,top_p=2", "é" * 5_000]
TEXTS += ["task.seed=x", "{'task': 3}", '{"task": {"seed": "x"}}', "../..", "/proc/nothing/x", "*"]
TEXTS += ["/dev/null", "/dev/null/x", "gs:///", "http://127.0.0.1:1/x", "%s%n", "-", "--", "\n"]


@pytest.fixture(scope="module")
def world(small, shapes, trained, tmp_path_factory):
    """The command lines that work, and paths that a damaged flag may name."""
    folder = tmp_path_factory.mktemp("flags")
    # A damaged flag may name one of these for writing, so the fixtures of other tests are copied.
    data, run_folder = (
        shutil.copytree(path, folder / os.path.basename(path)) for path in (shapes, trained)
    )
    make_captions(folder / "results")
    (folder / "photo.jpg").write_bytes(tf.io.encode_jpeg(tf.zeros((32, 48, 3), tf.uint8)).numpy())
    shutil.copy(folder / "results" / "results.json", folder / "other.json")
    found, truth = folder / "results" / "results.json", folder / "results" / "references.json"
    (folder / "small.json").write_text(json.dumps(small))
    run = f"--model_dir={run_folder}"
    _, entries, settings = photos.make_photos(folder)
    captions, pictures = photos.write_captions(folder, entries), settings["images"]
    lines = {
        "average": [run, "--out=averaged"],
        "caption": [run, str(folder / "photo.jpg")],
        "compare": [f"--references={truth}", str(found), str(folder / "other.json")],
        "convert": ["--from=xlan", str(found), f"--vocab={found}", "--model_dir=converted"],
        "doctor": [f"--data_dir={data}", run],
        "evaluate": [run, "--split=test", "--limit=2"],
        "export": [run, "--export_dir=served"],
        "prepare": [
            f"--captions={captions}",
            f"--images={pictures}",
            "--backbone=pixels",
            "--out=data",
        ],
        "retrieve": [run, "--split=test", "--output=ranked"],
        "submit": [run, "--val=val", "--test=test", "--name=x", "--out=archive"],
        "train": [
            "--experiment=attention_lstm",
            "--model_dir=run",
            f"--params_override={json.dumps(small)}",
            f"--config_file={folder / 'small.json'}",  # still small without one of the two
        ],
    }
    return lines, [str(path) for path in (folder, found, folder / "photo.jpg", data, run_folder)]


def damaged_line(line, names, paths, rng):
    """The command line with one flag that is replaced or added, or with a word that is cut."""
    if rng.random() < 0.1:
        at = rng.randrange(len(line))
        return [*line[:at], line[at][: rng.randrange(len(line[at]))], *line[at + 1 :]]
    name, value = rng.choice(names), rng.choice(TEXTS + paths)
    return [*(word for word in line if not word.startswith(f"--{name}=")), f"--{name}={value}"]


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_damaged_flags_end_with_a_line_in_words(name, world, tmp_path):
    lines, paths = world
    module = importlib.import_module(f"tfcap.{name}")
    names, rng, codes = commands.defined(module), random.Random(name), {}
    environment = {**os.environ, **commands.hide_java(tmp_path)}
    environment["PYTHONPATH"] += f"{os.pathsep}{commands.ROOT}"
    for number in range(TRIES):
        work = tmp_path / str(number)
        work.mkdir()
        line = damaged_line(lines[name], names, paths, rng)
        program = ["-c", PROGRAM, module.__name__, *line]
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        process = forks.start(program, work, environment, **pipes)
        output, error = process.communicate(SECONDS)
        assert process.returncode in (0, 1, 2, 3), (line, process.returncode, error)
        assert "Traceback" not in error, (line, error)
        assert process.returncode == 0 or error.strip() or output.strip(), line
        codes[process.returncode] = codes.get(process.returncode, 0) + 1
    print(f"{name}: {TRIES} damaged flags, exit codes {codes}")
