"""Writes the goldens with the code as it is: `python tests/goldens/make.py systems`.

The parts are systems, prepared and runs. Nothing but a number that was wrong is a reason to run it.
"""

import json
import pathlib
import sys

HERE = pathlib.Path(__file__).parent
sys.path.insert(0, str(HERE.parent))

import goldens_test  # noqa: E402


def write_json(name, value):
    """One line for each list of numbers, so that a difference is easy to read."""
    text = json.dumps(value, indent=1, ensure_ascii=False)
    (HERE / name).write_text(text + "\n", encoding="utf-8")


def systems():
    names = goldens_test.SIZES
    lines = (f'"{n}": {json.dumps(goldens_test.numbers_of_system(n))}' for n in names)
    (HERE / "systems.json").write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")


if __name__ == "__main__":
    for part in sys.argv[1:] or ["systems"]:
        globals()[part]()
