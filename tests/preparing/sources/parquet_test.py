"""Parquet files with the bytes of pictures."""

import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from helpers import source_files
from helpers.source_files import jpeg

from tfcap.preparing.sources.parquet import parquet, recognises


def write(path, *rows, **options):
    pq.write_table(pa.Table.from_pylist(list(rows)), path, **options)
    return source_files.Made([path], None, [path])


def row(number=0, **changes):
    picture = {"bytes": jpeg(number), "path": f"{number}.jpg"}
    values = {"image": picture, "caption": f"Dog {number}.", **changes}
    return {key: value for key, value in values.items() if value is not None}


@pytest.mark.parametrize("captions", ["list", "text"])
def test_pictures_captions_and_splits_are_read(tmp_path, captions):
    made = source_files.parquet(tmp_path, captions)
    assert recognises(tmp_path) and recognises(made.files[0])
    entries = parquet(made.given())
    assert {entry.captions for entry in entries} == {
        ("A dog .", "Two dogs .") if captions == "list" else ("A dog .",)
    }
    by_number = sorted(entries, key=lambda entry: entry.file_name)
    assert [entry.file_name for entry in by_number] == [f"{n}.jpg" for n in range(7)]
    assert [entry.content.read() for entry in by_number] == [jpeg(n) for n in range(7)]
    assert [entry.split for entry in by_number] == ["train"] * 5 + ["val", "test"]
    assert [entry.id for entry in entries] == list(range(7))


def test_plain_bytes_numbered_captions_and_a_column_of_splits(tmp_path):
    rows = [
        {"jpg": jpeg(n), "caption_0": "A.", "caption_10": "C.", "caption_2": "B.", "split": split}
        for n, split in enumerate(["restval", "dev"])
    ]
    entries = parquet(write(tmp_path / "all.parquet", *rows).given())
    assert [entry.captions for entry in entries] == [("A.", "B.", "C.")] * 2
    assert [entry.split for entry in entries] == ["train", "val"]
    assert [entry.file_name for entry in entries] == ["all-0-0", "all-0-1"]
    assert entries[1].content.read() == jpeg(1)


def with_class_label(path, names, *rows):
    """Writes rows whose splits are numbers, with their names as Hugging Face stores them."""
    table = pa.Table.from_pylist(list(rows))
    features = {"split": {"names": names, "_type": "ClassLabel"}}
    metadata = {"huggingface": json.dumps({"info": {"features": features}})}
    pq.write_table(table.replace_schema_metadata(metadata), path)
    return source_files.Made([path], None, [path])


def test_the_numbers_of_a_class_label_are_splits(tmp_path):
    rows = [row(n, split=split) for n, split in enumerate([0, 1, 2, 0])]
    names = ["test", "training", "validation"]
    made = with_class_label(tmp_path / "all.parquet", names, *rows)
    assert [entry.split for entry in parquet(made.given())] == ["test", "train", "val", "test"]
    given = with_class_label(tmp_path / "all.parquet", names, row(0, split=-1), row(1)).given()
    assert len(parquet(given)) == 1 and "Received: -1" in given.skipped[0].reason


@pytest.mark.parametrize("splits", [[0, 1], [0.0, 1.0], [False, True]])
def test_splits_that_are_numbers_without_names_are_refused(tmp_path, splits):
    made = write(tmp_path / "all.parquet", *(row(n, split=split) for n, split in enumerate(splits)))
    with pytest.raises(ValueError, match="all.parquet: the column 'split' must .*Write train, val"):
        parquet(made.given())


def test_rows_of_the_same_picture_are_joined(tmp_path):
    rows = [row(n, cocoid=7 + n, caption=f"{said} {n}.") for said in "ab" for n in range(2)]
    entries = parquet(write(tmp_path / "train.parquet", *rows).given())
    assert [entry.captions for entry in entries] == [("a 0.", "b 0."), ("a 1.", "b 1.")]


def test_rows_of_equal_names_are_joined_only_where_the_bytes_are_equal(tmp_path):
    pictures = [(0, "a"), (1, "b"), (0, "c"), (0, "d")]
    rows = [row(n, filename="cat.jpg", caption=said) for n, said in pictures]
    rows.append(row(image={"bytes": None, "path": "0.jpg"}, filename="cat.jpg", caption="e"))
    rows.append(row(0, filename="dog.jpg", caption="f"))
    entries = parquet(write(tmp_path / "train.parquet", *rows).given())
    assert [entry.captions for entry in entries] == [("a", "c", "d"), ("b",), ("e",), ("f",)]
    assert [entry.id for entry in entries] == [0, 1, 2, 3]


