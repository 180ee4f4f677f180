"""Rows of published data sets: what their names and values mean, and how files become rows."""

import re

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from helpers import published
from helpers.sources import coco_file, jpeg, write_pictures

from tfcap import errors
from tfcap.preparing import inputs
from tfcap.preparing.settings import Settings
from tfcap.preparing.sources import READERS, recognise
from tfcap.preparing.sources.entry import Source


def read(path, *lines, layout="", together=None, **changes):
    """The entries of a file that is recognised, and its source."""
    published.write(path, *lines, together=together)
    source = Source((path,), **changes)
    return READERS[layout or recognise([path])].read(source), source


ROWS = {
    "R2Gen": ({"image_path": ["a/0.png"], "report": "A kite ."}, "a/0.png"),
    "ArtEmis": ({"art_style": "Cubism", "painting": "p", "utterance": "A kite ."}, "Cubism/p.jpg"),
    "ROCOv2": ({"ID": "ROCO_1", "Caption": "A kite ."}, "ROCO_1"),
    "Crossmodal-3600": (
        {"image/key": "0a", "image/locale": "fr", "id": {"caption": ["A kite ."]}},
        "0a",
    ),
    "TextCaps": ({"image_path": "train/a.jpg", "caption_str": "A kite ."}, "train/a.jpg"),
    "LLaVA": (
        {
            "image": "a.jpg",
            "conversations": [
                {"from": "human", "value": "<image>"},
                {"from": "gpt", "value": "A kite ."},
            ],
        },
        "a.jpg",
    ),
}


@pytest.mark.parametrize("kind", ["lines", "list", "of splits", "data"])
@pytest.mark.parametrize("name", ROWS)
def test_a_row_means_the_same_in_every_kind_of_json(tmp_path, name, kind):
    row, file = ROWS[name]
    path = tmp_path / "captions.json"
    whole = {
        "lines": None,
        "list": [row] * 2,
        "of splits": {"train": [row] * 2, "val": []},
        "data": {"info": {"year": 1}, "data": [row] * 2},
    }
    entries, source = read(path, row, row, together=whole[kind])
    assert [(e.file_name, e.captions) for e in entries] == [(file, ("A kite .",) * 2)]
    assert entries[0].split == ("train" if kind == "of splits" else None) and not source.skipped


def test_a_caption_may_have_several_pictures(tmp_path):
    rows = [{"image_path": [f"{n}a.png", f"{n}b.png"][: n + 1], "report": "x"} for n in (0, 1, 2)]
    entries, _ = read(tmp_path / "annotation.json", together={"train": rows})
    names = [("0a.png",), ("1a.png", "1b.png"), ("2a.png", "2b.png")]
    assert [entry.pictures for entry in entries] == names
    assert [entry.file_name for entry in entries] == ["0a.png", "1a.png", "2a.png"]


def test_an_id_is_the_name_of_a_picture_only_where_nothing_else_is(tmp_path, capsys):
    entries, _ = read(tmp_path / "a.csv", "image,id,caption", "a.jpg,x7,A.", "b.jpg,x8,B.")
    assert [entry.file_name for entry in entries] == ["a.jpg", "b.jpg"]
    assert "the column 'id' is not used" in capsys.readouterr().out
    entries, _ = read(tmp_path / "b.csv", "id,caption", "0x7,A.", "0x8,B.")
    assert [entry.file_name for entry in entries] == ["0x7", "0x8"]
    entries, _ = read(tmp_path / "c.csv", "id,caption", "07,A.", "08,B.")
    assert [(entry.file_name, entry.id) for entry in entries] == [("07", 7), ("08", 8)]
    assert not capsys.readouterr().out  # the names are no ids that do not fit


