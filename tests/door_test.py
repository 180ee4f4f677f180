"""`import tfcap` is light, and its commands are functions in any order of imports."""

import inspect
import json
import subprocess
import sys

import pytest
from helpers import commands

import tfcap

HEAVY = ("tensorflow", "keras", "tf_keras", "official", "numpy", "matplotlib", "absl")


def _python(code):
    done = commands.python("-c", code)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_importing_tfcap_imports_no_tensorflow_and_takes_no_time():
    found = json.loads(
        _python(
            "import sys, time, json; a = time.process_time(); import tfcap; "
            "b = time.process_time(); print(json.dumps([b - a, list(sys.modules), dir(tfcap)]))"
        )
    )
    assert found[0] < 0.05
    assert not {name.split(".")[0] for name in found[1]} & set(HEAVY)
    assert set(tfcap.__all__) <= set(found[2])


@pytest.mark.parametrize("name", ["evaluate", "prepare", "train"])
@pytest.mark.parametrize(
    "before",
    [
        "import tfcap",
        "import tfcap.{0}",
        "from tfcap.{0} import main",
        "from tfcap import {0}",
        "import tfcap; tfcap.{0}; import tfcap.{0}",
        "import tfcap.{0} as module; assert module.main",
    ],
)
def test_a_command_is_a_module_and_a_function_in_any_order_of_imports(name, before, monkeypatch):
    for module in [key for key in sys.modules if key == "tfcap" or key == f"tfcap.{name}"]:
        monkeypatch.delitem(sys.modules, module)
    scope = {}
    exec(before.format(name), scope)
    import tfcap as fresh

    command = getattr(fresh, name)
    assert command is sys.modules[f"tfcap.{name}"] and command.main
    first = {"evaluate": "predictions", "prepare": "out", "train": "experiment"}[name]
    assert next(iter(inspect.signature(command).parameters)) == first
    with pytest.raises(TypeError, match="positional argument"):
        command(*range(9))


def test_unknown_names_are_no_attributes():
    with pytest.raises(AttributeError, match="has no attribute 'lod'"):
        tfcap.lod  # noqa: B018
    assert not hasattr(tfcap, "tensorflow")


def test_the_commands_still_run_as_modules():
    done = subprocess.run(
        [sys.executable, "-m", "tfcap.train", "--help"],
        cwd=commands.ROOT,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0 and "--experiment" in done.stdout and done.stderr == ""