def test_an_id_of_different_pictures_is_refused(tmp_path):
    for part in range(2):  # the ids of each file begin with 0
        rows = [row(10 * part + n, image_id=n) for n in range(2)]
        write(tmp_path / f"train-{part}.parquet", *rows)
    made = source_files.Made([tmp_path], None, [])
    with pytest.raises(ValueError, match="same image_id .* 0 for 0.jpg in .*10.jpg in .*differ"):
        parquet(made.given())
    write(tmp_path / "train-1.parquet", row(0, image_id=0, caption="Same."), row(7, image_id=7))
    captions = [entry.captions for entry in parquet(made.given())]
    assert captions == [("Dog 0.", "Same."), ("Dog 1.",), ("Dog 7.",)]
    write(tmp_path / "val-0.parquet", row(9, image_id=0))  # of another split
    assert len(parquet(made.given())) == 4


def test_pictures_without_bytes_are_files_below_the_images(tmp_path):
    paths = ["a/0.jpg", f"{tmp_path}/a/1.jpg"]  # the library of Hugging Face writes absolute ones
    rows = [row(image={"bytes": None, "path": path}) for path in paths]
    schema = pa.schema(
        [
            ("image", pa.struct([("bytes", pa.binary()), ("path", pa.string())])),
            ("caption", pa.string()),
        ]
    )
    rows.append(row(image={"bytes": None, "path": "../x.jpg"}))
    pq.write_table(pa.Table.from_pylist(rows, schema=schema), tmp_path / "a.parquet")
    given = source_files.Made([tmp_path / "a.parquet"], tmp_path, []).given()
    entries = parquet(given)
    assert [(entry.file_name, entry.content) for entry in entries] == [
        ("a/0.jpg", None), ("a/1.jpg", None)
    ]  # fmt: skip
    assert "must be relative" in given.skipped[0].reason


def test_one_empty_cell_is_told_when_its_picture_is_read(tmp_path):
    made = write(tmp_path / "a.parquet", row(0), row(image={"bytes": None, "path": "1.jpg"}))
    entries = parquet(made.given())
    assert entries[0].content.read() == jpeg(0)
    with pytest.raises(ValueError, match="the cell has no bytes"):
        entries[1].content.read()


@pytest.mark.parametrize(
    ("rows", "reason"),
    [
        ([row(0, split="moon"), row(1, split="val")], "the split must be one of"),
        ([row(0, image={"bytes": b"x", "path": ".."}), row(1)], "must be relative"),
    ],
)
def test_a_bad_row_is_skipped_and_listed(tmp_path, rows, reason):
    given = write(tmp_path / "a.parquet", *rows).given()
    assert [entry.captions for entry in parquet(given)] == [("Dog 1.",)]
    assert "row 0 of row group 0" in given.skipped[0].place and reason in given.skipped[0].reason


def test_captions_that_are_no_text_are_skipped(tmp_path):
    given = write(tmp_path / "a.parquet", row(0, caption=3)).given()
    with pytest.raises(ValueError, match="must have a usable row"):
        parquet(given)
    assert "must be text" in given.skipped[0].reason


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([{"image": "http://x", "caption": "A."}], "one column with the bytes of pictures.*none"),
        ([{"a": b"x", "b": b"x", "caption": "A."}], "one column with the bytes of pictures.*a, b"),
        ([{"image": b"x", "label": 3}], "must have a column of captions: one of captions, "),
    ],
)
def test_files_without_pictures_or_captions_are_refused(tmp_path, rows, message):
    with pytest.raises(ValueError, match=message):
        parquet(write(tmp_path / "a.parquet", *rows).given())


def test_damaged_files_are_refused_or_skipped(tmp_path):
    made = source_files.parquet(tmp_path)
    whole = made.files[0].read_bytes()
    for content in (b"PAR1", whole[:200], whole[:-8] + b"\xff\xff\xff\x7fPAR1", b"x" * 99):
        made.files[0].write_bytes(content)
        with pytest.raises(ValueError, match="train-00000-of-00001.parquet must be a Parquet file"):
            parquet(made._replace(captions=[made.files[0]]).given())


def test_metadata_of_a_folder_is_another_source(tmp_path):
    pq.write_table(
        pa.table({"file_name": ["a.jpg"], "text": ["A."]}), tmp_path / "metadata.parquet"
    )
    assert not recognises(tmp_path) and not recognises(tmp_path / "metadata.parquet")
    with pytest.raises(ValueError, match="which has none. Correct the path"):
        parquet(source_files.Made([tmp_path], None, []).given())
