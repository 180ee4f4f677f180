"""Tables of captions: csv, tsv, JSON lines and Parquet."""

import csv
import json
import pathlib
from unittest import mock

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from helpers.sources import jpeg

from tfcap.preparing.sources import READERS, recognise, tables
from tfcap.preparing.sources.entry import Entry, Source

DOGS = [Entry(0, "a.jpg", None, ("A dog.", "A cat.")), Entry(1, "b.jpg", None, ("Two.",))]


def read(tmp_path, content, layout="csv", images=None):
    """Entries, and the locations of the rows that are skipped."""
    path = tmp_path / f"captions.{layout}"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    source = Source((path,), images=images)
    return READERS[layout].read(source), [row.location.partition(": ")[2] for row in source.skipped]


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
        Entry(7, "a.jpg", "train", ("A dog.", "A cat."), has_id=True),
        Entry(9, "b.jpg", "val", (), has_id=True),
    ]
    assert read(tmp_path, rows)[0] == expected
    rows = "id,image_id,image,caption\n1,10,a.jpg,A dog.\n2,10,a.jpg,A cat.\n"
    assert read(tmp_path, rows)[0][0].id == 10
    rows = "image,caption\nx/COCO_val2014_000000000042.jpg,A dog.\n000000000007.jpg,Two."
    assert [(entry.id, entry.has_id) for entry in read(tmp_path, rows)[0]] == [
        (42, True),
        (7, True),
    ]
    rows = rows.replace("000000000007", "other")  # one name is not of COCO
    assert [(entry.id, entry.has_id) for entry in read(tmp_path, rows)[0]] == [
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
        "d.jpg,A dog.,?,4",
        "a.jpg,A dog.,val,1",
        "g.jpg,caf\udce9 é,train,8",
        ",A dog.,train,9",
        "ok.jpg,é,val,12",
    ]
    content = "\n".join(rows).encode("utf-8", "surrogateescape")
    entries, skipped = read(tmp_path, content)
    assert [entry.file_name for entry in entries] == ["a.jpg", "ok.jpg"]
    assert skipped == [f"line {number}" for number in range(3, 9)]


ROWS = [(name, text) for name, text in (("a.jpg", "A dog."), ("b.jpg", "Two."))]


@pytest.mark.parametrize(
    ("ids", "expected"),
    [
        (["7", "9"], [7, 9]),
        (["7.0", "9.0"], [7, 9]),  # pandas
        ([7.0, 9], [7, 9]),
        ([None, ""], None),
        (["GCC_train_1", "GCC_train_2"], "a.jpg has no whole number in it"),
        (["7", "x"], "b.jpg has no whole number in it"),
        ([7.5, 1e300], "a.jpg has no whole number in it"),
        ([-1, True], "a.jpg has no whole number in it"),
        (["7.0", ""], "b.jpg has no whole number in it"),
        (["7", "99999999999999999999"], "b.jpg has no whole number in it"),
        ([7, "7"], "a.jpg and b.jpg have the same id 7"),  # of a person or a study
    ],
)
def test_a_column_of_ids_counts_if_it_has_a_whole_number_for_each_picture(
    tmp_path, ids, expected, capsys
):
    rows = zip(ROWS, ids, strict=True)
    lines = [json.dumps({"image": n, "caption": text, "id": i}) for (n, text), i in rows]
    entries, skipped = read(tmp_path, "\n".join(lines), "jsonl")
    note = capsys.readouterr().out
    if isinstance(expected, list):
        assert [(e.id, e.has_id) for e in entries] == [(n, True) for n in expected] and not note
    else:
        numbered = [Entry(n, name, None, (text,)) for n, (name, text) in enumerate(ROWS)]
        assert entries == numbered and not skipped
        assert (f"note: the column 'id' is not used as the id of the pictures, because {expected}; "
                "the pictures are numbered\n" if expected else "") == note  # fmt: skip


@pytest.mark.parametrize("layout", ["csv", "tsv"])
def test_ids_of_captions_are_no_ids_of_pictures(tmp_path, layout, capsys):
    rows = "image,caption,id\na.jpg,A dog.,1\na.jpg,A cat.,2\nb.jpg,Two.,3\n"
    assert read(tmp_path, rows.replace(",", "\t" if layout == "tsv" else ","), layout) == (DOGS, [])
    assert "because a.jpg has the id 1 and the id 2" in capsys.readouterr().out


def test_a_name_with_a_whole_picture_is_cut_in_the_reason(tmp_path):
    content = json.dumps({"image": "QUJD" * 9000, "caption": "A dog."})
    path = tmp_path / "captions.jsonl"
    path.write_text(f"{content}\n" + json.dumps({"image": "a.jpg", "caption": "A dog."}))
    source = Source((path,))
    assert len(READERS["jsonl"].read(source)) == 1
    assert (
        "has 36000 characters" in source.skipped[0].reason and len(source.skipped[0].reason) < 200
    )


