"""The page of the demo over one small model and its export, on a real server."""

import pytest
from helpers.webpages import serving

import tfcap
from tfcap.captioning.demo_page import Model


@pytest.fixture(scope="package")
def models(captioner, exported):
    return {"captions": Model("mine", captioner), "beside": Model("served", tfcap.load(exported))}


@pytest.fixture(scope="package")
def site(models):
    with serving(models) as found:
        yield found
