"""What the tests of serving share: a bundle, and pictures with their captions."""

import pathlib

import pytest
from helpers import captions, commands

from tfcap import export as command


@pytest.fixture(scope="session")
def expected(captioner, pictures):
    """(captions [K], scores [K]) of the pictures, as tfcap.caption finds them."""
    return [(texts, scores) for _, texts, scores in captions.every(captioner, pictures)]


@pytest.fixture(scope="session")
def bundle(trained, made_once):
    """The directory of a bundle with one version that the command wrote; do not change it."""
    pytest.importorskip("tensorflow_serving")
    flags = ["--model_dir", trained, "--bundle", "--max_pixels=3000000"]

    def fill(folder):
        commands.run_here(command, *map(str, flags), "--export_dir", folder)

    return pathlib.Path(made_once("bundle", fill))