def test_an_id_is_no_name_of_a_picture_in_a_file_whose_first_row_names_one(tmp_path):
    rows = [{"image": "a.jpg", "id": 5, "caption": "A."}, {"id": 5, "caption": "B."}]
    entries, source = read(tmp_path / "a.jsonl", *rows)
    assert [(entry.file_name, entry.id, entry.has_id) for entry in entries] == [("a.jpg", 5, True)]
    assert source.skipped[0].reason == "the row has no column of pictures; it has: id, caption"


def test_a_language_is_a_column_a_value_or_missing(tmp_path, capsys):
    path = tmp_path / "a.json"
    rows = [{"image": "a.jpg", "enCap": ["A kite ."], "chCap": ["风筝"]}] * 2
    entries, _ = read(path, together=rows, language="CH")
    assert entries[0].captions == ("风筝",) * 2
    with pytest.raises(errors.UsageError, match="Give as `language` one of en, ch"):
        read(path, together=rows)
    with pytest.raises(ValueError, match=r"no usable row. 2 rows .*languages than de \(en, ch\)"):
        read(path, together=rows, language="de")
    rows.append({"image": "b.jpg", "chCap": ["狗"]})
    entries, _ = read(path, together=rows, language="en")
    assert [entry.file_name for entry in entries] == ["a.jpg"]
    lines = ("image,caption,Language", "a.jpg,A kite .,English", "a.jpg,Zmaj .,Slovene")
    entries, source = read(tmp_path / "a.csv", *lines, language="english")
    assert entries[0].captions == ("A kite .",) and not source.skipped
    assert "note: 1 rows are left out: they are in other languages" in capsys.readouterr().out
    entries, _ = read(tmp_path / "a.csv", *lines)
    assert entries[0].captions == ("A kite .", "Zmaj .")
    assert "several languages (1 English, 1 Slovene): `language`" in capsys.readouterr().out
    with pytest.raises(errors.UsageError, match="`language=en`: no column .*are: image, caption"):
        read(tmp_path / "b.csv", "image,caption", "a.jpg,A.", language="en")


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ({"image_path": [], "report": "x"}, "the file name of the picture is empty"),
        ({"image_path": [7], "report": "x"}, "the file name must be text, not 7"),
        ({"report": "x"}, "no column of pictures.*it has: report"),
        ({"image_path": "b.jpg", "report": 7}, "the caption under 'report' must be text, not 7"),
        ({"image_path": "b.jpg", "report": "x", "split": 7}, "'split': the split 7 is not a name"),
        ("b.jpg", r"the row must be a JSON object, not \['b.jpg'\]"),
    ],
)
def test_a_broken_row_is_named_with_its_list_and_key(tmp_path, row, reason):
    good = {"image_path": "a.jpg", "report": "A kite ."}
    entries, source = read(tmp_path / "a.json", together={"train": [good, row], "val": []})
    assert [entry.file_name for entry in entries] == ["a.jpg"]
    assert re.search(reason, source.skipped[0].reason)
    assert source.skipped[0].location.endswith("a.json: train 1")


def test_rows_that_are_not_meant_to_be_used_are_counted_and_not_skipped(tmp_path, capsys):
    lines = ["art_style,painting,utterance,split", "Baroque,p,A kite .,train"]
    entries, source = read(
        tmp_path / "a.csv", *lines, *["Baroque,q,Calm .,rest"] * 200, most_skipped=0
    )
    assert [entry.file_name for entry in entries] == ["Baroque/p.jpg"] and not source.skipped
    said = capsys.readouterr()
    assert "note: 200 rows are left out: they are of the split rest\n" in said.out
    assert "skipped" not in said.err
    turns = [{"from": who, "value": "A kite ."} for who in ("human", "gpt")]
    rows = [{"image": f"{n}.jpg", "conversations": turns * n} for n in (1, 2)]
    entries, _ = read(tmp_path / "a.json", together=rows)
    assert [entry.file_name for entry in entries] == ["1.jpg"]
    assert "1 rows are left out: they are conversations with" in capsys.readouterr().out


