"""What the tests of serving share: a bundle, and pictures with their captions."""

import json
import os
import pathlib

import pytest
from helpers import captions, commands

from tfcap import export as command
from tfcap.data.prepared import PreparedData


@pytest.fixture(scope="session")
def expected(captioner, pictures):
    """(captions [K], scores [K]) of the pictures, as tfcap.caption finds them."""
    return [(texts, scores) for _, texts, scores in captions.every(captioner, pictures)]


@pytest.fixture(scope="session")
def bundle(trained, shapes, tmp_path_factory, made_once):
    """The directory of a bundle with one version that the command wrote; do not change it."""
    pytest.importorskip("tensorflow_serving")
    data, given = PreparedData.load(shapes), tmp_path_factory.mktemp("given")
    (given / "pictures").mkdir()
    for name in list(data.file_names("val").values())[:3]:
        os.symlink(os.path.join(data.images, name), given / "pictures" / name)
    texts = [{"image_id": i, "caption": texts[0]} for i, texts in data.references("val").items()]
    (given / "results.json").write_text(json.dumps(texts))
    flags = ["--model_dir", trained, "--bundle", "--max_pixels=3000000"]
    flags += ["--warmup_images", given / "pictures", "--results", given / "results.json"]
    flags += ["--references", f"{shapes}/references_val.json"]

    def fill(folder):
        commands.run_here(command, *map(str, flags), "--export_dir", folder)

    return pathlib.Path(made_once("bundle", fill))
