"""What the tests of serving share: a bundle, its versions behind the session loader, pictures."""

import json
import os
import pathlib

import pytest
from helpers import captions, commands
from helpers.model_versions import ModelVersions
from PIL import Image

from tfcap import export as command
from tfcap import runs
from tfcap.data.prepared import PreparedData


@pytest.fixture(scope="session")
def versions(bundle):
    """The versions of `models.config` behind the session loader, warmed up."""
    served = ModelVersions(bundle / "models.config", bundle)
    yield served
    served.close()


@pytest.fixture(scope="session")
def pictures(shapes, tmp_path_factory):
    """Paths of five pictures: four PNG files and a JPEG file."""
    data = PreparedData.load(shapes)
    paths = [os.path.join(data.images, name) for name in list(data.file_names("val").values())[:5]]
    jpeg = str(tmp_path_factory.mktemp("pictures") / "scene.jpg")
    Image.open(paths.pop()).convert("RGB").save(jpeg, quality=90)
    return [*paths, jpeg]


@pytest.fixture(scope="session")
def expected(captioner, pictures):
    """(captions [K], scores [K]) of the pictures, as tfcap.caption finds them."""
    found = captions.every(captioner, pictures)
    return [(texts, scores) for _, texts, scores in found]


def _bytes(path):
    with open(path, "rb") as file:
        return file.read()


@pytest.fixture(scope="session")
def broken(pictures):
    """Contents that are no pictures, by what is wrong with them."""
    content = _bytes(pictures[0])
    return {"empty": b"", "text": b"no picture", "cut": content[: len(content) // 2]}


@pytest.fixture(scope="session")
def same(expected):
    """Compares a result of the client with those of tfcap.caption, by the number of its picture."""

    def compare(result, number):
        texts, scores = expected[number]
        assert result.status == "ok" and result.captions == tuple(texts)
        assert result.scores == pytest.approx(scores, abs=1e-4)
        assert (result.caption, result.score) == (result.captions[0], result.scores[0])

    return compare


@pytest.fixture(scope="session")
def files_of_data(shapes, tmp_path_factory):
    """A folder of three pictures, captions as `evaluate --output` writes them, and references."""
    data, folder = PreparedData.load(shapes), tmp_path_factory.mktemp("given")
    (folder / "pictures").mkdir()
    for name in list(data.file_names("val").values())[:3]:
        os.symlink(os.path.join(data.images, name), folder / "pictures" / name)
    texts_of = [{"image_id": i, "caption": texts[0]} for i, texts in data.references("val").items()]
    (folder / "results.json").write_text(json.dumps(texts_of))
    return folder / "pictures", folder / "results.json", f"{shapes}/references_val.json"


@pytest.fixture(scope="session")
def run_and_server(trained):
    """A finished run and its server."""
    run = runs.load(trained)
    return run, runs.server(run)


@pytest.fixture(scope="session")
def bundle(trained, files_of_data, made_once):
    """The directory of a bundle with one version that the command wrote; do not change it."""
    pytest.importorskip("tensorflow_serving")
    pictures, results, references = map(str, files_of_data)
    flags = ("--model_dir", trained, "--bundle", "--max_pixels=3000000")
    flags += ("--warmup_images", pictures, "--results", results, "--references", references)

    def fill(folder):
        commands.run_here(command, *flags, "--export_dir", folder)

    return pathlib.Path(made_once("bundle", fill))