def test_names_of_files_tell_splits_of_tables_only_where_no_column_has_file_names(tmp_path):
    def splits(*rows):
        paths = tuple(tmp_path / f"{split}.csv" for split in ("train", "val"))
        for number, path in enumerate(paths):
            published.write(path, *(row.format(number) for row in rows))
        return [entry.split for entry in READERS[recognise(paths)].read(Source(paths))]

    assert splits("image,caption", "{}.jpg,A kite .") == [None, None]  # they are drawn
    assert splits("ID,Caption", "ROCO_{},A kite .") == ["train", "val"]


def test_names_of_files_tell_no_splits_of_gif_files(tmp_path):
    paths = tuple(tmp_path / f"{split}.jsonl" for split in ("train", "val"))
    for path in paths:
        published.write(path, {"gif": f"{path.stem}.gif", "caption": "A kite ."})
    assert [entry.split for entry in READERS[recognise(paths)].read(Source(paths))] == [None, None]


def test_a_clip_of_gif_files_is_named_by_video_or_gif_alone(tmp_path):
    row = {"video": "v.mp4", "start": 2.5, "end": 9, "image": "v.jpg", "caption": "A kite ."}
    rows = [row, {"gif": "w", "split": "test", "caption": []}, {"caption": "A kite ."}]
    entries, source = read(tmp_path / "a.json", *rows, layout="gif")
    assert [(e.file_name, len(e.captions)) for e in entries] == [("v.mp4", 1), ("w", 0)]
    assert [row.reason for row in source.skipped] == ["the row has no 'gif'; it has: caption"]
    lines = ("video,start,end,caption", "v.mp4,2.5,9,A kite .")
    assert read(tmp_path / "a.csv", *lines)[0][0].file_name == "v.mp4"


def test_other_lists_beside_that_of_the_rows_are_not_read(tmp_path):
    row = {"file": "a.jpg", "report": "A kite ."}
    content = {"version": 1, "licenses": [{"id": 1, "name": "free"}], "rows": [row]}
    entries, source = read(tmp_path / "a.json", together=content, layout="json")
    assert [entry.file_name for entry in entries] == ["a.jpg"] and not source.skipped


@pytest.mark.parametrize("key", ["testA", "minival"])
def test_lists_are_splits_if_one_has_a_usual_name_whatever_is_beside_them(tmp_path, key, capsys):
    lists = {name: [{"image": f"{name}.jpg", "caption": "A kite ."}] for name in ("train", key)}
    lists |= {"version": "1", "test": [{"image": "c.jpg"}], "licenses": [{"id": 1, "name": "x"}]}
    entries, source = read(tmp_path / "a.json", together=lists)
    found = [(entry.file_name, entry.split) for entry in entries]
    assert found == [("train.jpg", "train"), (f"{key}.jpg", key), ("c.jpg", "test")]
    assert "pictures and captions are left out: licenses\n" in capsys.readouterr().out
    assert not source.skipped


def test_a_list_of_other_things_makes_no_folders(tmp_path):
    content = {
        "cards": [{"image": "a.jpg", "caption": "A kite ."}],
        "kinds": [{"id": 1, "name": "x"}],
    }
    entries, _ = read(tmp_path / "a.json", together=content)
    assert [entry.file_name for entry in entries] == ["a.jpg"]


def test_values_of_an_object_that_are_no_rows_are_skipped(tmp_path):
    content = {"a": {"caption": "A."}, "b": "{}", "c": {"caption": "C."}}
    entries, source = read(tmp_path / "a.json", together=content)
    assert [entry.file_name for entry in entries] == ["a", "c"]
    assert source.skipped == [
        (f"{tmp_path}/a.json: b", "the row must be a JSON object, not ['{}']")
    ]


