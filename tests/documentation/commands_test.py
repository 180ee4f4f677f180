"""Every command and Python block of the documents is run, or is in a list with a reason."""

import csv
import json
import os
import pathlib
import shutil

import pytest
import yaml
from absl import flags
from helpers import commands, documented
from PIL import Image

from tfcap import configs
from tfcap.data.prepared import PreparedData
from tfcap.training.stages import later_stages

HERE = pathlib.Path(__file__).parent
LISTED = yaml.safe_load((HERE / "commands.yaml").read_text(encoding="utf-8"))
RUN = {entry["command"]: entry.get("with", "") for entry in LISTED["run"]}
NOT_RUN = {entry["command"]: entry["reason"] for entry in LISTED["not_run"]}
LINES = documented.command_lines()
BLOCKS_NOT_RUN = {entry["starts"]: entry["reason"] for entry in LISTED["python_not_run"]}
# Stand-ins for what a page leaves to the reader.
ANY = {"SYSTEM": "xlan", "...": "x", " N": " 5"}


def filled(line: str) -> str:
    """A command line with values in the place of what the reader chooses."""
    for name, value in ANY.items():
        line = line.replace(name, value)
    return f"{line} x" if line.split()[-1].startswith("--") and "=" not in line else line


def check(line: str) -> None:
    """Raises an error if a command has a flag, key, experiment or recipe that does not exist."""
    for module, arguments in documented.ours(line):
        given = commands.parse(module, *arguments)
        if "config_file" in given and given.experiment:
            configs.resolve(given.experiment, given.config_file, given.params_override)
        if "then" in given:
            for stage in later_stages(given.then, given.then_config_file, given.then_override):
                configs.resolve(*stage)
        if "decoding" in given and given.decoding != "x":
            configs.decoding(configs.resolve("xlan").task, given.decoding)


@pytest.mark.parametrize("line", [*LINES, *documented.inline_commands()])
def test_a_documented_command_has_flags_and_keys_that_exist(line, monkeypatch):
    monkeypatch.chdir(documented.ROOT)
    check(filled(line))


@pytest.mark.parametrize(
    "line",
    [
        "python -m tfcap.caption --model_dirs runs/a photo.jpg",
        "python3 -m venv .venv && .venv/bin/python -m tfcap.train --experiment=xlam",
        "python -m tfcap.train --experiment=xlan --config_file=experiments/no_such.yaml",
        "python -m tfcap.train --experiment=xlan --params_override=task.sead=2",
        "python -m tfcap.train --experiment=xlan --then=xlan_scst --then_override=task.sead=2",
        "python -m tfcap.evaluate --model_dir runs/a --decoding=bream=5",
        "python -m tfcap.convert --from xlen a.pth",
    ],
)
def test_a_wrong_flag_key_or_recipe_is_found(line, monkeypatch):
    monkeypatch.chdir(documented.ROOT)
    with pytest.raises((ValueError, flags.Error)):
        check(line)


def test_every_command_is_run_or_listed_with_a_reason():
    assert not set(RUN) & set(NOT_RUN)
    assert set(LINES) == {*RUN, *NOT_RUN}
    assert all(len(reason.split()) > 3 for reason in NOT_RUN.values())
    assert all(documented.ours(line) for line in RUN)


def test_python_blocks_that_are_not_run_exist():
    texts = [block.text for block in documented.blocks("python")]
    assert not [start for start in BLOCKS_NOT_RUN if not any(t.startswith(start) for t in texts)]


def write_photographs(folder: pathlib.Path, shapes: str) -> None:
    """Writes twelve drawings with captions as a person keeps them: a folder and a table."""
    data = PreparedData.load(shapes)
    names = list(data.file_names("val").items())[:12]
    references = data.references("val")
    (folder / "photographs").mkdir()
    with open(folder / "captions.csv", "w", newline="", encoding="utf-8") as table:
        rows = csv.writer(table)
        rows.writerow(["filename", "caption"])
        for image, name in names:
            shutil.copy(os.path.join(data.images, name), folder / "photographs" / name)
            rows.writerows([name, caption] for caption in references[image])
    picture = Image.open(folder / "photographs" / names[0][1]).convert("RGB")
    picture.save(folder / "photo.jpg")
    picture.save(folder / "another.png")


@pytest.fixture(scope="module")
def world(shapes, trained, tmp_path_factory):
    """A directory with the files that the documents name: pictures, prepared data, runs."""
    folder = tmp_path_factory.mktemp("documents")
    write_photographs(folder, shapes)
    for name in ("data", "runs", "served"):
        (folder / name).mkdir()
    (folder / "data" / "flickr8k").symlink_to(shapes)
    for name in ("flickr8k", "flickr8k_xlan", "flickr8k_updown", "mine"):
        shutil.copytree(trained, folder / "runs" / name)
    data = PreparedData.load(shapes)
    other = [{"image_id": i, "caption": texts[0]} for i, texts in data.references("val").items()]
    (folder / "other_results.json").write_text(json.dumps(other))
    return folder


@pytest.fixture
def inside(world, monkeypatch):
    monkeypatch.chdir(world)
    return world


def runnable():
    """The Python blocks that are run; those of one page share their names."""
    blocks = documented.blocks("python")
    notebooks = [b for b in blocks if b.page.startswith("docs/notebook_")]
    rest = [b for b in blocks if b not in notebooks]
    return [b for b in rest if not any(b.text.startswith(start) for start in BLOCKS_NOT_RUN)]


def execute(block: documented.Block, names: dict) -> None:
    exec(compile(block.text, block.page, "exec"), names)


@pytest.mark.slow
@pytest.mark.usefixtures("no_java")
@pytest.mark.parametrize("line", RUN)
def test_a_documented_command_runs(line, inside):
    ((module, arguments),) = documented.ours(line)
    commands.run_here(module, *joined(arguments, RUN[line].split()))


def joined(arguments: list[str], more: list[str]) -> list[str]:
    """The arguments, and more of them; keys of --params_override are put together."""
    flag = "--params_override="
    keys = [a.removeprefix(flag) for a in (*arguments, *more) if a.startswith(flag)]
    rest = [a for a in (*arguments, *more) if not a.startswith(flag)]
    return [*rest, f"{flag}{','.join(keys)}"] if keys else rest


@pytest.mark.slow
@pytest.mark.usefixtures("no_java", "inside")
@pytest.mark.parametrize("page", sorted({b.page for b in runnable()}))
def test_python_blocks_of_a_page_run(page):
    names = {}
    for block in runnable():
        if block.page == page:
            execute(block, names)
