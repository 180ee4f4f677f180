"""Folders and archives: imagefolder, sidecar files, WebDataset and TensorFlow Datasets."""

import json
import os
import tarfile

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from helpers import photos, sources
from helpers.sources import add, jpeg

from tfcap import errors
from tfcap.data.prepared import PreparedData
from tfcap.prepare import prepare
from tfcap.preparing.sources import READERS, recognise


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
        # names of columns that every other table may have
        ("metadata.csv", 'image,prompt\na.jpg,"A, B"', ("A, B",), None),
        ("metadata.csv", "image;prompt\na.jpg;A, B", ("A, B",), None),
        ("metadata.csv", "video,prompt\na.jpg,A", ("A",), None),
        ("metadata.jsonl", '{"image": "a.jpg", "caption": "A", "score": -1.5}', ("A",), None),
        ("metadata.jsonl", '{"image": "b.jpg", "file_name": "a.jpg", "text": "A"}', ("A",), None),
    ],
)
def test_columns_lists_and_splits_of_metadata(tmp_path, name, text, captions, split):
    path = tmp_path / name
    sources.write_pictures(path.parent, ["a.jpg"])
    path.write_text(f"\ufeff{text}\n")
    (entry,), skipped = read("imagefolder", sources.Made([tmp_path], tmp_path))
    assert entry.file_name.endswith("a.jpg")
    assert (entry.captions, entry.split, entry.id, skipped) == (captions, split, 0, [])


def texts(folder, content):
    for name, text in content.items():
        (folder / name).write_text(text)


def test_a_metadata_file_in_parquet_has_any_known_column_of_pictures(tmp_path):
    sources.write_pictures(tmp_path, ["a.jpg"])
    rows = pa.Table.from_pylist([{"image": "a.jpg", "prompt": "A"}, {"image": None, "prompt": "B"}])
    pq.write_table(rows, tmp_path / "metadata.parquet")
    (entry,), skipped = read("imagefolder", sources.Made([tmp_path], tmp_path))
    assert (entry.file_name, entry.captions, len(skipped)) == ("a.jpg", ("A",), 1)


@pytest.mark.parametrize("link", [False, True])
def test_pictures_in_no_row_of_the_metadata_are_counted(tmp_path, capsys, link):
    folder = tmp_path / "pictures"
    sources.write_pictures(folder, ["été/a.JPE", "b.jfif", "c.jpg", "d.avif"])
    texts(folder, {"metadata.csv": "file_name,text\nété/a.JPE,A dog.\n"})
    (tmp_path / "link").symlink_to(folder)
    entries, _ = read("imagefolder", sources.Made([tmp_path / "link" if link else folder], folder))
    assert [entry.file_name for entry in entries] == ["été/a.JPE"]
    assert capsys.readouterr().out.splitlines() == [
        "note: 2 pictures are in no row of the metadata and are left out",
        "note: 1 picture is left out (1 .avif): save it as JPEG or PNG",
    ]


def test_rows_of_metadata_may_have_several_pictures(tmp_path, capsys):
    sources.write_pictures(tmp_path, ["train/a.png", "train/b.png", "train/c.png"])
    rows = [{"file_name": names, "text": "A lung."} for names in (["a.png", "b.png"], ["c.png"])]
    rows.append({"file_name": ["c.png", None], "text": "A lung."})
    texts(tmp_path / "train", {"metadata.jsonl": "\n".join(map(json.dumps, rows))})
    entries, skipped = read("imagefolder", sources.Made([tmp_path], tmp_path))
    pictures = [("train/a.png", "train/b.png"), ("train/c.png",)]
    assert [(entry.pictures, entry.split) for entry in entries] == [(p, "train") for p in pictures]
    assert len(skipped) == 1 and not capsys.readouterr().out


