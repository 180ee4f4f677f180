"""results.csv of Flickr30k."""

import pytest
from helpers import source_files

from tfcap.preparing.sources.flickr30k import flickr30k, recognises

HEADER = "image_name| comment_number| comment\n"


def test_the_row_without_a_bar_is_read(tmp_path):
    entries = flickr30k(source_files.flickr30k(tmp_path).given())
    assert len(entries) == 20 and {entry.split for entry in entries} == {None}
    assert entries[0].file_name == "000.jpg"
    assert entries[0].captions == ("A man , in blue .",) * 4 + ("A dog runs across the grass .",)
    assert [entry.id for entry in entries] == list(range(20))


def test_marks_line_ends_and_bars_in_captions_are_accepted(tmp_path):
    path = tmp_path / "results.csv"
    path.write_bytes(
        b"\xef\xbb\xbf" + HEADER.replace("\n", "\r\n").encode() + b"a.jpg| 0| A | b\r\n"
    )
    assert recognises(path)
    assert flickr30k(source_files.Made([path], None, []).given())[0].captions == ("A | b",)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("a.jpg, 0, A dog", "line 3: must be a file name, a number and a caption"),
        ("a.jpg| first| A dog", "line 3: must be a file name, a number"),
        ("a.jpg| 4", "line 3: must be a file name, a number"),
        ("a.jpg| \u0664| A dog", "line 3: must be a file name, a number"),
        ("/etc/passwd| 0| A dog", "line 3: the file name must be relative"),
        ("ok.jpg| 0| A dog", "line 3: must be the only caption 0"),
    ],
)
def test_a_bad_row_is_named(tmp_path, line, message):
    path = tmp_path / "results.csv"
    path.write_text(f"{HEADER}ok.jpg| 0| A dog\n{line}\n", encoding="utf-8")
    with pytest.raises(ValueError, match=message):
        flickr30k(source_files.Made([path], None, []).given())


@pytest.mark.parametrize("content", ["", "a| b| c\n", HEADER])
def test_a_file_of_another_kind_or_without_rows_is_refused(tmp_path, content):
    path = tmp_path / "results.csv"
    path.write_text(content)
    assert recognises(path) is (content == HEADER)
    with pytest.raises(ValueError, match=r"line 1: must be image_name|at least one caption"):
        flickr30k(source_files.Made([path], None, []).given())
