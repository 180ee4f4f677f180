"""Tables of captions: csv, tsv, JSON lines and Parquet."""

import csv
import json
import pathlib
from unittest import mock

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from helpers import sources
from helpers.sources import jpeg

from tfcap.preparing.sources import READERS, Entry, Source, recognise, tables

DOGS = [Entry(0, "a.jpg", None, ("A dog.", "A cat.")), Entry(1, "b.jpg", None, ("Two.",))]


def read(tmp_path, content, layout="csv", images=None):
    """Entries, and the places of the rows that are skipped."""
    path = tmp_path / f"captions.{layout}"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    source = Source((path,), images=images)
    return READERS[layout].read(source), [row.place.partition(": ")[2] for row in source.skipped]


@pytest.mark.parametrize(
    "content",
    [
        "image,caption\na.jpg,A dog.\nb.jpg,Two.\na.jpg,A cat.\n",
        "\ufeffFile_Name;Text\r\na.jpg;A dog.\r\nb.jpg;Two.\r\na.jpg;A cat.",
        "caption\timage\rA dog.\ta.jpg\rTwo.\tb.jpg\rA cat.\ta.jpg",
        'path,"sentence",n\na.jpg,"A dog.",1\n\n"b.jpg",Two.,1\n,,\na.jpg, A cat. ,2',
        'Image Path,x,Caption 2,caption_1\na.jpg,,A cat.,A dog.\nb.jpg,,,"Two."\n',
        "img,CAPTIONS\na.jpg,\"['A dog.', 'A cat.']\"\nb.jpg,[\"Two.\"]\n",
        "photo,x,Sentences\na.jpg,,\"['A dog.' 'A cat.']\"\nb.jpg,,Two.\n",  # as NumPy writes it
    ],
)
def test_names_order_delimiters_and_line_ends_do_not_matter(tmp_path, content):
    assert read(tmp_path, content) == (DOGS, [])
    assert recognise([tmp_path / "captions.csv"]) in ("csv", "tsv")


def test_splits_and_ids_are_read_where_there_are_columns(tmp_path):
    rows = "id,Split,image,caption\n7,train,a.jpg,A dog.\n9,dev,b.jpg,\n7,train,a.jpg,A cat."
    expected = [
        Entry(7, "a.jpg", "train", ("A dog.", "A cat."), own_id=True),
        Entry(9, "b.jpg", "val", (), own_id=True),
    ]
    assert read(tmp_path, rows)[0] == expected
    rows = "id,image_id,image,caption\n1,10,a.jpg,A dog.\n2,10,a.jpg,A cat.\n"
    assert read(tmp_path, rows)[0][0].id == 10
    rows = "image,caption\nx/COCO_val2014_000000000042.jpg,A dog.\n000000000007.jpg,Two."
    assert [(entry.id, entry.own_id) for entry in read(tmp_path, rows)[0]] == [
        (42, True),
        (7, True),
    ]
    rows = rows.replace("000000000007", "other")  # one name is not of COCO
    assert [(entry.id, entry.own_id) for entry in read(tmp_path, rows)[0]] == [
        (0, False),
        (1, False),
    ]


@pytest.mark.parametrize("encoding", ["utf-8", "utf-16", "utf-8-sig", "cp1252"])
def test_encodings_of_spreadsheets(tmp_path, encoding, capsys):
    entries, _ = read(tmp_path, "image\tcaption\né.jpg\tUn café.".encode(encoding), "tsv")
    assert entries == [Entry(0, "é.jpg", None, ("Un café.",))]
    assert ("read as Windows-1252" in capsys.readouterr().out) == (encoding == "cp1252")


def test_bad_rows_are_skipped_and_listed(tmp_path):
    rows = [
        "image,caption,split,id",
        "a.jpg,A dog.,train,1",
        "../b.jpg,A dog.,train,2",
        "c.jpg,A dog.",
        "d.jpg,A dog.,holdout,4",
        "e.jpg,A dog.,train,five",
        "a.jpg,A dog.,val,1",
        "g.jpg,caf\udce9 é,train,8",
        ",A dog.,train,9",
        "h.jpg,A dog.,train,99999999999999999999",
        "ok.jpg,é,val,12",
    ]
    content = "\n".join(rows).encode("utf-8", "surrogateescape")
    entries, skipped = read(tmp_path, content)
    assert [entry.file_name for entry in entries] == ["a.jpg", "ok.jpg"]
    assert skipped == [f"line {number}" for number in range(3, 11)]


@pytest.mark.parametrize(
    ("cell", "text"),
    [
        ('"A dog\nand ""two"" cats"', 'A dog\nand "two" cats'),
        ('"Stop" sign', "Stop sign"),
        ('A "big" dog', 'A "big" dog'),
        ("A dog, black,", "A dog, black"),  # the last column needs no quotes
        ("[A] dog", "[A] dog"),
    ],
)
def test_quotes_and_delimiters_in_captions(tmp_path, cell, text):
    entries, skipped = read(tmp_path, f"image,caption\na.jpg,{cell}\nb.jpg,Two\n")
    assert [entry.captions for entry in entries] == [(text,), ("Two",)] and not skipped


def test_a_cell_that_csv_cannot_read_is_an_error_with_its_line(tmp_path):
    with pytest.raises(ValueError, match=r"csv: line 3: field larger than field limit"):
        read(tmp_path, f"image,caption\na.jpg,A dog.\nb.jpg,{'a' * 140_000}\n")


def test_no_line_of_a_table_has_a_null_character(tmp_path):
    """Python 3.10 refuses one, so that no table at all would be read."""
    path = tmp_path / "captions.csv"
    path.write_text("image,caption\na.jpg,A dog.\n")
    seen = []

    def reader(lines, **options):
        return csv.reader((seen.append(line) or line for line in lines), **options)

    with mock.patch.object(tables, "csv", mock.Mock(wraps=csv, reader=reader, Error=csv.Error)):
        assert len(list(tables.table_rows(path, ","))) == 2
    assert seen and "\0" not in "".join(seen)