@pytest.mark.parametrize(
    ("cell", "texts"),
    [
        ('{"text": ["A dog.", "A cat."]}', ("A dog.", "A cat.")),  # Label Studio
        ('{"caption": "A dog."}', ("A dog.",)),
        ("{'raw': 'A dog.', 'tokens': ['a', 'dog']}", ("A dog.",)),
        ('[{"sentence": "A dog."}, "A cat."]', ("A dog.", "A cat.")),
        (r'["{\"text\": \"A dog.\"}", "{A} cat"]', ("A dog.", "{A} cat")),
        ("{A} dog", ("{A} dog",)),
    ],
)
@pytest.mark.parametrize("layout", ["csv", "tsv", "jsonl", "parquet"])
def test_an_object_in_a_cell_has_the_captions(tmp_path, cell, texts, layout):
    path = tmp_path / f"captions.{layout}"
    if layout == "parquet":
        pq.write_table(pa.Table.from_pylist([{"image": jpeg(0), "caption": cell}]), path)
    elif layout == "jsonl":
        path.write_text(json.dumps({"image": "a.jpg", "caption": cell}))
    else:
        with open(path, "w", newline="") as file:
            table = csv.writer(file, delimiter="\t" if layout == "tsv" else ",")
            table.writerows([["image", "caption"], ["a.jpg", cell]])
    (entry,) = READERS[layout].read(Source((path,)))
    assert entry.captions == texts


@pytest.mark.parametrize(
    ("column", "value", "split"),
    [
        ("split", "restval", "train"),
        ("subset", "Validation", "val"),
        ("split", "train2017", "train"),
        ("split", "qual_dev", "qual_dev"),  # DOCCI
        ("subset", "testA", "testA"),
        ("split", "hard cases", "hard_cases"),
        ("set", "test", "test"),
        ("Data Split", "train", "train"),
        ("split_name", "val", "val"),
        ("train_set", "COCO", None),
        ("partition", "3", None),  # of something else
        ("split", "", None),
    ],
)
def test_names_of_splits_in_a_column(tmp_path, column, value, split):
    rows = f"image,caption,{column}\na.jpg,A dog.,{value}\n"
    assert [entry.split for entry in read(tmp_path, rows)[0]] == [split]


def test_captions_with_a_mark_are_left_out(tmp_path):
    rows = "image,caption,Is Rejected,is_precanned\na.jpg,A dog.,False,0\na.jpg,spam,True,0\n"
    rows += "b.jpg,too dark,,1.0\n"
    entries, _ = read(tmp_path, rows)
    assert [(entry.captions, entry.rejected) for entry in entries] == [
        (("A dog.",), ("is_rejected",)),
        ((), ("is_precanned",)),
    ]


def test_a_json_list_is_read_as_its_rows_in_lines(tmp_path):
    rows = [{"file_name": "a.jpg", "text": "A dog.", "subset": "dev", "id": 7}]
    rows += [{"file_name": "b.jpg", "text": ["Two."], "subset": "test", "id": 9}]
    lines, _ = read(tmp_path, "\n".join(map(json.dumps, rows)), "jsonl")
    path = tmp_path / "captions.json"
    path.write_text(f"\ufeff\n{json.dumps(rows, indent=2)}")
    assert recognise([path]) == "jsonl"
    assert READERS["jsonl"].read(Source((path,))) == lines
    assert [(entry.id, entry.split) for entry in lines] == [(7, "val"), (9, "test")]


def test_a_list_whose_first_row_lacks_the_caption_is_recognised(tmp_path):
    path = tmp_path / "captions.json"
    path.write_text('[{"image": "a.jpg"}, {"image": "b.jpg", "caption": "A dog."}]')
    assert recognise([path]) == "blip"
    assert [entry.captions for entry in READERS["blip"].read(Source((path,)))] == [(), ("A dog.",)]


def test_a_json_object_of_columns_is_no_row(tmp_path):
    columns = {"image": {"0": "a.jpg", "1": "b.jpg"}, "caption": {"0": "A dog.", "1": "Two."}}
    path = tmp_path / "pandas.json"
    path.write_text(json.dumps(columns))
    with pytest.raises(ValueError, match="object with image, caption; .* Write a .* list of obj"):
        recognise([path])


@pytest.mark.parametrize("key", ["split", "subset"])
@pytest.mark.parametrize("layout", ["blip", "xmodaler", "gif"])
def test_the_split_of_a_row_counts_before_the_name_of_the_file(tmp_path, layout, key):
    keys = {
        "blip": ("image", "caption"),
        "xmodaler": ("img_path", "sentences"),
        "gif": ("gif", "caption"),
    }
    rows = [dict(zip(keys[layout], (f"{n}.gif", ["A dog."]), strict=True)) for n in range(2)]
    rows[0][key] = "test"
    path = tmp_path / "captions_train.json"
    path.write_text(json.dumps(rows))
    assert recognise([path]) == layout
    entries = READERS[layout].read(Source((path,)))
    assert [entry.split for entry in entries] == ["test", None if layout == "gif" else "train"]


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
    calls = []

    def reader(lines, **options):
        return csv.reader((calls.append(line) or line for line in lines), **options)

    with mock.patch.object(tables, "csv", mock.Mock(wraps=csv, reader=reader, Error=csv.Error)):
        assert len(list(tables.table_rows(path, ","))) == 2
    assert calls and "\0" not in "".join(calls)


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
