"""Annotations of IAPR TC-12."""

import pytest
from helpers import source_files

from tfcap.preparing.sources.iaprtc12 import iaprtc12, recognises


@pytest.fixture
def made(tmp_path):
    return source_files.iaprtc12(tmp_path)


def test_descriptions_are_latin_1_and_split_at_semicolons(made, capsys):
    entries = iaprtc12(made.given())
    assert recognises(made.captions[0]) and not recognises(made.files[0])
    assert len(entries) == 14  # the fifteenth is in no list
    assert entries[0].captions == ("a café in Perú", "two people & a dog")
    assert entries[-1].file_name == "images/01/13.jpg"
    said = capsys.readouterr().out
    assert "1 images are in no list" in said and "1 images of iaprtc12_train_list.txt" in said


def test_val_is_drawn_from_train_with_the_seed_unless_there_is_a_list(made):
    splits = [[entry.split for entry in iaprtc12(made.given(seed=seed))] for seed in range(5)]
    assert sorted(splits[0]) == ["test"] * 2 + ["train"] * 11 + ["val"]
    assert splits[0] == [entry.split for entry in iaprtc12(made.given(seed=0))]
    assert any(drawn != splits[0] for drawn in splits)
    names = made.files[15].read_text().split()
    made.files[15].write_text("\n".join(names[3:]))
    (made.files[15].parent / "iaprtc12_val_list.txt").write_text("\n".join(names[:3]))
    entries = iaprtc12(made.given())
    assert [entry.split for entry in entries].count("val") == 3


def test_without_lists_there_are_no_splits(made):
    for path in made.files[15:]:
        path.unlink()
    assert [entry.split for entry in iaprtc12(made.given())] == [None] * 15


def test_the_directory_of_pictures_may_be_given_itself(made):
    inside = made._replace(images=made.images / "images")
    assert all((inside.images / entry.file_name).is_file() for entry in iaprtc12(inside.given()))
    assert all((made.images / entry.file_name).is_file() for entry in iaprtc12(made.given()))


def test_a_file_that_was_saved_as_utf_8_with_a_mark_is_read(made):
    made.files[0].write_text(source_files.annotation("00/0"), encoding="utf-8-sig")
    assert iaprtc12(made.given())[0].captions[0] == "a café in Perú"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "must have the field <DESCRIPTION>"),
        ("<DOC><DESCRIPTION>a;</DESCRIPTION></DOC>", "must have the field <IMAGE>"),
        ("<DESCRIPTION>a;</DESCRIPTION><IMAGE/>", "file name must be text"),
        ("<DESCRIPTION>a</DESCRIPTION><IMAGE>../../x.jpg</IMAGE>", "must be relative"),
        ("<DESCRIPTION>" * 100_000, "must have at most 1048576 bytes"),
    ],
)
def test_a_bad_annotation_is_named(made, content, message):
    made.files[0].write_text(content)
    with pytest.raises(ValueError, match=f"0.eng: .*{message}"):
        iaprtc12(made.given())


def test_an_empty_description_gives_no_captions(made):
    made.files[0].write_text(source_files.annotation("00/0", " ; ").replace("é", "e"))
    assert iaprtc12(made.given())[0].captions == ()
    page = made.files[0].read_text().replace("<DESCRIPTION> ; </DESCRIPTION>", "<DESCRIPTION/>")
    made.files[0].write_text(page)
    assert iaprtc12(made.given())[0].captions == ()


def test_lists_that_do_not_fit_are_told(made):
    made.files[16].write_text("01/12\n99/99\n")
    given = made.given()
    iaprtc12(given)
    assert [row.reason for row in given.skipped] == ["99/99 has no annotation"]
    made.files[16].write_text("00/1\n")
    with pytest.raises(ValueError, match="an image must be in one list"):
        iaprtc12(made.given())


def test_a_directory_without_annotations_is_refused(tmp_path):
    with pytest.raises(ValueError, match="must be the directory annotations_complete_eng"):
        iaprtc12(source_files.Made([tmp_path], None, []).given())
