"""Writes the goldens with the code as it is: `python tests/goldens/make.py systems`.

The parts are systems, prepared and say. A number that was wrong is the only reason to write one
again. `systems` adds only what is missing: delete the line of a system whose numbers were wrong
first. The inputs in `sources` and `runs` stay as earlier code has written them.
"""

import json
import os
import pathlib
import shutil
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

import goldens_test  # noqa: E402


def write(name, value):
    """Writes a file with a line for each entry of a dictionary."""
    lines = (f"{json.dumps(key)}: {json.dumps(entry)}" for key, entry in value.items())
    (HERE / name).write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")


def systems():
    """Adds the systems that the file lacks."""
    stored = goldens_test.read("systems.json")
    new = [name for name in goldens_test.models.MODELS if name not in stored]
    write("systems.json", stored | {name: goldens_test.numbers_of_system(name) for name in new})


def in_a_folder():
    """Goes to a temporary directory with a copy of the inputs, as the test does."""
    folder = pathlib.Path(tempfile.mkdtemp()).resolve()
    for name in ("sources", "runs"):
        shutil.copytree(HERE / name, folder / name)
    os.chdir(folder)
    return folder


def prepared():
    folder = in_a_folder()
    names = goldens_test.SOURCES
    write("prepared.json", {name: goldens_test.prepared(name, folder) for name in names})


def say():
    """Writes what the commands say of the runs, and what two more steps make of one."""
    in_a_folder()
    for kind in goldens_test.RUNS:
        goldens_test.data_of(kind)
        write(f"said_{kind}.json", goldens_test.said(kind))
    write("resumed.json", goldens_test.go_on())


if __name__ == "__main__":
    for part in sys.argv[1:]:
        globals()[part]()
