"""The source is found by the content of the captions."""

import pytest
from helpers.sources import FIXTURES

from tfcap.preparing.sources import READERS, RECOGNISERS, Given
from tfcap.preparing.sources.auto import described, recognise


def test_every_source_has_a_fixture():
    assert set(FIXTURES) == set(READERS)


@pytest.mark.parametrize("name", READERS)
def test_the_files_of_a_source_are_recognised_by_it_alone(name, tmp_path):
    made = FIXTURES[name](tmp_path)
    paths = made.captions or (made.images,)
    for path in paths:
        assert [other for other, knows in RECOGNISERS.items() if knows(path)] == [name]
    assert recognise(paths) == name


@pytest.mark.parametrize("name", ["flickr30k", "jsonl", "xmodaler"])
@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16"])
def test_lines_behind_a_byte_order_mark_are_recognised_and_read(name, encoding, tmp_path):
    made = FIXTURES[name](tmp_path)
    for path in made.captions:
        path.write_text(path.read_text("utf-8"), encoding)
    assert recognise(made.captions) == name
    assert len(READERS[name](Given(made.captions, images=made.images))) == made.count


@pytest.mark.parametrize("name", READERS)
def test_a_source_finds_its_images_splits_and_bad_rows(name, tmp_path, capsys):
    made = FIXTURES[name](tmp_path)
    given = Given(made.captions or (made.images,), images=made.images)
    entries = READERS[name](given)
    assert (len(entries), len(given.skipped)) == (made.count, made.skipped)
    assert capsys.readouterr().err.count("skipped ") == made.skipped
    if made.splits is None:
        assert {entry.split for entry in entries} == {None}
    else:
        splits = [entry.split for entry in entries]
        assert tuple(map(splits.count, ("train", "val", "test"))) == made.splits
    for entry in entries:
        if entry.content is None and made.images is not None:
            assert (made.images / entry.file_name).exists()


@pytest.mark.parametrize(
    "content",
    [b"", b"{", b"\xff\xfe", b"\x00" * 99, b"[" * 9999, b'"' * 9999, b"a,b\n1,2\n", b"[1,2]"],
)
def test_other_files_are_not_recognised(tmp_path, content):
    path = tmp_path / "captions.csv"
    path.write_bytes(content)
    assert not [name for name, knows in RECOGNISERS.items() if knows(path)]
    with pytest.raises(ValueError, match="no source recognises. Give --source, one of .*karpathy"):
        recognise([path])


def test_json_lines_with_unknown_keys_are_told_their_names(tmp_path):
    path = tmp_path / "captions.jsonl"
    path.write_text('{"imageName": "a.jpg", "caption": "A dog."}')
    with pytest.raises(ValueError, match="in a column path, .*Received: .*imageName.* columns"):
        recognise([path])


def test_a_table_with_unknown_columns_is_told_their_names(tmp_path):
    path = tmp_path / "captions.CSV"
    path.write_text("where,words,more\na.jpg,A dog.,1\n")
    with pytest.raises(ValueError, match="in a column path, image.*Received: 'where,wor"):
        recognise([path])


def test_a_missing_path_and_two_layouts_are_refused(tmp_path, monkeypatch):
    with pytest.raises(ValueError, match="Cannot read .*none.csv: No such file"):
        recognise([tmp_path / "none.csv"])
    csv, jsonl = FIXTURES["csv"](tmp_path), FIXTURES["jsonl"](tmp_path)
    with pytest.raises(ValueError, match="captions.csv, captions.jsonl, which no source"):
        recognise([*csv.captions, *jsonl.captions])
    monkeypatch.setitem(RECOGNISERS, "other", lambda path: True)
    with pytest.raises(ValueError, match="which fits csv and other. Give --source=csv or"):
        recognise(csv.captions)


def test_the_line_counts_files_or_directories(tmp_path):
    path = tmp_path / "a.json"
    assert described("coco", [path] * 3) == "source: coco (3 files)"
    assert described("csv", [path]) == "source: csv (1 file)"
    assert described("imagefolder", [tmp_path]) == "source: imagefolder (1 directory)"
