"""The pages say what the code says: tables, error messages, modules of the API reference."""

import ast
import pathlib
import re

import pytest
from helpers import documented
from helpers import recipes as headers

from tfcap import configs, recipes

ROOT = pathlib.Path(__file__).parents[2]
DOCS = ROOT / "docs"


@pytest.mark.parametrize("page", ["configuration.md", "recipes.md", "published.md", "truth.md"])
def test_tables_are_those_of_the_code_and_the_recipes(page):
    text = (DOCS / page).read_text(encoding="utf-8")
    assert documented.program("tables").fill(text) == text, "run: python docs/tables.py"


def test_every_system_has_a_row_in_the_table_of_systems():
    assert {row[0] for row in documented.program("tables").SYSTEMS} == set(configs.SYSTEMS)


def test_every_configuration_key_is_explained():
    tables = documented.program("tables")
    rows = [line for line in tables.keys().splitlines() if line.startswith("| `")]
    assert len(rows) > 150
    assert not [row for row in rows if "|  |" in row]


@pytest.mark.parametrize("name", recipes.names())
def test_the_page_on_recipes_reads_a_whole_header(name):
    read = documented.program("tables").header(ROOT / headers.named(name.removesuffix(".yaml")))
    expected = headers.header(headers.named(name.removesuffix(".yaml"))).fields["Expected"]
    assert read["Expected"].split() == expected.split()


def literals() -> list[str]:
    """All text constants of the package; the values of an f-string are left out."""
    found = []
    for path in (ROOT / "tfcap").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.JoinedStr):
                parts = [p.value if isinstance(p, ast.Constant) else "\0" for p in node.values]
                found.append("".join(parts))
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                found.append(node.value)
    return found


def occurs(message: str, texts: list[str]) -> bool:
    """Whether a text has the message, in which `...` stands for any value."""
    pattern = ".*".join(re.escape(part.strip()) for part in message.split("..."))
    return any(re.search(pattern, text, re.S) for text in texts)


def test_every_message_of_troubleshooting_is_one_of_the_code():
    page = (DOCS / "troubleshooting.md").read_text(encoding="utf-8")
    messages = re.findall(r"^### `(.+)`$", page, re.M)
    assert len(messages) > 10
    texts = literals()
    assert not [message for message in messages if not occurs(message, texts)]


def test_every_package_has_a_page_in_the_reference_and_a_line_in_the_page_on_the_code():
    packages = {path.parent.name for path in ROOT.glob("tfcap/*/__init__.py")}
    text = "".join(page.read_text(encoding="utf-8") for page in (DOCS / "api").glob("*.md"))
    assert packages <= set(re.findall(r"<!-- modules tfcap\.(\w+)(?:\.\*)? -->", text))
    assert packages <= set(re.findall(r"`tfcap/(\w+)/", (DOCS / "code.md").read_text("utf-8")))


def lost(config, name: str) -> bool:
    """Whether a configuration lacks a key such as `task.model.xlan.width`."""
    for part in name.split("."):
        if not hasattr(config, part):
            return True
        config = getattr(config, part)
    return False


def test_every_key_in_the_text_of_a_page_exists():
    config = configs.resolve("xlan")
    names = [
        name
        for page in documented.pages()
        for span in re.findall(r"`([^`\n]+)`", page.read_text(encoding="utf-8"))
        for name in re.findall(r"(?<![\w/.])(?:task|trainer|runtime)(?:\.[a-z]\w*)+", span)
    ]
    assert len(names) > 40 and lost(config, "task.sead")
    assert not sorted({name for name in names if lost(config, name)})


def test_the_index_lists_every_page():
    trees = [DOCS / "index.md", DOCS / "api" / "index.md"]
    listed = {
        (tree.parent / name).resolve()
        for tree in trees
        for block in re.findall(r"^```\{toctree\}\n(.*?)^```", tree.read_text(), re.M | re.S)
        for name in block.split()
        if not name.startswith(":") and (tree.parent / f"{name}.md").exists()
    }
    pages = {page.with_suffix("").resolve() for page in DOCS.rglob("*.md")}
    assert pages - listed == {(DOCS / "index").resolve()}


def test_the_front_page_is_short():
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) <= 150
