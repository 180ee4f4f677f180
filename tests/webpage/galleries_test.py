"""Training pictures like a picture, and pictures for a text, are found and shown by number."""

import io
import json
import os
import pathlib
import shutil

import pytest
from PIL import Image

from tfcap import webpage
from tfcap.files import file_sha256
from tfcap.webpage import galleries
from tfcap.webpage.refused import Refused

pytestmark = pytest.mark.slow


def test_the_nearest_training_pictures_have_captions_and_addresses(training):
    path = training.files[9]
    found = training.nearest(pathlib.Path(path).read_bytes())
    assert len(found) == galleries.TOP and training.label == "64 training pictures"
    assert found[0]["name"] == os.path.basename(path)
    assert found[0]["picture"] == "/pictures/train/9" and len(found[0]["captions"]) == 5
    assert 1.001 > found[0]["similarity"] > 0.999 > found[1]["similarity"]
    with pytest.raises(Refused, match="must be JPEG") as refused:
        training.nearest(b"no picture")
    assert refused.value.status == 422


def test_a_name_that_leaves_the_directory_is_never_served(captioner, shapes, pictures, tmp_path):
    """The names stand in a file of the data, which may be of a stranger."""
    folder = shutil.copytree(shapes, tmp_path / "data")
    path = folder / "references_train.json"
    content = json.loads(path.read_text())
    content["images"][0]["file_name"] = pictures[0]  # a picture with an absolute path
    path.write_text(json.dumps(content))
    fingerprint = json.loads((folder / "dataset.json").read_text())
    fingerprint["splits"]["train"]["references_sha256"] = file_sha256(path)
    (folder / "dataset.json").write_text(json.dumps(fingerprint))
    gallery = webpage.Training(captioner, str(folder))
    assert gallery.files[0] is None and gallery.files[1]
    assert galleries.file(gallery, 0) is None and galleries.thumbnail(gallery, 0) is None
    found = gallery.nearest(pathlib.Path(pictures[0]).read_bytes())
    assert all(one["picture"] != "/pictures/train/0" for one in found)


def test_a_text_finds_training_pictures(training, captioner):
    answer = galleries.search(training, "a red circle")
    scores = [one["score"] for one in answer["found"]]
    assert scores == sorted(scores, reverse=True) and len(scores) == galleries.TOP
    path = training.files[int(answer["found"][0]["picture"].rpartition("/")[2])]
    assert captioner.score(path, "a red circle")[0, 0] == pytest.approx(scores[0], abs=0.02)


def test_a_text_finds_pictures_of_a_folder(captioner, folder, pictures):
    gallery = galleries.Folder(captioner, folder)
    assert gallery.label == "4 pictures of holiday" and list(gallery.files) == []
    assert galleries.thumbnail(gallery, 0) is None
    answer = galleries.search(gallery, "a red circle")
    wanted = captioner.search("a red circle", pictures[:3], top=3)
    names = [os.path.basename(match.source) for match in wanted]
    assert [one["name"] for one in answer["found"]] == names and answer["notes"] == []
    for one in answer["found"]:
        place = int(one["picture"].rpartition("/")[2])
        path = os.path.join(folder, one["name"])
        assert gallery.files[place] == path
        assert galleries.file(gallery, place) == pathlib.Path(path).read_bytes()
        with Image.open(io.BytesIO(galleries.thumbnail(gallery, place))) as small:
            assert small.format == "JPEG"
    assert "outside the vocabulary" in galleries.search(gallery, "a zebra")["notes"][0]
    assert galleries.thumbnail(gallery, 3) is galleries.file(gallery, 3) is None


@pytest.mark.parametrize("text", [None, 3, "", "  ", "a" * 501])
def test_a_text_that_is_none_is_refused(training, text):
    with pytest.raises(Refused, match="text must be a sentence of 1 to 500 characters"):
        galleries.search(training, text)


def test_words_that_the_model_does_not_know_are_refused(training):
    with pytest.raises(Refused, match="must have a word that the model knows") as refused:
        galleries.search(training, "zebras")
    assert refused.value.status == 400


def test_folders_that_cannot_be_searched_are_refused(
    captioner, models, folder, tmp_path, monkeypatch
):
    with pytest.raises(ValueError, match="--images must be a directory"):
        galleries.Folder(captioner, str(tmp_path / "nowhere"))
    with pytest.raises(ValueError, match="--images must hold pictures"):
        galleries.Folder(captioner, str(tmp_path))
    with pytest.raises(ValueError, match="An exported SavedModel only captions pictures"):
        galleries.Folder(models["beside"].captioner, folder)
    monkeypatch.setattr(galleries, "_MOST", 3)
    assert galleries.Folder(captioner, folder).label == "3 pictures of holiday (the first of 4)"