def test_pictures_with_any_ending_have_texts_beside_them(tmp_path, capsys):
    """Ending in upper case or missing, kohya's .caption, the name with its ending and .txt."""
    names = ["1.jfif", "2.JPE", "3.jpg", "4.PNG", "5", "6.jpg", "7.jpg", "7.png", "8.jp2", "9.heic"]
    sources.write_pictures(tmp_path, [*names, "10.webp", "._1.jpg"])
    content = {"1.txt": "1", "2.TXT": "2", "3.caption": "3", "4.PNG.txt": "4", "5.txt": "5"}
    content |= {"6.caption": "tags", "6.txt": "6", "7.txt": "7", "8.txt": "8", "9.txt": "9"}
    texts(tmp_path, {**content, "readme.txt": "Pictures."})
    assert recognise([tmp_path]) == "sidecar"
    entries, skipped = read("sidecar", sources.Made([tmp_path], tmp_path))
    assert [entry.file_name for entry in entries] == [*names[:6], "7.jpg"]
    assert [entry.captions for entry in entries] == [(str(number),) for number in range(1, 8)]
    assert capsys.readouterr().out.splitlines() == [
        "note: 2 pictures have no .txt or .caption file and are left out",  # 7.png and 10.webp
        "note: 4 .txt or .caption files belong to no picture and are left out",
        "note: 2 pictures are left out (1 .jp2, 1 .heic): save them as JPEG or PNG",
    ]
    assert not skipped


def test_films_with_texts_are_read_as_clips(tmp_path, capsys):
    (tmp_path / "1.mp4").write_bytes(b"")
    texts(tmp_path, {"1.txt": "a film", "2.txt": "a picture"})
    made = sources.Made([tmp_path], tmp_path)
    assert recognise([tmp_path]) == "sidecar"
    for clips in (True, False):
        assert [e.file_name for e in read("sidecar", made, clips=clips)[0]] == ["1.mp4"]
    with pytest.raises(errors.UsageError, match="1.mp4 is a film. .*`frames=16`"):
        prepare(tmp_path / "out", images=str(tmp_path), backbone="pixels")
    sources.write_pictures(tmp_path, ["2.jpg"])
    assert [e.file_name for e in read("sidecar", made, clips=True)[0]] == ["1.mp4", "2.jpg"]
    assert "films" not in capsys.readouterr().out
    assert [e.file_name for e in read("sidecar", made)[0]] == ["2.jpg"]
    assert "note: 1 films are read only with `frames` and are left out" in capsys.readouterr().out


def downloaded(folder, form):
    """A folder that img2dataset wrote: two pictures, and a table of addresses without pictures."""
    rows = [{"url": "http://x", "caption": "A dog.", "key": f"{n:09d}"} for n in range(2)]
    members = [(f"{row['key']}.jpg", jpeg(n)) for n, row in enumerate(rows)]
    members += [(f"{row['key']}.txt", b"A dog.") for row in rows]
    members += [(f"{row['key']}.json", json.dumps(row).encode()) for row in rows]
    (folder / "00000").mkdir()
    (folder / "00000_stats.json").write_text('{"count": 2}')
    if form == "files":
        for name, content in members:
            (folder / "00000" / name).write_bytes(content)
    if form == "webdataset":
        write(folder / "00000.tar", *members)
    if form == "parquet":
        rows = [{**row, "jpg": jpeg(n)} for n, row in enumerate(rows)]
    pq.write_table(pa.Table.from_pylist(rows), folder / "00000.parquet")
    return sources.Made([folder], folder)


@pytest.mark.parametrize(
    ("form", "layout"),
    [("webdataset", "webdataset"), ("files", "sidecar"), ("parquet", "parquet")],
)
def test_a_download_of_img2dataset_is_recognised_by_where_its_pictures_are(tmp_path, form, layout):
    made = downloaded(tmp_path, form)
    assert recognise(made.captions) == layout
    entries, skipped = read(layout, made)
    assert [entry.captions for entry in entries] == [("A dog.",)] * 2 and not skipped


def hugging_face(folder, name="data-00000-of-00001.arrow"):
    """A directory that `Dataset.save_to_disk` wrote, or the cache."""
    folder.mkdir(parents=True)
    table = pa.Table.from_pylist([{"image": {"bytes": jpeg(), "path": None}, "caption": "A dog."}])
    with pa.OSFile(str(folder / name), "wb") as file, pa.ipc.new_stream(file, table.schema) as out:
        out.write_table(table)
    (folder / "dataset_info.json").write_text('{"features": {}, "splits": {"train": {}}}')


def test_a_directory_of_hugging_face_is_not_one_of_tensorflow_datasets(tmp_path):
    for split in ("train", "test"):
        hugging_face(tmp_path / "saved" / split)
    hugging_face(tmp_path / "cache" / "default" / "0.0.0", "name-train.arrow")
    file = tmp_path / "saved" / "train" / "data-00000-of-00001.arrow"
    for path in (tmp_path / "saved", file.parent, file, tmp_path / "cache"):
        with pytest.raises(ValueError, match="Arrow files of Hugging Face.*to_parquet.*`captions`"):
            recognise([path])


