"""Documents and code point to things that exist: sections, files, anchors, explained guesses."""

import pathlib
import re

import pytest

ROOT = pathlib.Path(__file__).parents[1]
SYSTEMS = ROOT / "docs" / "systems.md"
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
SOURCES = sorted(
    path
    for folder in ("tfcap", "export", "tests", "experiments")
    for path in (ROOT / folder).rglob("*")
    if path.suffix in (".py", ".yaml") and path != pathlib.Path(__file__)
)
# "docs/systems.md 4.1, 4.2 and 4.6", also over the end of a line of a comment.
_NUMBER = r"\d+(?:\.\d+)?"
REFERENCE = re.compile(
    rf"docs/systems\.md[\s#]+({_NUMBER}(?:(?:,| and| to|, and)[\s#]+{_NUMBER})*)"
)
BARE = re.compile(r"(?<!docs/)(?<!\]\()\bsystems(?:\.md)?,?[\s#]+§?\d+\.\d")


def text(path: pathlib.Path) -> str:
    """The content of a file."""
    return path.read_text(encoding="utf-8")


def name(path: pathlib.Path) -> str:
    """A path relative to the repository."""
    return path.relative_to(ROOT).as_posix()


def headings(page: str) -> list[str]:
    """The headings of a page, without those inside of code."""
    page = re.sub(r"^```.*?^```", "", page, flags=re.M | re.S)
    return re.findall(r"^#+ +(.+?) *$", page, flags=re.M)


def anchor(heading: str) -> str:
    """The anchor that GitHub gives a heading."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def sections(page: str) -> set[str]:
    """The numbers of the sections of a page: "6" and "6.5"."""
    return {number[1] for h in headings(page) if (number := re.match(rf"({_NUMBER})\.? ", h))}


def references(content: str) -> set[str]:
    """The sections of docs/systems.md that `content` refers to."""
    return {n for found in REFERENCE.findall(content) for n in re.findall(_NUMBER, found)}


def test_every_reference_to_the_definitions_leads_to_a_section():
    known = sections(text(SYSTEMS))
    assert len(known) > 60
    lost = {name(path): references(text(path)) - known for path in [*SOURCES, *PAGES]}
    assert not {path: numbers for path, numbers in lost.items() if numbers}


def test_references_in_lists_and_over_line_ends_are_found():
    assert references("see docs/systems.md 5.2 to 5.5, 7.3). Then 9.9") == {"5.2", "5.5", "7.3"}
    assert references("(docs/systems.md\n    # 4.2): and docs/systems.md 14") == {"4.2", "14"}
    assert references("docs/systems.md 2.5, of 8 heads") == {"2.5"}


def test_the_page_of_definitions_refers_to_its_own_sections():
    page = text(SYSTEMS)
    found = re.findall(r"\s\(((?:[1-9]\d?\.\d{1,2})(?:, [1-9]\d?\.\d{1,2})*)\)", page)
    assert len(found) > 20
    assert {n for group in found for n in group.split(", ")} <= sections(page)


def test_no_reference_lacks_the_name_of_the_page():
    assert BARE.findall("(systems 6.5)") and not BARE.findall("docs/systems.md 6.5")
    bare = {name(path): BARE.findall(text(path)) for path in [*SOURCES, *PAGES]}
    assert not {path: found for path, found in bare.items() if found}


def test_every_guess_is_listed_where_guesses_are_explained():
    page = text(SYSTEMS)
    [heading] = [h for h in headings(page) if "[GUESS]" in h]
    listed = page.partition(heading)[2].partition("\n### ")[0]
    listed = {link.removeprefix("../") for link in re.findall(r"\]\((\S+?)\)", listed)}
    assert listed == {name(path) for path in SOURCES if "[GUESS" in text(path)}


def links(page: pathlib.Path) -> list[str]:
    """The relative links of a page, pictures included."""
    content = re.sub(r"^```.*?^```", "", text(page), flags=re.M | re.S)
    found = re.findall(r"\]\(([^)\s]+)\)", content)
    found += re.findall(r'(?:src|srcset|href)="([^"]+)"', content)
    return [link for link in found if not re.match(r"[a-z]+:", link)]


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_every_link_leads_to_a_file_and_a_heading(page):
    for link in links(page):
        path, _, fragment = link.partition("#")
        target = page.parent / path if path else page
        assert target.exists(), link
        if fragment:
            assert fragment in map(anchor, headings(text(target))), link


def expand(pattern: str) -> list[str]:
    """`a{b,c}` as `ab` and `ac`."""
    braces = re.search(r"\{([^{}]*)\}", pattern)
    if not braces:
        return [pattern]
    choices = braces[1].split(",")
    return [p for c in choices for p in expand(pattern.replace(braces[0], c, 1))]


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_every_path_in_a_page_exists(page):
    found = re.findall(r"`((?:tfcap|tests|experiments|docs)/[\w./{},*-]*)`", text(page))
    lost = [path for pattern in found for path in expand(pattern) if not any(ROOT.glob(path))]
    assert not lost


def test_recipes_name_recipes_that_exist():
    recipes = {path.name for path in SOURCES if path.suffix == ".yaml"}
    lost = {
        name(path): names
        for path in SOURCES
        if path.suffix == ".yaml"
        and (names := set(re.findall(r"\b\w+_(?:xe|scst)\.yaml", text(path))) - recipes)
    }
    assert not lost
