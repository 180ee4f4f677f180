"""The recipes of CONTRIBUTING.md are followed word for word, in a copy of the package."""

import json
import os
import pathlib
import re
import shutil

import pytest
from helpers import commands, forks
from PIL import Image

ROOT = pathlib.Path(__file__).parents[1]
PAGE = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```python\n# (at the end of )?(\S+\.py)\n(.*?)```", PAGE, re.S)
COMMANDS = re.findall(r"^python -m (tfcap\.\w+)(.*)$", PAGE, re.M)


@pytest.fixture(scope="module")
def copy(tmp_path_factory):
    """A copy of the sources to which all recipes are applied."""
    folder = tmp_path_factory.mktemp("copy")
    for name in ("tfcap", "tests", "experiments", "export"):
        leave = shutil.ignore_patterns("__pycache__")
        shutil.copytree(ROOT / name, folder / name, ignore=leave)
    for name in ("setup.cfg", "ruff.toml"):
        shutil.copy(ROOT / name, folder)
    for at_the_end, name, text in BLOCKS:
        path = folder / name
        assert path.exists() == bool(at_the_end), name
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(path, "a", encoding="utf-8") as file:
            file.write(text)
    return folder


def run(folder: pathlib.Path, *arguments: str) -> str:
    """Runs Python in the copy and returns what it prints."""
    done = forks.run(arguments, folder, env={**os.environ, **commands.hide_java(folder)})
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def command(module: str) -> list[str]:
    """The arguments of the command of the page that runs this module."""
    [text] = [text for name, text in COMMANDS if name == module]
    return ["-m", module, *text.split()]


def test_each_recipe_is_one_file_and_one_import():
    files = [name for at_the_end, name, _ in BLOCKS if not at_the_end and name.startswith("tfcap")]
    lines = [text for at_the_end, _, text in BLOCKS if at_the_end]
    assert len(files) == len(lines) == 3
    assert all(re.fullmatch(r"from \S+ import \w+\n", text) for text in lines)


@pytest.mark.slow
def test_the_copy_keeps_to_the_style_of_the_repository(copy):
    run(copy, "-m", "ruff", "check", ".")
    run(copy, "-m", "ruff", "format", "--check", ".")


@pytest.mark.slow
def test_the_tests_of_the_recipes_and_the_mirror_pass(copy):
    names = [name for _, name, _ in BLOCKS if name.startswith("tests")]
    assert len(names) == 3
    run(copy, "-m", "pytest", "-p", "no:cacheprovider", *names, "tests/mirror_test.py")


@pytest.mark.slow
def test_the_new_source_is_prepared(copy):
    (copy / "images").mkdir()
    rows = []
    for number, colour in enumerate(["red", "blue", "green", "black"]):
        Image.new("RGB", (64, 64), colour).save(copy / "images" / f"{colour}.png")
        rows.append(f"{'val' if number == 3 else 'train'}|{colour}.png|a {colour} picture")
    (copy / "captions.txt").write_text("\n".join(rows))
    # Without --backbone the command would download weights.
    run(copy, *command("tfcap.prepare"), "--backbone=pixels", "--min_count=1")
    described = json.loads((copy / "data/mine/dataset.json").read_text())
    assert described["splits"]["train"]["images"] == 3, described
    assert "green" in (copy / "data/mine/vocab.txt").read_text()


@pytest.mark.slow
def test_the_new_model_trains(copy, shapes):
    small = "trainer.train_steps=1,trainer.steps_per_loop=1,trainer.summary_interval=1,"
    small += "trainer.checkpoint_interval=1,trainer.validation_interval=1,trainer.shown_images=0,"
    # One step is a graph, as in a real run; one validation takes less time than its graph.
    small += "trainer.train_tf_while_loop=false,trainer.eval_tf_function=false,"
    small += f"task.data_dir={shapes},task.metrics=[CIDEr,Word-F1],task.validation_data.limit=8"
    printed = run(copy, *command("tfcap.train"), f"--params_override={small}")
    assert "mean_pool: " in printed and re.search(r"Word-F1 +\d", printed), printed


@pytest.mark.slow
def test_the_new_metric_is_computed(copy):
    (copy / "results.json").write_text('[{"image_id": 1, "caption": "a dog"}]')
    references = {"images": [{"id": 1}], "annotations": [{"image_id": 1, "caption": "A dog."}]}
    (copy / "references.json").write_text(json.dumps(references))
    assert re.search(r"^Word-F1 +100.00$", run(copy, *command("tfcap.evaluate")), re.M)
