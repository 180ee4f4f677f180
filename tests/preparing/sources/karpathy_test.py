"""Readers of caption files."""

import json

import pytest

from tfcap.preparing.sources import ImageEntry, karpathy


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
        ImageEntry(391895, "val2014/x.jpg", "train", ("A dog .",)),
        ImageEntry(9, "y.jpg", "val", ("Á", "")),
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
        ({"split": "dev"}, "the split must be one of train, .* Received: 'dev'"),
        ({"split": None}, "no 'split'"),
        ({"filename": None}, "no 'filename'"),
        ({"filename": 7}, "file name must be text"),
        ({"imgid": "7"}, "whole number"),
        ({"imgid": -1}, "whole number"),
        ({"imgid": 2**63}, "whole number"),
        ({"imgid": True}, "whole number"),
        ({"sentences": [{"raw": 3}]}, "must be text"),
        ({"sentences": [{"tokens": []}]}, "no 'raw'"),
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