def test_a_list_of_rows_is_found_behind_lists_of_other_things(tmp_path):
    others = [{"id": 1, "name": "free", "terms": [{"image": "x.jpg", "text": "x"}]}]
    content = {"licenses": others, "data": [{"image": "a.jpg", "caption": "A kite ."}]}
    entries, _ = read(tmp_path / "a.json", together=content)
    assert [entry.file_name for entry in entries] == ["a.jpg"]
    with pytest.raises(ValueError, match="No layout|no layout"):
        read(tmp_path / "b.json", together={"licenses": others})


def test_a_column_is_no_language_because_its_name_ends_in_cap(tmp_path):
    with pytest.raises(ValueError, match="must have a column of pictures .*it has: image, recap"):
        read(tmp_path / "b.csv", "image,recap", "a.jpg,A kite .")


@pytest.mark.parametrize("value", [7, None])
def test_keys_of_a_broken_row_are_told(tmp_path, value):
    rows = [{"video": "a", "caption": "A kite ."}, {"video": value, "caption": "x"}]
    _, source = read(tmp_path / "a.json", *rows, images=tmp_path)
    assert re.search(r"cannot be read \(.*; it has: video, caption", source.skipped[0].reason)
    turn = {"from": "gpt", "value": "A kite ."}
    rows = [{"image": "a.jpg", "conversations": [{**turn, "value": v}]} for v in ("x", 7)]
    _, source = read(tmp_path / "b.json", *rows)
    assert source.skipped[0].reason == "the caption under 'conversations' must be text, not 7"


@pytest.mark.parametrize(("row", "name"), [({"image": "a.jpg"}, "a.jpg"), ({}, "7")])
def test_the_key_of_a_row_is_its_picture_if_the_row_names_none(tmp_path, row, name):
    entries, _ = read(tmp_path / "a.json", together={"7": {**row, "caption": "A kite ."}})
    assert [entry.file_name for entry in entries] == [name]


def test_a_first_line_may_be_longer_than_what_recognition_reads(tmp_path):
    row = {"image_id": "0a", "caption": "A kite .", "traces": [[0.25] * 40_000]}
    entries, _ = read(tmp_path / "a.jsonl", row, {**row, "image_id": "0b"})
    assert [entry.file_name for entry in entries] == ["0a", "0b"]


# ---- columns -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("lines", "columns", "expected"),
    [
        (["7,x,a.jpg,A kite ."], {"image": "3", "caption": "4"}, -1),
        (["7\tx\ta.jpg\tA kite ."], {"image": "3", "caption": "4", "id": "1"}, 7),
        (["n;where;pic;said", "7;x;a.jpg;A kite ."], {"image": "pic", "caption": "said"}, -1),
        (["n,where,image,said", "7,x,a.jpg,A kite ."], {"image": "3", "caption": "4"}, -1),
        (["id,text,image,said", "7,no,a.jpg,A kite ."], {"image": "3", "caption": "4"}, -1),
        (
            ["id,text,image,said", "7,no,a.jpg,A kite ."],
            {"image": "image", "caption": "said", "id": "id"},
            7,
        ),
    ],
)
def test_columns_are_chosen_by_number_or_name(tmp_path, lines, columns, expected):
    path = tmp_path / "captions.txt"
    published.write(path, *lines)
    text = ",".join(f"{part}={column}" for part, column in columns.items())
    settings = Settings("out", path, columns=text, images=tmp_path, backbone="pixels").checked()
    result = inputs.read(settings)
    (entry,) = result.entries
    assert (entry.file_name, entry.captions) == ("a.jpg", ("A kite .",))
    assert entry.id == (expected if expected >= 0 else 0) and not result.skipped


def test_keys_of_json_are_chosen_too(tmp_path):
    path = tmp_path / "a.json"
    published.write(path, together=[{"pic": "a.jpg", "said": "A.", "text": "no"}, {"pic": "b"}])
    settings = Settings("out", path, columns="image=pic,caption=said", backbone="pixels")
    result = inputs.read(settings.checked())
    assert [e.captions for e in result.entries] == [("A.",)]
    assert "the row has no 'said'" in result.skipped[0].reason


