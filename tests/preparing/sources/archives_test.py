"""Folders and archives: imagefolder, sidecar files, WebDataset and TensorFlow Datasets."""

import json
import os
import tarfile

import numpy as np
import pytest
from helpers import photos, sources
from helpers.sources import add, jpeg

from tfcap.data.prepared import PreparedData
from tfcap.prepare import prepare
from tfcap.preparing.sources import READERS


def read(name, made, **changes):
    """Entries in the order of their names, and the reasons of what is skipped."""
    source = made.source(**changes)
    entries = READERS[name].read(source)
    return sorted(entries, key=lambda entry: entry.file_name), [r.reason for r in source.skipped]


@pytest.mark.parametrize(
    ("name", "text", "captions", "split"),
    [
        ("metadata.csv", 'file_name,captions\na.jpg,"[""A"", ""B""]"', ("A", "B"), None),
        ("metadata.csv", "file_name,caption_1,caption_0\na.jpg,B,A", ("A", "B"), None),
        ("metadata.csv", "split,file_name,text\ndev,a.jpg,A\ndev,a.jpg,B", ("A", "B"), "val"),
        ("metadata.csv", "id,file_name,text\n3,a.jpg, A\n4,a.jpg,B", (" A", "B"), None),
        ("metadata.jsonl", '{"file_name": "a.jpg", "captions": ["A", "B"]}', ("A", "B"), None),
        ("test/metadata.jsonl", '{"file_name": "a.jpg", "text": "A"}', ("A",), "test"),
    ],
)
def test_columns_lists_and_splits_of_metadata(tmp_path, name, text, captions, split):
    path = tmp_path / name
    sources.write_pictures(path.parent, ["a.jpg"])
    path.write_text(f"\ufeff{text}\n")
    (entry,), skipped = read("imagefolder", sources.Made([tmp_path], tmp_path))
    assert (entry.captions, entry.split, entry.id, skipped) == (captions, split, 0, [])


def test_settings_have_no_images_if_the_captions_alone_name_the_folder(tmp_path):
    made = sources.sidecar(tmp_path)
    prepare(tmp_path / "out", made.captions[0], backbone="pixels", min_count=1)
    state = json.loads((tmp_path / "out" / ".prepare.json").read_text())
    assert state["settings"]["images"] is None  # as in directories of older versions


def write(path, *members):
    with tarfile.open(path, "w") as tar:
        for name, content in members:
            add(tar, name, content)
    return sources.Made([path], None)


def test_samples_with_equal_pictures_are_one_image(tmp_path):
    texts = [
        f'{{"caption": "A {n}.", "is_rejected": {"true" if n == 4 else "false"}}}' for n in range(6)
    ]
    made = write(
        tmp_path / "val.tar",
        *((f"{n}.jpg", jpeg(n % 3)) for n in range(5)),
        ("5.jpg", jpeg(0)[:-1] + b"?"),  # differs at the end alone
        *((f"{n}.json", text.encode()) for n, text in enumerate(texts)),
    )
    entries, _ = read("webdataset", made)
    assert [(e.file_name, e.captions, e.rejected) for e in entries] == [
        ("0.jpg", ("A 0.", "A 3."), ()),
        ("1.jpg", ("A 1.",), ("is_rejected",)),
        ("2.jpg", ("A 2.",), ()),
        ("5.jpg", ("A 5.",), ()),
    ]
    assert sorted(entry.id for entry in entries) == [0, 1, 2, 3]


def test_ids_of_metadata_are_not_used(tmp_path, capsys):
    sources.write_pictures(tmp_path, ["a.jpg"])
    (tmp_path / "metadata.csv").write_text("file_name,text,id,subset\na.jpg,A,x,test\n")
    (entry,), _ = read("imagefolder", sources.Made([tmp_path], tmp_path))
    assert entry.split == "test" and not capsys.readouterr().out


def test_members_of_a_tar_file_belong_together(tmp_path):
    made = write(
        tmp_path / "val.tar",
        ("./x/0.jpg", jpeg(0)),
        ("./x/0.json", b'{"text": "A dog.", "subset": "train"}'),
        ("./x/0.txt", b"left out, because there is a json"),
        ("1.PNG", jpeg(1)),
        ("1.txt", "\ufeffUn café.\r\nTwo.\r\n".encode()),
        ("2.txt", b"without a picture"),
        ("3.jpg", jpeg(3)),
        ("3.txt", b"caf\xe9"),
        ("../4.jpg", jpeg(4)),
        ("._5.jpg", b"Mac OS X"),
    )
    entries, skipped = read("webdataset", made)
    assert [(e.file_name, e.split, e.captions) for e in entries] == [
        ("1.PNG", "val", ("Un café.", "Two.")), ("x/0.jpg", "train", ("A dog.",)),
    ]  # fmt: skip
    assert [entry.content.read() for entry in entries] == [jpeg(1), jpeg(0)]
    assert len(skipped) == 3


def test_records_of_tfds_hold_the_pictures(tmp_path):
    made = sources.tfds(tmp_path)
    for path in (made.captions[0], made.files[0].parent):
        entries, _ = read("tfds", made._replace(captions=[path]))
        assert [entry.content.read() for entry in entries] == [jpeg(n) for n in range(6)]
        splits = ["train", "test", "train", "train", "train", "val"]  # the first is restval
        assert [entry.split for entry in entries] == splits


@pytest.mark.slow
@pytest.mark.parametrize("name", ["parquet", "webdataset"])
def test_records_have_the_features_of_their_own_pictures(tmp_path, name, capsys):
    made = sources.FIXTURES[name](tmp_path)
    content = {e.file_name: e.content.read() for e in READERS[name].read(made.source())}
    paths = [os.fspath(path) for path in made.captions]
    given = {"backbone": "pixels", "min_count": 1}
    data = PreparedData.load(prepare(tmp_path / "out", paths, **given))
    assert f"source: {name} (" in capsys.readouterr().out
    stored = {}
    for split in data.fingerprint["splits"]:
        names = data.file_names(split)
        for number, features in photos.examples(data, split).items():
            stored[names[number]] = features
    assert set(stored) == set(content) and data.images is None
    expected = photos.features_of([content[name] for name in stored])
    for features, own in zip(stored.values(), expected, strict=True):
        np.testing.assert_allclose(features, own, rtol=1e-3, atol=1e-6)
