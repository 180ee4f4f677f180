"""Commands of README.md and of the pages: their flags, keys and files exist."""

import importlib
import pathlib
import re
import shlex

import pytest
from helpers import commands

import tfcap
from tfcap import configs
from tfcap.training.stages import resolve_stages

ROOT = pathlib.Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
BLOCK = re.compile(r"^```(bash|python)\n(.*?)^```$", re.M | re.S)
COMMAND = re.compile(r"(?:\S*python -m tfcap\.|(?:\S*/)?tfcap )(\w+)")
# Stand-ins for what a page leaves to the reader.
ANY = {"SYSTEM": "xlan", "mygru": "xlan", "...": "x", " N": " 5"}


def page_commands(text):
    """The commands of the bash blocks of a page, and those in its sentences."""
    blocks = [code for kind, code in BLOCK.findall(text) if kind == "bash"]
    joined = re.sub(r"\s*\\\n\s*", " ", "\n".join(blocks))
    lines = re.split(r"\n|&&|\|", joined)
    lines += re.findall(r"`((?:python -m tfcap\.|tfcap )\w+ [^`]+)`", BLOCK.sub("", text))
    return [line.strip() for line in lines if re.match(rf"\s*({COMMAND.pattern}|tools/)", line)]


def check(line):
    """Raises an error if a command has a flag, key, experiment or recipe that does not exist."""
    for name, value in ANY.items():
        line = line.replace(name, value)
    if line.startswith("tools/"):
        assert (ROOT / line.split()[0]).exists(), line
        return
    command = COMMAND.match(line)
    arguments = shlex.split(line[command.end() :], comments=True)
    if arguments and arguments[-1].startswith("--") and "=" not in arguments[-1]:
        arguments.append("x")  # a sentence that names a flag leaves its value out
    values = commands.parse(importlib.import_module(f"tfcap.{command[1]}"), *arguments)
    if "config_file" in values and values.experiment:
        configs.resolve(values.experiment, values.config_file, values.params_override)
    if "then" in values and values.then:
        first = values.experiment, "", values.config_file, values.params_override
        later = values.then, values.then_config_file, values.then_override
        resolve_stages("train_and_eval", first, *later)
    if "decoding" in values and values.decoding != "x":
        configs.decoding(configs.resolve("xlan").task, values.decoding)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_command_of_a_page_parses_and_its_python_compiles(page, monkeypatch):
    monkeypatch.chdir(ROOT)
    text = page.read_text(encoding="utf-8")
    for line in page_commands(text):
        check(line)
    for kind, code in BLOCK.findall(text):
        if kind == "python":
            compile(code, page.name, "exec")


def test_the_readme_is_short():
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) <= 120


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_the_links_of_a_page_lead_to_files(page):
    text = BLOCK.sub("", page.read_text(encoding="utf-8"))
    for link in re.findall(r"\]\((?!https?:|#)([^)#\s]+)", text):
        assert (page.parent / link.replace("\\", "")).exists(), link


@pytest.mark.parametrize(
    "name", ["data_sets", "published", "recipes", "results", "retrieve", "speed", "train"]
)
def test_the_tables_of_a_page_are_those_of_their_sources(name, monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "docs")
    text = (ROOT / "docs" / f"{name}.md").read_text(encoding="utf-8")
    assert "<!-- table " in text
    assert importlib.import_module("tables").fill(text) == text, "run: python docs/tables.py"


def test_the_first_minute_shows_what_its_command_prints(monkeypatch):
    monkeypatch.chdir(ROOT)
    monkeypatch.syspath_prepend(ROOT / "docs")
    first_minute = importlib.import_module("first_minute")
    photo = str(first_minute.PHOTO.relative_to(ROOT))
    caption = tfcap.load()(photo)
    printed = commands.run_command("tfcap.caption", photo).stdout
    assert printed == f"{photo}\t{caption.text}\n"
    for page in first_minute.PAGES:
        text = page.read_text(encoding="utf-8")
        assert f"\n.venv/bin/tfcap caption {photo}\n" in text
        assert text.count("<!-- caption -->") == 1
        assert first_minute.fill(text, caption) == text, "run: python docs/first_minute.py"
