"""The token file of Flickr8k and its lists."""

import pytest
from helpers import source_files

from tfcap.preparing.sources.flickr8k import flickr8k, recognises


@pytest.fixture
def made(tmp_path):
    return source_files.flickr8k(tmp_path)


def test_captions_and_splits_are_read_and_unlisted_images_left_out(made, capsys):
    entries = flickr8k(made.given())
    assert [entry.split for entry in entries] == ["train"] * 4 + ["val", "test"]
    assert entries[4].file_name == "4_5f.jpg"
    assert entries[4].captions == ("A dog runs 0 .", "A dog runs 1 .")
    assert "note: 2 images of Flickr8k.token.txt are in no list" in capsys.readouterr().out


def test_without_lists_there_are_no_splits_and_every_name_stays(made):
    for path in made.files[1:]:
        path.unlink()
    entries = flickr8k(made.given())
    assert len(entries) == 8 and {entry.split for entry in entries} == {None}
    # The released file names this picture, which does not exist: prepare skips it.
    assert entries[-1].file_name == "2258277193_586949ec62.jpg.1"


def test_a_mark_and_ends_of_lines_of_windows_change_nothing(made):
    before = flickr8k(made.given())
    for path in made.files:
        path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes().replace(b"\n", b"\r\n"))
    assert recognises(made.files[0]) and flickr8k(made.given()) == before


def test_the_directory_may_be_given(made):
    folder = made.files[0].parent
    assert recognises(folder) and not recognises(folder.parent)
    assert flickr8k(made._replace(captions=[folder]).given()) == flickr8k(made.given())


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("a.jpg#0 A dog", "line 2: must be NAME#NUMBER"),
        ("a.jpg\tA dog", "line 2: must be NAME#NUMBER"),
        ("a.jpg#x\tA dog", "line 2: must be NAME#NUMBER"),
        ("a.jpg#99999999\tA dog", "line 2: must be NAME#NUMBER"),
        ("../a.jpg#0\tA dog", "line 2: the file name must be relative"),
        ("ok.jpg#0\tA dog", "line 2: must be the only caption 0 of ok.jpg"),
        (b"a.jpg#0\t\xff\xc3\xa9\xff\nb.jpg#0\t\xc3\xa9", "line 2: .*valid Unicode"),
    ],
)
def test_a_bad_line_is_named(tmp_path, line, message):
    path = tmp_path / "Flickr8k.token.txt"
    line = line if isinstance(line, bytes) else line.encode()
    path.write_bytes(b"ok.jpg#0\tA dog\n" + line + b"\n")
    with pytest.raises(ValueError, match=message):
        flickr8k(source_files.Made([path], None, []).given())


def test_lists_may_have_names_in_another_form_of_unicode(tmp_path):
    path = tmp_path / "Flickr8k.token.txt"
    path.write_text("caf\u00e9.jpg#0\tA dog\n")
    (tmp_path / "Flickr_8k.devImages.txt").write_text("cafe\u0301.jpg\n")
    (entry,) = flickr8k(source_files.Made([path], None, []).given())
    assert (entry.file_name, entry.split) == ("caf\u00e9.jpg", "val")


def test_an_empty_file_is_refused(tmp_path):
    path = tmp_path / "Flickr8k.token.txt"
    path.write_text("\n")
    with pytest.raises(ValueError, match="must have at least one caption"):
        flickr8k(source_files.Made([path], None, []).given())


def test_a_listed_name_without_captions_is_skipped_and_listed(made):
    with open(made.files[2], "a") as file:
        file.write("nowhere.jpg\n")
    given = made.given()
    assert len(flickr8k(given)) == 6
    assert [row.reason for row in given.skipped] == ["nowhere.jpg has no captions"]


def test_an_image_in_two_lists_is_refused(made):
    made.files[3].write_text("0_5f.jpg\n")
    with pytest.raises(ValueError, match="line 1: an image must be in one list"):
        flickr8k(made.given())