def test_a_folder_without_captions_says_where_they_may_be(tmp_path):
    (tmp_path / "a.heic").write_bytes(b"")
    with pytest.raises(ValueError, match=r"no pictures that can be read: 1 picture .*\(1 .heic\)"):
        recognise([tmp_path])
    sources.write_pictures(tmp_path, ["b.jpg"])
    with pytest.raises(ValueError, match="dog.txt or dog.caption. Write them, or give a table of"):
        recognise([tmp_path])
    texts(tmp_path, {"captions.csv": "image,caption\nb.jpg,A dog.\n"})
    with pytest.raises(ValueError, match="captions, such as captions.csv, with `captions`"):
        recognise([tmp_path])
    pq.write_table(pa.Table.from_pylist([{"url": "u", "caption": "A"}]), tmp_path / "a.parquet")
    with pytest.raises(ValueError, match="a column with the bytes of pictures.* it has: url, cap"):
        recognise([tmp_path])


def test_settings_have_no_images_if_the_captions_alone_name_the_folder(tmp_path):
    made = sources.sidecar(tmp_path)
    prepare(tmp_path / "out", made.captions[0], backbone="pixels", min_count=1)
    state = json.loads((tmp_path / "out" / ".prepare.json").read_text())
    assert state["settings"]["images"] is None


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


@pytest.mark.parametrize(
    ("names", "expected", "left"),
    [
        ("0.jpg 0.txt dog.v0.jpg dog.v0.txt dog.v1.jpg dog.v1.txt",
         {"0.jpg": "0.txt", "dog.v0.jpg": "dog.v0.txt", "dog.v1.jpg": "dog.v1.txt"}, ""),
        ("a.input.jpg a.outputs.txt b.input.jpg b.outputs.txt",
         {"a.input.jpg": "a.outputs.txt", "b.input.jpg": "b.outputs.txt"}, ""),
        ("x/IMG_1.v2.JFIF x/IMG_1.v2.caption x/IMG_2.v2.jpe x/IMG_2.txt",
         {"x/IMG_1.v2.JFIF": "x/IMG_1.v2.caption", "x/IMG_2.v2.jpe": "x/IMG_2.txt"}, ""),
        ("a.jpg a.seg.png a.jpg.txt b.seg.png b.input.jpg b.txt b.cls",
         {"a.jpg": "a.jpg.txt", "b.input.jpg": "b.txt"}, "3 members left out (2 .seg.png, 1 .cls)"),
        ("a.jpg a.caption a.txt b.jpg b.1.txt b.2.txt c d.heic",
         {"a.jpg": "a.txt", "b.jpg": None},
         "4 members left out (1 .1.txt, 1 .2.txt, 1 without ending, 1 .heic)"),
    ],
)  # fmt: skip
def test_the_last_ending_of_a_member_counts_if_the_full_one_is_unknown(
    tmp_path, names, expected, left, capsys
):
    pictures = (".jpg", ".png", ".jfif", ".jpe")
    members = [
        (name, jpeg(seed) if name.lower().endswith(pictures) else name.encode())
        for seed, name in enumerate(names.split())
    ]
    entries, skipped = read("webdataset", write(tmp_path / "a.tar", *members))
    result = {entry.file_name: (entry.captions or (None,))[0] for entry in entries}
    assert result == expected and not skipped
    out = capsys.readouterr().out
    assert f"note: {left}. A key has one picture" in out if left else not out


def test_a_tar_file_without_samples_says_what_it_has(tmp_path):
    made = write(tmp_path / "a.tar", ("0.a.b", b""), ("1.a.b", b""), ("0.c", b""))
    with pytest.raises(ValueError, match="a.tar has no .*: 2 .a.b, 1 .c. .* captions"):
        read("webdataset", made)
    made = write(tmp_path / "a.tar", ("0.a.jpg", b""), ("0.b.jpg", b""), ("0.txt", b"A dog."))
    with pytest.raises(ValueError, match="not exactly one picture; .* in .a.jpg, .b.jpg, .txt"):
        read("webdataset", made)


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
    values = {"backbone": "pixels", "min_count": 1}
    data = PreparedData.load(prepare(tmp_path / "out", paths, **values))
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
