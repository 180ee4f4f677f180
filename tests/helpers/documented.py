"""The blocks of code of README.md and docs/, and the commands in them."""

import dataclasses
import importlib
import pathlib
import re
import shlex
import sys
from types import ModuleType

ROOT = pathlib.Path(__file__).parents[2]
FENCE = re.compile(r"^```(bash|python)\n(.*?)^```$", re.M | re.S)
COMMAND = re.compile(r"^(?:\S*python -m tfcap\.|tfcap )(\w+)")


@dataclasses.dataclass(frozen=True)
class Block:
    """A block of code.

    Attributes:
      page: the file, relative to the repository.
      language: `bash` or `python`.
      text: the code.
    """

    page: str
    language: str
    text: str


def program(name: str) -> ModuleType:
    """A program of docs/, which is no package."""
    folder = str(ROOT / "docs")
    if folder not in sys.path:
        sys.path.insert(0, folder)
    return importlib.import_module(name)


def pages() -> list[pathlib.Path]:
    """README.md and every page of the site."""
    return [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def blocks(language: str) -> list[Block]:
    """All blocks of a language, in the order of the pages."""
    found = []
    for page in pages():
        for block in FENCE.findall(page.read_text(encoding="utf-8")):
            if block[0] == language:
                found.append(Block(page.relative_to(ROOT).as_posix(), *block))
    return found


def lines(text: str) -> list[str]:
    """The command lines of a bash block: joined where a line ends in a backslash or a bar."""
    text = re.sub(r"\s*\\\n\s*", " ", text)
    text = re.sub(r"\|\n\s*", "| ", text)
    return [line.strip() for line in text.splitlines() if line.strip()]


def command_lines() -> dict[str, str]:
    """Every command line of every bash block, and a page that has it."""
    return {line: block.page for block in blocks("bash") for line in lines(block.text)}


def inline_commands() -> dict[str, str]:
    """Every command of this package in the text of a page, and a page that has it."""
    found = {}
    for page in pages():
        text = FENCE.sub("", page.read_text(encoding="utf-8"))
        for line in re.findall(r"`((?:python -m tfcap\.|tfcap )\w+ [^`]+)`", text):
            found[line] = page.relative_to(ROOT).as_posix()
    return found


def ours(line: str) -> list[tuple[ModuleType, list[str]]]:
    """The commands of this package in a line: the module and the arguments of each."""
    found = []
    for part in re.split(r"\s(?:&&|\||;)\s", line):
        command = COMMAND.match(part)
        if command:
            arguments = shlex.split(part[command.end() :], comments=True)
            found.append((importlib.import_module(f"tfcap.{command[1]}"), arguments))
    return found
