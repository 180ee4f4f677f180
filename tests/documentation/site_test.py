"""The site is built without a warning, holds the reference, and fits screens of all sizes."""

import os
import pathlib

import pytest
from helpers import forks
from helpers.browser import start

ROOT = pathlib.Path(__file__).parents[2]

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    folder = tmp_path_factory.mktemp("site")
    command = ["-m", "sphinx", "-q", "-W", "--keep-going", "-d", folder / "trees"]
    # Every page lists the contents of all pages. Without functions and classes that is quicker.
    command += ["-D", "toc_object_entries=0"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = forks.run([*command, "docs", folder / "html"], ROOT, env=environment)
    assert done.returncode == 0, done.stderr
    return folder / "html"


@pytest.fixture(scope="module")
def browser():
    yield from start()


def test_the_site_has_the_reference_and_the_definitions(site):
    page = (site / "api" / "models.html").read_text(encoding="utf-8")
    assert "tfcap.models.xlan.XLAN" in page and "number of layers; with 0" in page
    definitions = (site / "systems.html").read_text(encoding="utf-8")
    assert 'id="68-consensus-reranking"' in definitions


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
