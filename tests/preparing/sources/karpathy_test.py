"""Caption files in Karpathy's layout."""

import json

import pytest

from tfcap.preparing import sources
from tfcap.preparing.sources import Given, ImageEntry


def karpathy(path, **options):
    return sources.karpathy(Given((path,), **options))


def _write(tmp_path, *images):
    path = tmp_path / "captions.json"
    path.write_text(json.dumps({"images": list(images)}))
    return path


def _image(**changes):
    image = {"filename": "a.jpg", "split": "train", "sentences": [{"raw": "A dog ."}]}
    return {k: v for k, v in {**image, **changes}.items() if v is not None}


def test_reads_ids_folders_and_splits(tmp_path):
    path = _write(
        tmp_path,
        _image(filename="x.jpg", filepath="val2014", cocoid=391895, imgid=4, split="restval"),
        _image(filename="y.jpg", imgid=9, split="val", sentences=[{"raw": "Á"}, {"raw": ""}]),
        _image(filename="sub/z.jpg", split="test", sentences=[]),
    )
    assert karpathy(path) == [
        ImageEntry(391895, "val2014/x.jpg", "train", ("A dog .",), own_id=True),
        ImageEntry(9, "y.jpg", "val", ("Á", ""), own_id=True),
        ImageEntry(2, "sub/z.jpg", "test", ()),
    ]


@pytest.mark.parametrize(
    "name, folder",
    [
        ("../a.jpg", None),
        ("a/../../b.jpg", None),
        ("/etc/passwd", None),
        ("a.jpg", "/tmp"),
        ("a.jpg", ".."),
        ("..\\a.jpg", None),
        ("C:\\a.jpg", None),
        (".", None),
        ("a\0.jpg", None),
    ],
)
def test_names_that_leave_the_directory_are_refused(tmp_path, name, folder):
    path = _write(tmp_path, _image(filename=name, filepath=folder))
    with pytest.raises(ValueError, match="image 0 of the list: the file name"):
        karpathy(path)


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"split": "some"}, "the split must be one of train, .* Received: 'some'"),
        ({"split": None}, "no 'split'"),
        ({"filename": None}, "no 'filename'"),
        ({"filename": 7}, "file name must be text"),
        ({"imgid": "7"}, "whole number"),
        ({"imgid": -1}, "whole number"),
        ({"imgid": 2**63}, "whole number"),
        ({"imgid": True}, "whole number"),
        ({"sentences": [{"raw": 3}]}, "must be text"),
        ({"sentences": [{"tokens": []}]}, "no 'raw'"),
        ({"sentences": "a dog"}, "must be a list"),
        (
            {"sentences": ["a dog"]},
            'object with .raw.. Received: .a dog.. Write {"raw": "the capti',
        ),
        ({"sentences": [{"raw": "\ud800"}]}, "valid Unicode"),
    ],
)
def test_bad_entries_name_their_place(tmp_path, changes, message):
    path = _write(tmp_path, _image(filename="first.jpg", imgid=100), _image(**changes))
    with pytest.raises(ValueError, match=f"captions.json: image 1 of the list: .*{message}"):
        karpathy(path)


def test_an_id_twice_is_refused(tmp_path):
    path = _write(tmp_path, _image(imgid=5), _image(imgid=6), _image(imgid=5, filename="b.jpg"))
    with pytest.raises(ValueError, match="must be unique. Received: 5 at 0 and at 2"):
        karpathy(path)


@pytest.mark.parametrize(
    "content",
    [b"", b"{", b"\xff\xfe", b"[]", b'{"images": []}', b'{"annotations": []}', b"[" * 9999],
)
def test_malformed_files_are_one_clear_line(tmp_path, content):
    path = tmp_path / "captions.json"
    path.write_bytes(content)
    with pytest.raises(ValueError, match="captions.json .*(JSON|layout)") as error:
        karpathy(path)
    assert "\n" not in str(error.value)


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(ValueError, match="Cannot read .*none.json: No such file"):
        karpathy(tmp_path / "none.json")
    _write(tmp_path, "not an object")
    with pytest.raises(ValueError, match="must be an object"):
        karpathy(tmp_path / "captions.json")


def test_the_own_tokens_of_a_file_are_read_on_request(tmp_path):
    sentence = {"raw": "A man's dog.", "tokens": ["a", "mans", "dog"], "sentid": 12}
    path = _write(tmp_path, _image(sentences=[sentence]), _image(sentences=[]))
    first, second = karpathy(path, given_tokens=True)
    assert first.words == (("a", "mans", "dog"),) and second.words == ()
    assert first.caption_ids == (12,) and first.captions == ("A man's dog.",)
    assert karpathy(path)[0].words is None
    for tokens, message in (("a dog", "must be a list of words"), ([1], "must be text")):
        path = _write(tmp_path, _image(sentences=[{**sentence, "tokens": tokens}]))
        with pytest.raises(ValueError, match=f"image 0 of the list: .*{message}"):
            karpathy(path, given_tokens=True)
    path = _write(tmp_path, _image())
    with pytest.raises(ValueError, match="image 0 of the list: no 'tokens'"):
        karpathy(path, given_tokens=True)
