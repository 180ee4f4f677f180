"""Tables of captions: csv and tsv."""

import pathlib

import pytest

from tfcap.preparing.sources import Given, ImageEntry, read_csv, read_tsv
from tfcap.preparing.sources.auto import recognise


def read(tmp_path, content, reader=read_csv, images=None, **options):
    path = tmp_path / "captions.csv"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    given = Given((path,), images=images, **options)
    return reader(given), [row.place.partition(": ")[2] for row in given.skipped]


@pytest.mark.parametrize(
    "content",
    [
        "image,caption\na.jpg,A dog.\nb.jpg,Two.\na.jpg,A cat.\n",
        "\ufeffFile_Name;Text\r\na.jpg;A dog.\r\nb.jpg;Two.\r\na.jpg;A cat.",
        "caption\timage\rA dog.\ta.jpg\rTwo.\tb.jpg\rA cat.\ta.jpg",
        "a.jpg,A dog.\nb.jpg,Two.\na.jpg,A cat.\n",
        "what it shows,where it is\nA dog.,a.jpg\nTwo.,b.jpg\nA cat.,a.jpg",
        'path,"sentence",n\na.jpg,"A dog.",1\n\n"b.jpg",Two.,1\n,,\na.jpg, A cat. ,2',
    ],
)
def test_names_order_separators_and_line_ends_do_not_matter(tmp_path, content):
    entries, skipped = read(tmp_path, content)
    assert entries == [
        ImageEntry(0, "a.jpg", None, ("A dog.", "A cat.")),
        ImageEntry(1, "b.jpg", None, ("Two.",)),
    ]
    assert not skipped and recognise([tmp_path / "captions.csv"]) in ("csv", "tsv")


def test_splits_and_ids_are_read_where_there_are_columns(tmp_path):
    content = "id,split,image,caption\n7,train,a.jpg,A dog.\n9,dev,b.jpg,\n7,train,a.jpg,A cat."
    assert read(tmp_path, content)[0] == [
        ImageEntry(7, "a.jpg", "train", ("A dog.", "A cat."), own_id=True),
        ImageEntry(9, "b.jpg", "val", (), own_id=True),
    ]


@pytest.mark.parametrize(
    ("first", "is_header"),
    [
        ("scan1.tif,A scan", False),
        ("train/scan,A scan", False),
        ("0001,A scan", False),
        ("photo,A scan", True),
        ("where it is,what it shows", True),
    ],
)
def test_a_first_row_is_taken_for_names_only_if_it_looks_so(tmp_path, first, is_header, capsys):
    entries, _ = read(tmp_path, f"\n{first}\na.jpg,A dog.\nb.jpg,Two.\n")
    assert [one.file_name for one in entries[-2:]] == ["a.jpg", "b.jpg"]
    assert len(entries) == (2 if is_header else 3)
    note = f"the first row has the names of columns: {first!r}"
    assert (note in capsys.readouterr().out) == is_header


@pytest.mark.parametrize("encoding", ["utf-8", "utf-16", "utf-8-sig", "cp1252"])
def test_encodings_of_spreadsheets(tmp_path, encoding, capsys):
    entries, _ = read(tmp_path, "image\tcaption\né.jpg\tUn café.".encode(encoding), read_tsv)
    assert entries == [ImageEntry(0, "é.jpg", None, ("Un café.",))]
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
        "f.jpg,A dog.,train,1",
        "g.jpg,caf\udce9 é,train,8",
        ",A dog.,train,9",
        "h.jpg,A dog.,train,99999999999999999999",
        "ok.jpg,é,val,12",
    ]
    content = "\n".join(rows).encode("utf-8", "surrogateescape")
    entries, skipped = read(tmp_path, content)
    assert [entry.file_name for entry in entries] == ["a.jpg", "ok.jpg"]
    assert skipped == [f"line {number}" for number in range(3, 12)]


def test_an_id_is_that_of_the_image(tmp_path):
    table = "id,image_id,image,caption\n1,10,a.jpg,A dog.\n2,10,a.jpg,A cat.\n"
    entries, skipped = read(tmp_path, table)
    assert [(one.id, one.captions) for one in entries] == [(10, ("A dog.", "A cat."))]
    assert not skipped
    with pytest.raises(ValueError, match="line 3: the id must be that of the image.*caption_id"):
        read(tmp_path, "id,image,caption\n1,a.jpg,A dog.\n2,a.jpg,A cat.\n")
    table = "image_id,image,caption\n1,a.jpg,A dog.\n2,a.jpg,A cat.\n"
    assert read(tmp_path, table)[1] == ["line 3"]  # one wrong number


@pytest.mark.parametrize("image", ["image", "photo"])  # the second is found by its picture files
@pytest.mark.parametrize("name", ["captions", "Sentences"])
def test_a_cell_may_have_a_list_of_captions(tmp_path, name, image):
    rows = ['a.jpg,"[""A dog."", ""A cat.""]"', 'b.jpg,["Two.", "Three."]', "c.jpg,Four."]
    rows += ["d.jpg,[Five.", 'e.jpg,"[5]"']
    entries, skipped = read(tmp_path, "\n".join([f"{image},{name}", *rows]))
    captions = [("A dog.", "A cat."), ("Two.", "Three."), ("Four.",)]
    assert [one.captions for one in entries] == captions and skipped == ["line 5", "line 6"]
    entries, _ = read(tmp_path, "image,caption\na.jpg,[A] dog.\n")  # this column has one caption
    assert entries[0].captions == ("[A] dog.",)


