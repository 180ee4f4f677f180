"""Folders of pictures with metadata files."""

import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from helpers import source_files

from tfcap.preparing.sources.imagefolder import imagefolder, recognises


def folder(tmp_path, text, name="metadata.csv", pictures=("a.jpg", "b.jpg")):
    """A folder with one metadata file."""
    source_files.write_pictures(tmp_path, list(pictures))
    content = text if isinstance(text, bytes) else text.encode()
    (tmp_path / name).write_bytes(content)
    return source_files.Made([tmp_path], tmp_path, [tmp_path / name])


@pytest.mark.parametrize("kind", ["csv", "jsonl", "parquet"])
def test_each_kind_of_metadata_is_read(tmp_path, kind):
    made = source_files.imagefolder(tmp_path, kind)
    assert recognises(made.captions[0])
    entries = sorted(imagefolder(made.given()), key=lambda entry: entry.file_name)
    assert [(entry.file_name, entry.split) for entry in entries] == [
        ("test/0.jpg", "test"), *((f"train/{n}.jpg", "train") for n in range(4)),
        ("validation/0.jpg", "val"),
    ]  # fmt: skip
    assert entries[2].captions == ("A dog , 1.jpg .",)
    assert all((made.images / entry.file_name).is_file() for entry in entries)


def test_without_images_the_files_beside_the_metadata_are_the_content(tmp_path):
    made = source_files.imagefolder(tmp_path)
    (made.captions[0] / "train" / "0.jpg").unlink()
    given = made._replace(images=None).given()
    entries = {entry.file_name: entry for entry in imagefolder(given)}
    assert len(entries) == 5 and entries["train/3.jpg"].content.read() == source_files.jpeg(3)
    assert [row.reason for row in given.skipped] == ["No such file or directory"]


def test_images_may_be_the_directory_above(tmp_path):
    made = source_files.imagefolder(tmp_path)
    names = {entry.file_name for entry in imagefolder(made._replace(images=tmp_path).given())}
    assert "folder/train/0.jpg" in names
    given = made._replace(images=made.images / "train").given()
    assert len(imagefolder(given)) == 4
    assert "must be in the directory of --images" in given.skipped[0].reason


@pytest.mark.parametrize(
    ("header", "row", "expected"),
    [
        ("file_name,captions", 'a.jpg,"[""A dog."", ""A cat.""]"', ("A dog.", "A cat.")),
        ("file_name,captions", "a.jpg,A dog.", ("A dog.",)),
        ("image_file_name,caption_1,caption_0", "a.jpg,B,A", ("A", "B")),
        ("split,file_name,text", "test,a.jpg,A dog.\r\ntest,a.jpg,A cat.", ("A dog.", "A cat.")),
        ("file_name,text", 'a.jpg,"A dog,\nwhich runs."', ("A dog,\nwhich runs.",)),
    ],
)
def test_names_of_columns_and_lists_in_cells(tmp_path, header, row, expected):
    entries = imagefolder(folder(tmp_path, f"\ufeff{header}\r\n{row}\r\n").given())
    assert [entry.captions for entry in entries] == [expected]
    assert entries[0].split == ("test" if header.startswith("split") else None)


def test_lists_in_json_and_in_parquet(tmp_path):
    row = {"file_name": "train/a.jpg", "captions": ["A.", "B."]}
    made = folder(tmp_path, json.dumps(row), "metadata.jsonl", ["train/a.jpg"])
    assert imagefolder(made.given())[0].captions == ("A.", "B.")
    assert imagefolder(made.given())[0].split == "train"
    made.files[0].unlink()
    pq.write_table(pa.Table.from_pylist([row]), tmp_path / "metadata.parquet")
    assert imagefolder(made.given())[0].captions == ("A.", "B.")
    assert recognises(tmp_path / "metadata.parquet")


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ("../b.jpg,A dog.", "must be relative"),
        ("/etc/passwd,A dog.", "must be relative"),
        (",A dog.", "file name must be text"),
        ("b.jpg", "a row must have 2 cells. Received: 1"),
        ("b.jpg,A,B", "a row must have 2 cells. Received: 3"),
        ('b.jpg,"[""A"", 5]"', "must be a list of texts"),
        ('b.jpg,"[""A"""', "must be a list of texts"),
        ('b.jpg,"[""A""], ""file_name"": ""c.jpg"""', "must be a list of texts"),
    ],
)
def test_a_bad_row_is_skipped_and_listed(tmp_path, row, reason):
    given = folder(tmp_path, f"file_name,captions\na.jpg,A dog.\n{row}\n").given()
    assert [entry.file_name for entry in imagefolder(given)] == ["a.jpg"]
    assert given.skipped[0].place.endswith("metadata.csv: line 3")
    assert reason in given.skipped[0].reason


