"""Parquet files with pictures: rows with the same picture are captions of one image."""

import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from helpers import sources
from helpers.sources import jpeg

from tfcap.preparing import inputs
from tfcap.preparing.settings import Settings
from tfcap.preparing.sources import READERS
from tfcap.preparing.sources.entry import Source


def parquet(path, *rows, metadata=None, **changes):
    """Entries of a file with these rows, and what is skipped."""
    table = pa.Table.from_pylist(list(rows)).replace_schema_metadata(metadata)
    pq.write_table(table, path, row_group_size=2)
    source = sources.Made([path], None).source(**changes)
    return READERS["parquet"].read(source), [row.reason for row in source.skipped]


def row(number, **changes):
    picture = {"bytes": jpeg(number), "path": f"/home/x/{number}.jpg"}
    return {"image": picture, "caption": f"Dog {number}.", **changes}


def test_plain_bytes_numbered_captions_and_a_column_of_splits(tmp_path):
    rows = [
        {"jpg": jpeg(n), "caption_0": "A.", "caption_10": "C.", "caption_2": "B.", "split": split}
        for n, split in enumerate(["restval", "dev", "!"])
    ]
    entries, skipped = parquet(tmp_path / "all.parquet", *rows)
    assert [entry.captions for entry in entries] == [("A.", "B.", "C.")] * 2
    assert [(e.split, e.file_name) for e in entries] == [("train", "all-0-0"), ("val", "all-0-1")]
    assert entries[1].content.read() == jpeg(1) and "'!' is not a name" in skipped[0]


@pytest.mark.parametrize("column", ["split", "subset"])
def test_the_numbers_of_a_class_label_are_splits(tmp_path, column):
    features = {column: {"names": ["test", "training", "validation"], "_type": "ClassLabel"}}
    metadata = {"huggingface": json.dumps({"info": {"features": features}})}
    rows = [row(n, **{column: split}) for n, split in enumerate([0, 1, 2, -1])]
    entries, skipped = parquet(tmp_path / "all.parquet", *rows, metadata=metadata)
    assert [entry.split for entry in entries] == ["test", "train", "val"] and len(skipped) == 1


def test_rows_with_equal_pictures_are_one_image_whatever_their_names(tmp_path, capsys):
    rows = [row(n, caption=f"{said} {n}.") for said in "ab" for n in range(2)]
    entries, _ = parquet(tmp_path / "train.parquet", *rows)
    assert [entry.captions for entry in entries] == [("a 0.", "b 0."), ("a 1.", "b 1.")]
    pictures = [(0, "a"), (1, "b"), (0, "c"), (0, "d")]
    rows = [row(n, filename="cat.jpg", caption=said) for n, said in pictures]
    rows.append(row(0, image={"bytes": None, "path": "0.jpg"}, filename="cat.jpg", caption="e"))
    rows.append(row(0, image={"bytes": jpeg(0), "path": None}, filename="dog.jpg", caption="f"))
    entries, _ = parquet(tmp_path / "train.parquet", *rows)
    assert [entry.captions for entry in entries] == [("a", "c", "d", "f"), ("b",), ("e",)]
    assert [entry.id for entry in entries] == [0, 1, 2]
    with pytest.raises(ValueError, match="the cell of the picture has no bytes"):
        entries[2].content.read()
    assert not capsys.readouterr().out


def test_equal_pictures_of_several_files_are_joined_and_told_in_several_splits(tmp_path, capsys):
    for number in range(2):
        rows = [{"jpg": jpeg(n), "caption": f"{number} {n}", "subset": "train"} for n in range(3)]
        rows[2]["subset"] = ["train", "test"][number]
        pq.write_table(pa.Table.from_pylist(rows), tmp_path / f"{number}.parquet")
    entries = READERS["parquet"].read(Source((tmp_path,)))
    assert [(entry.split, entry.captions) for entry in entries] == [
        ("train", ("0 0", "1 0")),
        ("train", ("0 1", "1 1")),
        ("train", ("0 2",)),
        ("test", ("1 2",)),
    ]
    note = "note: pictures in several splits: 1, such as 0-0-2 of train and 1-0-2 of test"
    assert note in capsys.readouterr().out
    settings = Settings(captions=tmp_path, out="out", backbone="pixels", splits="random")
    drawn = inputs.read(settings).entries  # the splits of the files do not count
    assert [entry.captions for entry in drawn] == [(f"0 {n}", f"1 {n}") for n in range(3)]
    assert "several" not in capsys.readouterr().out


def test_pictures_without_bytes_are_files_below_the_images(tmp_path):
    kind = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
    schema = pa.schema([("image", kind), ("caption", pa.string())])
    paths = ["a/0.jpg", f"{tmp_path}/a/1.jpg", "../x.jpg"]  # Hugging Face writes absolute ones
    paths += ["a/0.jpg"]
    rows = [{"image": {"bytes": None, "path": path}, "caption": "A dog."} for path in paths]
    pq.write_table(pa.Table.from_pylist(rows, schema=schema), tmp_path / "a.parquet")
    source = sources.Made([tmp_path / "a.parquet"], tmp_path).source()
    entries = READERS["parquet"].read(source)
    names = [(entry.file_name, entry.content) for entry in entries]
    assert names == [("a/0.jpg", None), ("a/1.jpg", None)] and len(source.skipped) == 1
    assert entries[0].captions == ("A dog.", "A dog.")