def test_commas_without_quotes_are_put_together_again(tmp_path, capsys):
    entries, skipped = read(tmp_path, "image;caption\na.jpg;A dog; black\nb.jpg;Two;;\n")
    assert [entry.captions for entry in entries] == [("A dog; black",), ("Two",)] and not skipped
    assert "captions.csv: 1 captions have the separator" in capsys.readouterr().out
    _, skipped = read(tmp_path, "caption,image\nA dog, black,a.jpg\nTwo,b.jpg")
    assert skipped == ["line 2"]


def test_a_quote_that_does_not_end_joins_no_rows(tmp_path):
    content = 'image,caption\na.jpg,A dog.\nb.jpg,"A dog.\n' + "c.jpg,Two.\n" * 50
    entries, skipped = read(tmp_path, content)
    assert [len(one.captions) for one in entries] == [1, 50] and skipped == ["line 3"]
    rows = ['a.jpg,"Hello world', "b.jpg,A dog", 'c.jpg,A cat on a "mat"', "d.jpg,Two"]
    entries, skipped = read(tmp_path, "\n".join(["image,caption", *rows]))
    captions = ["A dog", 'A cat on a "mat"', "Two"]
    assert [one.captions[0] for one in entries] == captions and skipped == ["line 2"]


@pytest.mark.parametrize(
    ("cell", "text"),
    [
        ('"A dog\nand ""two"" cats"', 'A dog\nand "two" cats'),
        ('"Stop" sign', "Stop sign"),
        ('"A dog" ', "A dog"),
        ('A "big" dog', 'A "big" dog'),
    ],
)
def test_quotes_that_end_are_read(tmp_path, cell, text):
    entries, skipped = read(tmp_path, f"image,caption\na.jpg,{cell}\nb.jpg,Two\n")
    assert [one.captions for one in entries] == [(text,), ("Two",)] and not skipped


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "must have names of pictures in a column path, image"),
        ("a,b\n1,2\n", "must have names of pictures .* Received: 'a,b'"),
        ("image,text,caption\na.jpg,A dog.,\n", "'caption' is empty in all rows.* those of 'text'"),
        ("image,caption\n", "must have at least one usable row"),
        ("image,caption\n../a.jpg,x\n", "must have at least one usable row"),
    ],
)
def test_a_table_without_captions_is_refused(tmp_path, content, message):
    with pytest.raises(ValueError, match=message):
        read(tmp_path, content)


@pytest.mark.parametrize(
    "header",
    [
        "image_name,comment_number,comment",
        "filepath,x,title",
        "Image Path,x,Caption",
        "img,x,alt_text",
    ],
)
def test_other_names_of_columns_are_known(tmp_path, header):
    ((entry,), _) = read(tmp_path, f"{header}\na.jpg,0,A dog.\n")
    assert (entry.file_name, entry.captions) == ("a.jpg", ("A dog.",))


def test_numbered_columns_and_equal_ones_are_all_captions(tmp_path):
    ((entry,), _) = read(tmp_path, "caption_2,image,caption_1\nTwo.,a.jpg,One.\n")
    assert entry.captions == ("One.", "Two.")
    ((entry,), _) = read(tmp_path, "image,caption,caption\na.jpg,One.,Two.\n")
    assert entry.captions == ("One.", "Two.")


def test_absolute_paths_below_the_folder_become_relative(tmp_path):
    content = f"image,caption\n{tmp_path}/images/x/a.jpg,A dog.\n/etc/passwd,A dog.\n"
    entries, skipped = read(tmp_path, content, images=tmp_path / "images")
    assert [entry.file_name for entry in entries] == ["x/a.jpg"] and skipped == ["line 3"]


def test_absolute_paths_are_found_below_a_folder_of_another_name(tmp_path, monkeypatch):
    real = tmp_path / "photos"
    (real / "x").mkdir(parents=True)
    (tmp_path / "here").mkdir()
    (tmp_path / "link").symlink_to(real)
    (real / "a.jpg").symlink_to(tmp_path / "store.jpg")  # the picture itself may be a link
    monkeypatch.chdir(tmp_path / "here")
    inside = [f"{tmp_path}/photos/a.jpg", f"{tmp_path}/link/x/a.jpg"]
    outside = [f"{tmp_path}/photos/../b.jpg", f"{tmp_path}/photos2/b.jpg", "/etc/passwd"]
    outside += [f"{tmp_path}/link/../b.jpg", f"{tmp_path}/link/x/.."]
    rows = "".join(f"{name},A dog.\n" for name in inside + outside)
    for folder in ("../photos", real, tmp_path / "link", "../here/../link"):
        content = f"image,caption\n{rows}".encode()
        entries, skipped = read(tmp_path, content, images=pathlib.Path(folder))
        assert [entry.file_name for entry in entries] == ["a.jpg", "x/a.jpg"], folder
        assert skipped == [f"line {number}" for number in range(4, 4 + len(outside))]


def test_several_tables_are_one_data_set(tmp_path):
    for name in "ab":
        (tmp_path / name).write_text(f"image,caption\n{name}.jpg,A dog.\nc.jpg,Of {name}.")
    entries = read_csv(Given((tmp_path / "a", tmp_path / "b")))
    assert [(entry.file_name, len(entry.captions)) for entry in entries] == [
        ("a.jpg", 1), ("c.jpg", 2), ("b.jpg", 1),
    ]  # fmt: skip