def test_splits_that_are_numbers(tmp_path):
    rows = [
        {"file_name": name, "text": "A.", "split": n} for n, name in enumerate(["a.jpg", "b.jpg"])
    ]
    given = folder(tmp_path, "\n".join(map(json.dumps, rows)), "metadata.jsonl").given()
    with pytest.raises(ValueError, match="a usable row"):
        imagefolder(given)
    assert [row.reason[-37:] for row in given.skipped] == [
        f"Received: {n}. Write train, val or test" for n in (0, 1)
    ]
    (tmp_path / "metadata.jsonl").unlink()
    features = {"split": {"names": ["train", "test"], "_type": "ClassLabel"}}
    metadata = {"huggingface": json.dumps({"info": {"features": features}})}
    table = pa.Table.from_pylist(rows).replace_schema_metadata(metadata)
    pq.write_table(table, tmp_path / "metadata.parquet")
    made = source_files.Made([tmp_path], tmp_path, [])
    assert [entry.split for entry in imagefolder(made.given())] == ["train", "test"]
    pq.write_table(table.drop_columns(["split"]), tmp_path / "metadata.parquet")
    assert [entry.split for entry in imagefolder(made.given())] == [None, None]


@pytest.mark.parametrize(
    ("line", "reason"), [("{", "Expecting property"), ("[]", "JSON object"), ('{"a": 1}', "column")]
)
def test_a_bad_line_of_json_is_skipped_and_listed(tmp_path, line, reason):
    good = '{"file_name": "a.jpg", "text": "A dog."}'
    given = folder(tmp_path, f"{good}\n\n{line}\n", "metadata.jsonl").given()
    assert len(imagefolder(given)) == 1
    assert given.skipped[0].place.endswith("line 3") and reason in given.skipped[0].reason


@pytest.mark.parametrize("text", ["", "file_name,text\n", "other,text\na.jpg,A dog.\n"])
def test_metadata_without_a_usable_row_is_refused(tmp_path, text):
    with pytest.raises(ValueError, match="must have a metadata file with a usable row"):
        imagefolder(folder(tmp_path, text).given())


def test_a_quote_that_does_not_end_is_named(tmp_path):
    made = folder(tmp_path, 'file_name,text\na.jpg,"A dog.\n' + "b.jpg,A cat.\n" * 50)
    given = made.given()
    assert [len(one.captions) for one in imagefolder(given)] == [50]
    assert given.skipped[0].place.endswith("line 2") and "unexpected end" in given.skipped[0].reason


def test_two_metadata_files_in_one_folder_are_refused(tmp_path):
    made = folder(tmp_path, "file_name,text\na.jpg,A dog.\n")
    row = '{"file_name": "b.jpg", "text": "A dog."}'
    (tmp_path / "train").mkdir()
    folder(tmp_path / "train", row, "metadata.jsonl")  # of another directory
    assert len(imagefolder(made.given())) == 2
    (tmp_path / "metadata.jsonl").write_text(row)
    message = "must have one metadata file. Received: .*metadata.csv and metadata.jsonl. Remove"
    with pytest.raises(ValueError, match=message):
        imagefolder(made.given())


def test_other_files_are_refused(tmp_path):
    (tmp_path / "notes.txt").write_text("x")
    assert not recognises(tmp_path) and not recognises(tmp_path / "notes.txt")
    for path in (tmp_path, tmp_path / "notes.txt"):
        with pytest.raises(ValueError, match=r"must be (files|a directory, or)"):
            imagefolder(source_files.Made([path], None, []).given())
