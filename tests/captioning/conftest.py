"""Pictures that cannot be read; and the page of the demo over one small model and its export."""

import os

import pytest
from helpers.webpages import serving
from PIL import Image

import tfcap
from tfcap.captioning.demo_page import Model


@pytest.fixture(scope="package")
def models(captioner, exported):
    return {"captions": Model("mine", captioner), "beside": Model("served", tfcap.load(exported))}


@pytest.fixture(scope="package")
def site(models):
    """The page on a real server."""
    with serving(models) as site:
        yield site


@pytest.fixture(scope="package")
def bad(pictures, tmp_path_factory):
    """Inputs that are no readable pictures, each with a part of the reason."""
    folder = tmp_path_factory.mktemp("bad")
    jpeg = folder / "cut.jpg"
    Image.open(pictures[0]).convert("RGB").resize((200, 200)).save(jpeg)
    os.truncate(jpeg, os.path.getsize(jpeg) // 2)
    text = folder / "text.png"
    text.write_text("no picture")
    (folder / "empty.png").touch()
    (folder / "nothing").mkdir()
    return [
        (str(jpeg), "a truncated or damaged JPEG file. Copy or download it again"),
        (str(text), "must be JPEG, PNG, BMP, GIF, WebP or TIFF"),
        (str(folder / "empty.png"), "the file is empty. Copy"),
        (str(folder / "missing.png"), "there is no such file"),
        (str(folder / "nothing"), "the directory holds no pictures"),
        (b"no picture", "must be JPEG, PNG, BMP, GIF, WebP or TIFF"),
        (7, "the type int"),
    ]
