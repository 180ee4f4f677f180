"""What the tests of the doctor share: prepared directories to be damaged, and their findings."""

import shutil

import pytest
from helpers.prepared import write_directory


@pytest.fixture(scope="module")
def original(tmp_path_factory):
    """A prepared directory of seven images; do not change it."""
    folder = tmp_path_factory.mktemp("prepared")
    write_directory(str(folder))
    return folder


@pytest.fixture
def folder(original, tmp_path):
    """A copy of it to be damaged."""
    return shutil.copytree(original, tmp_path / "data")
