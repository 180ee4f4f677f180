"""The page of the demo over one small model and its export, on a real server."""

import os

import pytest
from helpers.webpages import serving

import tfcap
from tfcap.data.prepared import PreparedData
from tfcap.visualize.demo import Model


@pytest.fixture(scope="package")
def pictures(shapes):
    """Paths of five pictures of the data."""
    data = PreparedData.load(shapes)
    return [os.path.join(data.images, name) for name in list(data.file_names("val").values())[:5]]


@pytest.fixture(scope="package")
def models(captioner, exported):
    return {"captions": Model("mine", captioner), "beside": Model("served", tfcap.load(exported))}


@pytest.fixture(scope="package")
def site(models):
    with serving(models) as found:
        yield found
