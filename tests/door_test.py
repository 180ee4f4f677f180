"""`import tfcap` is light, and its commands are functions in any order of imports."""

import copy
import inspect
import json
import subprocess
import sys

import pytest
from helpers import commands

import tfcap
from tfcap import configs

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


@pytest.mark.parametrize(
    ("settings", "part"),
    [
        ({"source": "xls"}, "--source must be one of auto,.*karpathy.*shapes. Received: 'xls'"),
        ({"image": "photographs"}, "settings of prepare must be among .* Received: image"),
    ],
)
def test_prepare_refuses_other_settings(settings, part, tmp_path):
    with pytest.raises(ValueError, match=part):
        tfcap.prepare(tmp_path / "out", "captions.json", **settings)


def test_changes_may_mix_groups_dotted_keys_and_paths(monkeypatch, tmp_path):
    """None of them is lost, and the dictionary of the caller stays as it is."""
    resolved = []
    monkeypatch.setattr(configs, "resolve", lambda *given: resolved.append(given) or 1 / 0)
    changes = {
        "task.seed": 3,
        "task": {"max_length": 9, "model.type": "xlan"},
        "task.data_dir": tmp_path,
        "trainer": {},
    }
    before = copy.deepcopy(changes)
    with pytest.raises(ZeroDivisionError):
        tfcap.train("xlan", params_override=changes)
    task = {"seed": 3, "max_length": 9, "model": {"type": "xlan"}, "data_dir": str(tmp_path)}
    assert json.loads(resolved[0][2]) == {"task": task, "trainer": {}} and changes == before
    with pytest.raises(ValueError, match="seed is given as a value and as a group"):
        tfcap.train("xlan", params_override={"task.seed": 3, "task.seed.x": 2})


def test_paths_may_begin_with_the_home_directory(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    sizes = {"train": 6, "val": 2, "test": 2, "backbone": "pixels", "min_count": 1}
    tfcap.prepare("~/data", source="shapes", **sizes)
    for name in ("captions.csv", "features.npz", "results.json", "references.json"):
        with pytest.raises(ValueError) as error:
            if name == "captions.csv":
                tfcap.prepare("~/out", f"~/{name}", images="~/p")
            elif name == "features.npz":
                tfcap.prepare("~/out", "data/captions.json", features=f"a,~/{name}")
            else:
                tfcap.evaluate(f"~/{name}", {1: ["a dog"]})
        assert "~" not in str(error.value)
    with pytest.raises(ValueError, match=f"{tmp_path}/run"):
        tfcap.load("~/run")
    (tmp_path / "a.yaml").write_text("task: {sed: 3}")
    with pytest.raises(ValueError, match="there is no key sed"):
        tfcap.train("xlan", "~/run", config_file="~/a.yaml")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.yaml", "data"]


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
