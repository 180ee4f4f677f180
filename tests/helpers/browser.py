"""A real browser for pages: Debian's chromium, without a window."""

import io
import json
import os
import shutil
from collections.abc import Iterator

import numpy as np
import pytest
from PIL import Image

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


def resize(page, width, height, mobile=False):
    """Sets the size of the window in pixels; `mobile` has touch."""
    size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": mobile}
    page.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    page.execute_cdp_cmd("Emulation.setTouchEmulationEnabled", {"enabled": mobile})


def colours(page, scheme):
    """Sets the colours that the system asks for, `light` or `dark`."""
    media = {"features": [{"name": "prefers-color-scheme", "value": scheme}]}
    page.execute_cdp_cmd("Emulation.setEmulatedMedia", media)


def one(page, selector):
    return page.find_element("css selector", selector)


def all_of(page, selector):
    return page.find_elements("css selector", selector)


def requested(page):
    """The addresses that the page has asked for since the last call."""
    messages = [json.loads(entry["message"])["message"] for entry in page.get_log("performance")]
    sent = [m for m in messages if m["method"] == "Network.requestWillBeSent"]
    return [message["params"]["request"]["url"] for message in sent]


def brightness(page):
    """The mean of a screenshot, 0 to 255."""
    with Image.open(io.BytesIO(page.get_screenshot_as_png())) as image:
        return np.asarray(image.convert("L")).mean()