def test_wrong_columns_are_refused(tmp_path):
    published.write(path := tmp_path / "a.csv", "7,a.jpg,A kite .")
    for text in ("image=2", "caption=3", "image=2,caption=3,mood=1", "3,6"):
        with pytest.raises(errors.UsageError, match="`columns` must name .*as in image=3,cap"):
            Settings("out", path, columns=text).checked()
    for text, there in (("image=2,caption=4", "column 4; there are: 1 to 3"),
                        ("image=x,caption=7", "column x; there are: 7, a.jpg, A")):  # fmt: skip
        with pytest.raises(errors.UsageError, match=f"`columns`: there is no {there}"):
            inputs.read(Settings("out", path, columns=text, backbone="pixels").checked())


@pytest.mark.parametrize(("name", "value"), [("columns", "image=1,caption=2"), ("language", "en")])
def test_columns_and_language_are_refused_where_no_row_is_read(tmp_path, name, value):
    path = coco_file(tmp_path / "captions_train2014.json", [9])
    settings = Settings("out", path, source="coco", backbone="pixels", **{name: value})
    with pytest.raises(errors.UsageError, match=f"`{name}` cannot be used with `source=coco`"):
        inputs.read(settings.checked())


def test_a_language_is_chosen_in_parquet_files(tmp_path):
    rows = [{"image": jpeg(n), "english": f"A kite {n}", "hindi": "पतंग"} for n in range(2)]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "a.parquet")
    source = Source((tmp_path / "a.parquet",), language="hindi")
    assert recognise(source.captions) == "parquet"
    entries = READERS["parquet"].read(source)
    assert [entry.captions for entry in entries] == [("पतंग",)] * 2


# ---- web addresses -----------------------------------------------------------------------------

URL = "https://img.example.org/1.jpg"


@pytest.mark.parametrize(
    ("name", "lines", "together"),
    [
        ("cc3m.tsv", [f"a kite\t{URL}"], None),
        ("cc12m.tsv", [f"{URL}\ta kite"], None),
        ("sbu.json", [], {"image_urls": [URL], "user_names": ["x"], "captions": ["a kite"]}),
        ("laion.csv", ["url,caption,key", f"{URL},a kite,7"], None),
        ("some.csv", ["id,url,caption", f"7,{URL},a kite"], None),
        ("some.json", [], [{"id": 7, "url": URL, "caption": "a kite"}]),
    ],
)
def test_files_of_web_addresses_are_refused_with_what_to_do(tmp_path, name, lines, together):
    published.write(tmp_path / name, *lines, together=together)
    with pytest.raises(ValueError, match="web addresses, download them with img2dataset, and give"):
        recognise([tmp_path / name])


@pytest.mark.parametrize(
    ("lines", "column"),
    [
        (["image,caption", f"{URL},A kite ."], "image"),
        ([{"img": [URL, URL], "caption": "A kite ."}], "img"),
    ],
)
def test_web_addresses_in_a_column_of_pictures_are_refused(tmp_path, lines, column):
    text = f"The column {column} has {URL}. .* web addresses, download them with img2dataset, and"
    with pytest.raises(errors.UsageError, match=text):
        read(tmp_path / "a.txt", *lines)


def test_of_web_addresses_the_pictures_that_are_there_are_read(tmp_path, capsys):
    published.facad(tmp_path)
    path, images = tmp_path / "meta_all_129927.json", tmp_path / "images"
    source = Source((path,), images)
    entries = READERS[recognise([path])].read(source)
    assert {entry.captions for entry in entries} == {("Warm & soft",)}
    assert "note: 4 pictures are left out: they are not in `images`" in capsys.readouterr().out
    for folder in (None, tmp_path):
        with pytest.raises(ValueError, match="None of the pictures .* download them with img2data"):
            READERS["jsonl"].read(Source((path,), folder))


