"""The archive for COCO's server holds every image exactly once, or it is refused."""

import json
import pathlib
import shutil
import zipfile

import pytest

from tfcap import files
from tfcap.metrics import results, submission
from tfcap.metrics.submission import TEST, VAL

WANTED = {VAL: [42, 73, 74], TEST: [1, 14]}


def write_files(folder, val=(42, 73, 74), test=(1, 14)):
    for split, ids in ((VAL, val), (TEST, test)):
        entries = [{"image_id": image, "caption": f"a café {image}"} for image in ids]
        (folder / submission.result_name(split, "mine")).write_text(json.dumps(entries))


def test_the_archive_holds_the_two_official_files(tmp_path):
    write_files(tmp_path)
    path = pathlib.Path(submission.pack(tmp_path, "mine", WANTED))
    assert path == tmp_path / "captions_mine_results.zip"
    with zipfile.ZipFile(path) as archive:
        assert archive.testzip() is None
        assert sorted(archive.namelist()) == [
            "captions_test2014_mine_results.json",
            "captions_val2014_mine_results.json",
        ]
        entries = json.loads(archive.read("captions_test2014_mine_results.json"))
    assert entries == [
        {"image_id": 1, "caption": "a café 1"},
        {"image_id": 14, "caption": "a café 14"},
    ]
    before = path.read_bytes()
    submission.pack(tmp_path, "mine", WANTED)
    assert path.read_bytes() == before
    found = submission.check_archive(path, "mine", WANTED)
    assert found[VAL] == {image: f"a café {image}" for image in WANTED[VAL]}


def test_an_archive_can_be_on_an_object_store(tmp_path):
    write_files(tmp_path)
    remote = "ram://submission/mine"
    files.make_directory(remote)
    for path in tmp_path.glob("*.json"):
        with files.replacing(f"{remote}/{path.name}") as local:
            shutil.copy(path, local)
    path = submission.pack(remote, "mine", WANTED)
    assert path == f"{remote}/captions_mine_results.zip"
    written = files.read_bytes(path)
    assert written == pathlib.Path(submission.pack(tmp_path, "mine", WANTED)).read_bytes()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"val": (42, 73)},
            "must have all 3 images of captions_val2014.json. Received: no image 74",
        ),
        (
            {"test": ()},
            "must have all 2 images of image_info_test2014.json. Received: no images 1, 14",
        ),
        ({"val": (42, 73, 74, 5)}, "must have the images of captions_val2014.json only. .*image 5"),
        ({"test": (1, 14, 1)}, "Received: more than one caption for image 1"),
    ],
)
def test_no_archive_appears_unless_every_image_is_there_once(tmp_path, changes, message):
    write_files(tmp_path, **changes)
    with pytest.raises(ValueError, match=message):
        submission.pack(tmp_path, "mine", WANTED)
    assert not list(tmp_path.glob("*.zip")) and not list(tmp_path.glob(".tmp*"))


def test_a_failed_archive_leaves_the_one_before(tmp_path):
    write_files(tmp_path)
    before = pathlib.Path(submission.pack(tmp_path, "mine", WANTED)).read_bytes()
    write_files(tmp_path, test=(1,))
    with pytest.raises(ValueError, match="no image 14"):
        submission.pack(tmp_path, "mine", WANTED)
    assert (tmp_path / "captions_mine_results.zip").read_bytes() == before


def test_other_archives_are_refused(tmp_path):
    path = tmp_path / "captions_mine_results.zip"
    path.write_bytes(b"PK nothing")
    with pytest.raises(ValueError, match="must be a submission of mine. Received: .*not a zip"):
        submission.check_archive(path, "mine", WANTED)
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("captions_val2014_mine_results.json", "[]")
    with pytest.raises(ValueError, match="Received: the files .* instead of"):
        submission.check_archive(path, "mine", WANTED)
    with zipfile.ZipFile(path, "w") as archive:
        for split in WANTED:
            archive.writestr(submission.result_name(split, "mine"), "{not json")
    with pytest.raises(ValueError, match="val2014_mine_results.json must be JSON"):
        submission.check_archive(path, "mine", WANTED)


def test_the_lists_of_images_are_those_of_coco_with_and_without_captions(tmp_path):
    """image_info_test2014.json has "images" and no "annotations"."""
    path = tmp_path / "image_info_test2014.json"
    images = [{"id": 1, "file_name": "COCO_test2014_000000000001.jpg", "height": 2, "width": 3}]
    path.write_text(json.dumps({"info": {}, "images": images, "categories": []}))
    assert submission.read_image_ids(path) == [1]
    assert submission.list_of_images(TEST, [tmp_path / "none", tmp_path]) == str(path)
    with pytest.raises(ValueError, match="Received: none in . and annotations. .*--val_images"):
        submission.list_of_images(VAL)
    for content, message in (
        ({"images": images * 2}, "must hold every id once. Received: 1 twice"),
        ({"images": []}, "of at least one"),
        ({"images": [{"id": "1"}]}, '"id" must be a whole number'),
        ([1], "of at least one. Received: a list of 1"),
    ):
        path.write_text(json.dumps(content))
        with pytest.raises(ValueError, match=message):
            submission.read_image_ids(path)


@pytest.mark.parametrize("name", ["", "a/b", "../a", "a b", ".a", "x" * 101])
def test_a_name_that_cannot_be_part_of_a_file_name_is_refused(name):
    with pytest.raises(ValueError, match="--name must be 1 to 100 letters"):
        submission.algorithm_name(name)


def test_the_sets_c5_and_c40_stay():
    references = {1: [str(n) for n in range(40)]}
    assert len(results.reference_set(references, "c5")[1]) == 5
    assert len(results.reference_set(references, "c40")[1]) == 40
