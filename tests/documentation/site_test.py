"""The site is built without a warning, holds the reference, and fits screens of all sizes."""

import os
import pathlib
import re

import pytest
from helpers import forks
from helpers.browser import start

ROOT = pathlib.Path(__file__).parents[2]

pytestmark = pytest.mark.slow


def build(*arguments: str | os.PathLike) -> list[str]:
    """Runs Sphinx, and returns its warnings."""
    command = ["-m", "sphinx", "-q", "--keep-going"]
    # Every page lists the contents of all pages. Without functions and classes that is quicker.
    # Types of arguments and typographic quotes took a quarter of the build, and never a warning.
    for option in ("toc_object_entries=0", "smartquotes=0", "autodoc_typehints=none"):
        command += ["-D", option]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = forks.run([*command, *arguments], ROOT, env=environment)
    assert done.returncode == 0, done.stderr
    return [line for line in done.stderr.splitlines() if re.search("WARNING|ERROR|CRITICAL", line)]


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The pages but for most of the reference, of which all is read and all links are followed."""
    folder = tmp_path_factory.mktemp("site")
    trees = ["-d", folder / "trees", "docs"]
    assert not build("-b", "dummy", *trees, folder / "nothing")
    reference = [ROOT / "docs" / "api" / f"{name}.md" for name in ("layers", "models")]
    pages = [*sorted(ROOT.glob("docs/*.md")), *reference]
    warnings = build(*trees, folder / "html", *pages)
    assert not [line for line in warnings if "search index couldn't be loaded" not in line]
    return folder / "html"


@pytest.fixture(scope="module")
def browser():
    yield from start()


def test_the_site_has_the_reference_and_the_definitions(site):
    page = (site / "api" / "models.html").read_text(encoding="utf-8")
    assert "tfcap.models.xlan.XLAN" in page and "number of layers; with 0" in page
    page = (site / "api" / "layers.html").read_text(encoding="utf-8")
    text = re.sub(r"<[^>]+>", "", page)
    assert "XLinearAttention(width, heads=8, middle=None, " in text and "(*args" not in text
    definitions = (site / "systems.html").read_text(encoding="utf-8")
    # The older generator, which Python 3.10 installs, leaves the number out.
    assert re.search(r'id="(68-)?consensus-reranking"', definitions)


def test_the_notebooks_show_a_model_that_has_learned(site):
    texts = []
    for page in ("train", "caption"):
        html = (site / f"notebook_{page}.html").read_text(encoding="utf-8")
        assert html.count('src="data:image/png') == 1
        texts.append(re.sub("<[^>]*>", "", html))
    [caption] = re.findall("^caption: {4}(.*)$", texts[0], re.M)
    assert len(caption.split()) > 4
    [score] = re.findall("^CIDEr +(.*)$", texts[0], re.M)
    assert float(score) > 50  # 77 on the machine where it was written; empty captions have 0
    assert len(re.findall(r"^test_\d+.png: \w+ \w+ ", texts[1], re.M)) == 3
    assert "failed: missing.jpg: there is no such file" in texts[1]


@pytest.mark.parametrize("page", ["index", "train", "recipes", "configuration", "api/models"])
def test_a_page_fits_a_telephone(site, browser, page):
    """Only tables, code and figures scroll sideways, each in its own box."""
    screen = {"width": 390, "height": 844, "deviceScaleFactor": 1, "mobile": True}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", screen)
    browser.get((site / f"{page}.html").as_uri())
    assert browser.execute_script("return document.documentElement.scrollWidth") == 390
    assert browser.execute_script("return document.querySelector('h1').textContent")


def test_the_colours_follow_the_system(site, browser):
    brightness = []
    for scheme in ("light", "dark"):
        media = {"features": [{"name": "prefers-color-scheme", "value": scheme}]}
        browser.execute_cdp_cmd("Emulation.setEmulatedMedia", media)
        browser.get((site / "index.html").as_uri())
        script = "return getComputedStyle(document.body).backgroundColor.match(/\\d+/g).map(Number)"
        brightness.append(sum(browser.execute_script(script)[:3]))
    assert brightness[0] > 700 and brightness[1] < 100
