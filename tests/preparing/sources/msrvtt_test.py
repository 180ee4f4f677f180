"""Reads the caption files of MSR-VTT."""

import copy
import json

import pytest

from tfcap.preparing.sources import Given, ImageEntry
from tfcap.preparing.sources.msrvtt import msrvtt, recognises


def video(number, split):
    return {
        "category": 9,
        "url": f"https://www.youtube.com/watch?v={number}",
        "video_id": f"video{number}",
        "start time": 137.72,
        "end time": 149.44,
        "split": split,
        "id": number,
    }


def sentence(number, caption, place):
    return {"caption": caption, "video_id": f"video{number}", "sen_id": place}


INFO = {"contributor": "a", "data_created": "2016-04-14 14:30:20", "version": "1.0"}
TRAIN = {
    "info": INFO,
    "videos": [video(0, "train"), video(7, "train"), video(6513, "validate")],
    "sentences": [
        sentence(7, "a cartoon shows two dogs", 0),
        sentence(0, "a car is shown", 1),
        sentence(6513, "a woman is cooking", 2),
        sentence(7, "dogs talk", 3),
    ],
}
TEST = {
    "info": INFO,
    "videos": [video(7010, "test")],
    "sentences": [sentence(7010, "a child sings", 20)],
}


def write(folder, *contents):
    paths = []
    for number, content in enumerate(contents):
        paths.append(folder / f"{number}.json")
        paths[-1].write_text(json.dumps(content))
    return Given(tuple(paths), images=folder)


def test_train_and_test_are_two_files_and_numbers_are_ids(tmp_path):
    (tmp_path / "video0").mkdir()
    (tmp_path / "video7.gif").touch()
    assert msrvtt(write(tmp_path, TRAIN, TEST)) == [
        ImageEntry(0, "video0", "train", ("a car is shown",), own_id=True),
        ImageEntry(
            7, "video7.gif", "train", ("a cartoon shows two dogs", "dogs talk"), own_id=True
        ),
        ImageEntry(6513, "video6513", "val", ("a woman is cooking",), own_id=True),
        ImageEntry(7010, "video7010", "test", ("a child sings",), own_id=True),
    ]


def test_videos_without_sentences_have_no_captions(tmp_path):
    entries = msrvtt(write(tmp_path, TRAIN, {"videos": TEST["videos"]}))
    assert entries[-1].captions == ()


@pytest.mark.parametrize("names", [["a", "b"], ["clip1", "video1"]])
def test_names_without_a_number_of_their_own_get_positions(tmp_path, names):
    videos = [{"video_id": name, "split": "train"} for name in names]
    given = write(tmp_path, {"videos": videos, "sentences": []})
    entries = msrvtt(given)
    assert [(entry.id, entry.file_name) for entry in entries] == list(enumerate(names))
    assert not any(entry.own_id for entry in entries)


def broken(change):
    content = copy.deepcopy(TRAIN)
    change(content)
    return content


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda c: c["videos"][1].pop("split"), "video 1 of the list: .*'split'"),
        (lambda c: c["videos"][1].update(split="some"), "video 1 of the list: the split must"),
        (lambda c: c["videos"][1].update(video_id="video0"), "video_id must be unique"),
        (lambda c: c["videos"][1].update(video_id="../a"), "without '..'"),
        (lambda c: c["videos"][1].update(video_id=7), "the file name must be text"),
        (lambda c: c["videos"].append(5), "video 3 of the list: it must be a JSON object"),
        (lambda c: c["sentences"][2].update(video_id="video9"), "sentence 2 .*one of the videos"),
        (lambda c: c["sentences"][2].update(video_id=[]), "sentence 2 .*one of the videos"),
        (lambda c: c["sentences"][2].update(caption=None), "sentence 2 .*must be text"),
        (lambda c: c["sentences"][2].pop("caption"), "sentence 2 .*'caption'"),
        (lambda c: c.update(videos={}), "must be an object with the lists"),
        (lambda c: c.update(videos=[], sentences=[]), "must have a video. Received: none"),
    ],
)
def test_a_wrong_file_is_refused_with_the_place(tmp_path, change, reason):
    with pytest.raises(ValueError, match=f"{reason}.*--captions"):
        msrvtt(write(tmp_path, broken(change)))


def test_another_file_is_refused(tmp_path):
    path = tmp_path / "captions.json"
    path.write_text("[1, 2]")
    with pytest.raises(ValueError, match="must be an object with the lists 'videos'.*list"):
        msrvtt(Given((path,)))
    path.write_text("{broken")
    with pytest.raises(ValueError, match="captions.json"):
        msrvtt(Given((path,)))


def test_the_layout_is_recognised_by_its_first_bytes(tmp_path):
    (path,) = write(tmp_path, TRAIN).captions
    assert recognises(path) and not recognises(tmp_path)
    for content in ({"images": [], "annotations": []}, [TRAIN], {"gif": "a", "caption": "b"}):
        path.write_text(json.dumps(content) + " ")
        assert not recognises(path.rename(tmp_path / f"{id(content)}.json"))
