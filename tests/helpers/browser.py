"""A real browser for pages: Debian's chromium, without a window."""

import os
import shutil
from collections.abc import Iterator

import pytest

NEEDED = (
    "the browser test needs: sudo apt-get install -y --no-install-recommends chromium "
    "chromium-driver && pip install selenium"
)


def start(*more: str) -> Iterator:
    """Yields a selenium driver and ends the browser; skips the test where there is none.

    Args:
      more: further arguments of the browser.
    """
    webdriver = pytest.importorskip("selenium.webdriver", reason=NEEDED)
    from selenium.webdriver.chrome.service import Service

    paths = [shutil.which("chromium"), shutil.which("chromedriver")]
    # A chromium from a snap cannot read the temporary files.
    if None in paths or any("/snap/" in os.path.realpath(path) for path in paths):
        pytest.skip(NEEDED)
    options = webdriver.ChromeOptions()
    options.binary_location = paths[0]
    for argument in ("--headless=new", "--disable-dev-shm-usage", "--hide-scrollbars", *more):
        options.add_argument(argument)
    if hasattr(os, "geteuid") and os.geteuid() == 0:
        options.add_argument("--no-sandbox")  # chromium refuses to run as root with it
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = webdriver.Chrome(options=options, service=Service(executable_path=paths[1]))
    yield driver
    driver.quit()
