"""The site is built without a warning, and holds the reference and the pages."""

import os
import pathlib
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).parents[2]


@pytest.mark.slow
def test_the_site_is_built_without_warnings(tmp_path):
    command = [sys.executable, "-m", "sphinx", "-q", "-W", "--keep-going", "-d", tmp_path / "trees"]
    environment = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3", "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [*command, "docs", tmp_path / "site"],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    page = (tmp_path / "site" / "api" / "models.html").read_text(encoding="utf-8")
    assert "tfcap.models.xlan.XLAN" in page and "number of layers; with 0" in page
    definitions = (tmp_path / "site" / "systems.html").read_text(encoding="utf-8")
    assert 'id="68-consensus-reranking"' in definitions
