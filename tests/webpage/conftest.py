"""The page over one small model, with its data, a folder of pictures, and a real server."""

import os
import shutil

import pytest
from helpers.webpages import serving

import tfcap
from tfcap import webpage
from tfcap.data.prepared import PreparedData


@pytest.fixture(scope="package")
def pictures(shapes):
    """Paths of five pictures of the data."""
    data = PreparedData.load(shapes)
    return [os.path.join(data.images, name) for name in list(data.file_names("val").values())[:5]]


@pytest.fixture(scope="package")
def folder(pictures, tmp_path_factory):
    """A folder with three pictures and a broken one."""
    directory = tmp_path_factory.mktemp("folder") / "holiday"
    directory.mkdir()
    for path in pictures[:3]:
        shutil.copy(path, directory)
    (directory / "a_broken.png").write_bytes(b"no picture")
    return str(directory)


@pytest.fixture(scope="package")
def training(captioner, shapes, tmp_path_factory):
    copy = tmp_path_factory.mktemp("data") / "shapes"  # an index is written beside it
    return webpage.Training(captioner, shutil.copytree(shapes, copy))


@pytest.fixture(scope="package")
def models(captioner, trained, exported):
    return {
        "captions": webpage.Model("mine", captioner, [trained]),
        "beside": webpage.Model("served", tfcap.load(exported), [exported]),
    }


@pytest.fixture(scope="package")
def application(models, training, captioner, folder):
    """All parts of the page, and two models."""
    return webpage.Application(models, training, webpage.Folder(captioner, folder))


@pytest.fixture(scope="package")
def site(application):
    with serving(application) as found:
        yield found