def test_other_lists_of_web_addresses_leave_rows_as_they_are(tmp_path):
    row = {"file_name": "a.jpg", "text": "A kite .", "images": [{"url": URL}]}
    entries, _ = read(tmp_path / "a.json", together=[row])
    assert [entry.file_name for entry in entries] == ["a.jpg"]


def test_a_broken_product_is_a_skipped_row(tmp_path):
    write_pictures(tmp_path, ["1.jpg", "2.jpg", "3.jpg"])
    pages = [f"https://a.org/{name}" for name in ("1.jpg?w=6", "2.jpg", "3.jpg", "x" * 300)]
    items = [{"id": 7, "title": "Coat", "images": [{"0": p}]} for p in (*pages, "https://[a/4.jpg")]
    for number, description in ((0, "A coat ."), (1, 7)):
        items[number]["description"] = description
    del items[2]["id"]
    entries, source = read(tmp_path / "a.json", together=items, images=tmp_path)
    assert [(entry.file_name, entry.captions) for entry in entries] == [("1.jpg", ("A coat .",))]
    assert re.search("entry 1: .*must be text, not 7", str(source.skipped[0]).replace("', ", ": "))
    assert "no 'description'; it has: title, images" in source.skipped[1].reason


# ---- pictures ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("named", "there"),
    [
        ("a", "a.png"),
        ("a", "train/a.jpg"),
        ("a.jpg", "train/a.jpg"),
        ("a.jpg", "train2014/a.jpg"),
        ("train/a.jpg", "train_images/a.jpg"),
        ("beach/a.jpg", "a.jpg"),
        ("COCO_val2014_000000000009", "val2014/COCO_val2014_000000000009.jpg"),
        ("107339", "train2017/000000107339.jpg"),
    ],
)
def test_pictures_are_found_without_ending_and_in_the_folder_of_their_split(
    tmp_path, named, there, capsys
):
    images = write_pictures(tmp_path / "images", [there, "train/other.jpg", "val/a.gif", "a.txt"])
    row = {"image": named, "caption": "A kite .", "split": "train"}
    published.write(tmp_path / "a.jsonl", row)
    (entry,) = inputs.read(Settings("out", tmp_path / "a.jsonl", images=images)).entries
    assert entry.file_name == there
    assert f"1 of 1 pictures are found under another name: {there} for {named}\n" in (
        capsys.readouterr().out
    )
    features = Settings("out", tmp_path / "a.jsonl", images=images, features="f")
    assert inputs.read(features).entries[0].file_name == named


def test_names_stay_where_some_pictures_have_them(tmp_path):
    images = write_pictures(tmp_path / "images", ["a.jpg", "train/b.jpg"])
    published.write(tmp_path / "a.csv", "image,caption,split", "a.jpg,A.,train", "b.jpg,B.,train")
    entries = inputs.read(Settings("out", tmp_path / "a.csv", images=images)).entries
    assert [entry.file_name for entry in entries] == ["a.jpg", "b.jpg"]


def test_lines_of_two_languages_must_be_as_many_as_pictures(tmp_path):
    published.multi30k(tmp_path)
    raw = tmp_path / "dataset/data/task1/raw"
    with pytest.raises(errors.UsageError, match="Give as `language` one of de, en"):
        READERS["parallel"].read(Source((raw,)))
    published.write(raw / "train.de.gz", "Ein Kran .")
    with pytest.raises(ValueError, match="train.de.gz has 1 lines, but .*train.txt has 2. Line i"):
        READERS["parallel"].read(Source((raw,), language="de"))


def test_words_of_a_line_of_json_are_told_in_an_error(tmp_path):
    published.write(tmp_path / "a.json", together={"train": [{"file": "a.jpg", "said": "x"}] * 2})
    with pytest.raises(ValueError, match="an object with file, said.*a caption .*utterance"):
        recognise([tmp_path / "a.json"])