def test_absolute_paths_are_found_below_a_folder_of_another_name(tmp_path, monkeypatch):
    real = tmp_path / "photos"
    (real / "x").mkdir(parents=True)
    (tmp_path / "here").mkdir()
    (tmp_path / "link").symlink_to(real)
    (real / "a.jpg").symlink_to(tmp_path / "store.jpg")  # the picture itself may be a link
    monkeypatch.chdir(tmp_path / "here")
    inside = [f"{tmp_path}/photos/a.jpg", f"{tmp_path}/link/x/b.jpg"]
    outside = [
        f"{tmp_path}/photos/../b.jpg",
        f"{tmp_path}/photos2/b.jpg",
        "/etc/passwd",
        "C:\\a.jpg",
    ]
    rows = "".join(f"{name},A dog.\n" for name in inside + outside)
    for folder in ("../photos", real, tmp_path / "link"):
        content = f"image,caption\n{rows}"
        entries, skipped = read(tmp_path, content, images=pathlib.Path(folder))
        assert [entry.file_name for entry in entries] == ["a.jpg", "x/b.jpg"], folder
        assert skipped == [f"line {number}" for number in range(4, 8)]


def test_lines_of_json_have_texts_lists_and_objects(tmp_path):
    rows = [
        {"Image": "a.jpg", "sentences": [{"raw": "A dog.", "tokens": ["a"]}, {"raw": "A cat."}]},
        {"file_name": "b.jpg", "caption": "Two.", "split": None, "id": None},
    ]
    content = "\n".join(map(json.dumps, rows)) + '\n[1]\n{"caption": "A."}\n{"image": 5}\n'
    assert read(tmp_path, content, "jsonl") == (DOGS, ["line 3", "line 4", "line 5"])


def test_names_of_several_files_tell_splits_that_lines_lack(tmp_path):
    paths = []
    for number, split in enumerate(("train", "val", "test")):
        paths.append(tmp_path / f"captions_{split}.jsonl")
        row = {"captions": ["A dog .", "Two ."], "image": f"{number}.jpg"}
        paths[-1].write_text(json.dumps(row) + "\n")
    assert recognise(paths) == "jsonl"
    entries = READERS["jsonl"].read(Source(tuple(paths)))
    assert [entry.split for entry in entries] == ["train", "val", "test"]
    more = paths[0].rename(tmp_path / "train_2.jsonl")
    paths[1].rename(paths[0])
    entries = READERS["jsonl"].read(Source((paths[0], more)))  # files of train alone
    assert [entry.split for entry in entries] == [None, None]


# ---- Parquet ------------------------------------------------------------------------------------


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
        for n, split in enumerate(["restval", "dev", "moon"])
    ]
    entries, skipped = parquet(tmp_path / "all.parquet", *rows)
    assert [entry.captions for entry in entries] == [("A.", "B.", "C.")] * 2
    assert [(e.split, e.file_name) for e in entries] == [("train", "all-0-0"), ("val", "all-0-1")]
    assert entries[1].content.read() == jpeg(1) and "'moon' is not one of" in skipped[0]


def test_the_numbers_of_a_class_label_are_splits(tmp_path):
    features = {"split": {"names": ["test", "training", "validation"], "_type": "ClassLabel"}}
    metadata = {"huggingface": json.dumps({"info": {"features": features}})}
    rows = [row(n, split=split) for n, split in enumerate([0, 1, 2, -1])]
    entries, skipped = parquet(tmp_path / "all.parquet", *rows, metadata=metadata)
    assert [entry.split for entry in entries] == ["test", "train", "val"] and len(skipped) == 1


def test_rows_with_the_same_id_or_name_and_the_same_picture_are_joined(tmp_path):
    rows = [row(n, cocoid=7 + n, caption=f"{said} {n}.") for said in "ab" for n in range(2)]
    entries, _ = parquet(tmp_path / "train.parquet", *rows)
    assert [entry.captions for entry in entries] == [("a 0.", "b 0."), ("a 1.", "b 1.")]
    pictures = [(0, "a"), (1, "b"), (0, "c"), (0, "d")]
    rows = [row(n, filename="cat.jpg", caption=said) for n, said in pictures]
    rows.append(row(0, image={"bytes": None, "path": "0.jpg"}, filename="cat.jpg", caption="e"))
    rows.append(row(0, filename="dog.jpg", caption="f"))
    entries, _ = parquet(tmp_path / "train.parquet", *rows)
    assert [entry.captions for entry in entries] == [("a", "c", "d"), ("b",), ("e",), ("f",)]
    assert [entry.id for entry in entries] == [0, 1, 2, 3]
    with pytest.raises(ValueError, match="the cell has no bytes"):
        entries[2].content.read()


def test_pictures_without_bytes_are_files_below_the_images(tmp_path):
    kind = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
    schema = pa.schema([("image", kind), ("caption", pa.string())])
    paths = ["a/0.jpg", f"{tmp_path}/a/1.jpg", "../x.jpg"]  # Hugging Face writes absolute ones
    rows = [{"image": {"bytes": None, "path": path}, "caption": "A dog."} for path in paths]
    pq.write_table(pa.Table.from_pylist(rows, schema=schema), tmp_path / "a.parquet")
    source = sources.Made([tmp_path / "a.parquet"], tmp_path).source()
    entries = READERS["parquet"].read(source)
    names = [(entry.file_name, entry.content) for entry in entries]
    assert names == [("a/0.jpg", None), ("a/1.jpg", None)] and len(source.skipped) == 1
