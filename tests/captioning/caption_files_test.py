"""Captions are written beside pictures and into tables, and a killed command loses nothing."""

import base64
import csv
import dataclasses
import errno
import io
import json
import os
from unittest import mock

import numpy as np
import pytest
from helpers import commands, report_world
from PIL import Image

from tfcap import caption as caption_command
from tfcap import metadata
from tfcap.captioning import Caption, inputs
from tfcap.captioning.caption_files import (
    Descriptions,
    Kohya,
    Page,
    Table,
    Texts,
    Wording,
    open_output,
    unlike_first,
)
from tfcap.preparing.sources import READERS, recognise
from tfcap.preparing.sources.entry import Source


def caption(path, text="a dog runs", score=-2.5):
    return Caption(text, score, tuple(text.split()), source=str(path))


@pytest.fixture
def folder(tmp_path):
    """A folder of three pictures, one of them in a folder below, and what is no picture."""
    root = tmp_path / "photos"
    (root / "sea" / "old").mkdir(parents=True)
    (root / ".thumbnails").mkdir()
    for name in ("b.png", "a.png", "sea/old/c.png", ".thumbnails/d.png"):
        Image.new("RGB", (8, 8)).save(root / name)
    (root / "notes.txt").write_text("mine\n")
    return root


@pytest.mark.parametrize(
    ("limit", "expected"),
    [
        (0, "Me, a dog is running through a field."),
        (37, "Me, a dog is running through a field."),
        (36, "Me, a dog is running."),  # and not "through a"
        (20, "Me, a dog."),
        (9, ""),
    ],
)
def test_a_caption_is_cut_after_a_phrase(limit, expected):
    wording = Wording("Me, ", ".", limit)
    assert wording.text("a dog is running through a field") == expected


@pytest.mark.parametrize("last", "a the of and in with is wearing his The".split())
def test_a_caption_that_is_cut_never_ends_in_a_word_after_which_a_phrase_goes_on(last):
    assert Wording(max_characters=16).text(f"two dogs {last} extraordinary") == "two dogs"
    assert Wording().text(f"two dogs {last}") == f"two dogs {last}"  # as the model wrote it


def test_a_sentence_has_a_capital_and_a_full_stop():
    assert Wording(sentence=True).text("a dog runs") == "A dog runs."
    assert Wording("me: ", sentence=True).text("is it a dog?") == "me: Is it a dog?"
    assert Wording(max_characters=6, sentence=True).text("a dog runs") == "A dog."


def test_a_caption_without_spaces_is_cut_after_one_of_its_words():
    words = ["两", "只", "hot", "dog", "在", "草地"]
    caption = "两只hot dog在草地"
    assert Wording(max_characters=11).text(caption, words) == "两只hot dog在"
    assert Wording("我: ", max_characters=10).text(caption, words) == "我: 两只hot"
    assert Wording(max_characters=12).text(caption, words) == caption
    assert Wording(max_characters=6).text(caption) == "两只hot"


def test_folders_below_are_read_if_asked_for(folder):
    names = [os.path.relpath(path, folder) for path in inputs.expand([str(folder)], recursive=True)]
    assert names == ["a.png", "b.png", "sea/old/c.png"]
    assert len(inputs.expand([str(folder)])) == 2


def test_texts_stand_beside_the_pictures_and_are_never_overwritten_unasked(folder):
    pictures = inputs.expand([str(folder)], recursive=True)
    (folder / "a.txt").write_text("by hand\n")
    with pytest.raises(ValueError, match=r"a\.txt exists\. `skip_existing`"):
        Texts(pictures, overwrite=False, skip_existing=False)
    texts = Texts(pictures, overwrite=False, skip_existing=True)
    assert [texts.has(path) for path in pictures] == [True, False, False]
    texts.write(caption(pictures[2]), "a boat")
    assert (folder / "sea/old/c.txt").read_text() == "a boat\n" and texts.count == 1
    assert (folder / "a.txt").read_text() == "by hand\n"
    texts = Texts(pictures, overwrite=True, skip_existing=False)
    texts.write(caption(pictures[0]), "a dog")
    assert (folder / "a.txt").read_text() == "a dog\n"


@pytest.mark.parametrize("blank", ["", "\n", " \t\r\n", "\ufeff\n"])
def test_an_empty_text_is_no_caption(folder, blank):
    """Taggers write such texts. A text in another encoding is one."""
    first, second = inputs.expand([str(folder)])
    (folder / "a.txt").write_text(blank, encoding="utf-8")
    (folder / "b.txt").write_bytes(b"ch\xe4t")
    texts = Texts([first, second], overwrite=False, skip_existing=True)
    assert not texts.has(first) and texts.has(second)
    texts.write(caption(first), "a dog")
    assert (folder / "a.txt").read_text() == "a dog\n"
    assert (folder / "b.txt").read_bytes() == b"ch\xe4t"


@pytest.mark.parametrize(
    ("kind", "rows"),
    [
        ("csv", ["image,caption,score", "a.png,a dog,-1", "b.png, ,-2", "c.png,,"]),
        (
            "jsonl",
            [
                '{"image": "a.png", "caption": "a dog", "score": -1}',
                '{"image": "b.png", "caption": " ", "score": -2}',
                '{"image": "c.png", "caption": null, "score": null}',
            ],
        ),
    ],
)
def test_a_row_without_a_caption_is_written_again(tmp_path, kind, rows):
    path, names = tmp_path / f"captions.{kind}", ["a.png", "b.png", "c.png"]
    path.write_text("\n".join([*rows, ""]))
    table = Table(str(path), overwrite=False, skip_existing=True)
    assert [table.has(str(tmp_path / name)) for name in names] == [True, False, False]
    table.write(caption(tmp_path / "b.png"), "a cat")
    table.finish()
    assert path.read_text().count("b.png") == 1 and "a dog" in path.read_text()


def test_a_table_of_a_spreadsheet_goes_on_and_a_folder_is_made_for_a_new_one(tmp_path):
    old, new = tmp_path / "captions.csv", tmp_path / "new/captions.html"
    old.write_bytes(b"\xef\xbb\xbfimage,caption,score\r\na.png,a dog,-1\r\n")
    assert Table(str(old), False, skip_existing=True).has(str(tmp_path / "a.png"))
    page = Page(str(new), False, False)
    assert not new.parent.exists()
    page.write(caption(tmp_path / "a.png"), "a dog")
    assert page.finish() == str(new) and new.exists()


def test_two_pictures_cannot_share_a_text(folder):
    Image.new("RGB", (8, 8)).save(folder / "a.jpg")
    with pytest.raises(ValueError, match=r"a\.jpg and .*a\.png into the same file"):
        Texts(inputs.expand([str(folder)]), False, False)


@pytest.mark.parametrize("kind", ["csv", "jsonl"])
def test_a_table_goes_on_after_half_a_row(folder, kind):
    path = str(folder / f"captions.{kind}")
    names = ["a.png", 'b, "two".png', "sea/old/c.png", "b\udce9.png"]
    pictures = [str(folder / name) for name in names]
    table = Table(path, False, False)
    for picture in pictures[:2]:
        table.write(caption(picture, 'a "dog", running'), 'a "dog", running')
    assert not os.path.exists(path)
    with open(f"{path}.part", "a") as file:
        file.write('sea/old/c.png,"a bo' if kind == "csv" else '{"image": "sea/ol')
    with pytest.raises(ValueError, match=r"part exists\. `skip_existing`"):
        Table(path, False, False)
    table = Table(path, False, skip_existing=True)
    assert [table.has(picture) for picture in pictures] == [True, True, False, False]
    for picture in pictures[2:]:
        table.write(caption(picture, "a boat"), "a boat")
    assert table.finish() == path and not os.path.exists(f"{path}.part")
    with open(path, encoding="utf-8", errors="surrogateescape", newline="") as file:
        rows = list(csv.DictReader(file) if kind == "csv" else map(json.loads, file))
    assert [row["image"] for row in rows] == names
    assert [row["caption"] for row in rows] == ['a "dog", running'] * 2 + ["a boat"] * 2
    assert [float(row["score"]) for row in rows] == [-2.5] * 4
    assert Table(path, False, skip_existing=True).has(pictures[3])
    assert not Table(path, overwrite=True, skip_existing=False).has(pictures[3])


def test_a_page_goes_on_and_holds_small_pictures(folder):
    """Names are those below the folder of the page; the page appears when all is captioned."""
    path, pictures = folder / "captions.html", inputs.expand([str(folder)], recursive=True)
    page = Page(str(path), False, False)
    page.write(caption(pictures[0], "a <b>dog</b>"), "a <b>dog</b>")
    assert not path.exists()
    with pytest.raises(ValueError, match=r"part exists\. `skip_existing`"):
        Page(str(path), False, False)
    page = Page(str(path), False, skip_existing=True)
    assert [page.has(picture) for picture in pictures] == [True, False, False]
    page.write(caption(pictures[1]), "a cat")
    page.finish()
    page = Page(str(path), False, skip_existing=True)  # what was written is read from the page
    assert [page.has(picture) for picture in pictures] == [True, True, False]
    page.write(caption(pictures[2], score=-1.25), "a boat")
    page.write(caption("http://localhost/d.jpg"), "a house")
    assert page.finish() == str(path) and sorted(os.listdir(folder)) == [
        *(".thumbnails", "a.png", "b.png", "captions.html", "notes.txt", "sea")
    ]
    data = report_world.element(path, "data")
    names = ["a.png", "b.png", "sea/old/c.png", "http://localhost/d.jpg"]
    assert [image["name"] for image in data["images"]] == names
    runs = [image["runs"][0] for image in data["images"]]
    assert [run["text"] for run in runs] == ["a <b>dog</b>", "a cat", "a boat", "a house"]
    assert [run["scores"] for run in runs] == [[-2.5], [-2.5], [-1.25], [-2.5]]
    assert [bool(small) for small in report_world.element(path, "pictures")] == [True] * 3 + [False]
    assert data["title"] == "Captions of photos"


def test_a_page_shows_the_first_picture_of_a_folder(tmp_path):
    """A folder is a clip, or has the pictures of one image."""
    (tmp_path / "s1").mkdir()
    (tmp_path / "none").mkdir()
    for number, width in ((10, 8), (9, 40)):  # 9.png comes first
        Image.new("RGB", (width, 20)).save(tmp_path / "s1" / f"{number}.png")
    page = Page(str(tmp_path / "captions.html"), False, False)
    for name in ("s1", "none"):
        page.write(caption(str(tmp_path / name)), "a lung")
    page.finish()
    small, nothing = report_world.element(tmp_path / "captions.html", "pictures")
    assert nothing is None
    assert Image.open(io.BytesIO(base64.b64decode(small))).size == (40, 20)


def test_several_files_are_written_at_once(folder):
    """A picture is left out if all of them have it; nothing is left if one refuses."""
    pictures = inputs.expand([str(folder)])
    tables = [str(folder / "captions.csv"), str(folder / "captions.html")]
    (folder / "a.txt").write_text("by hand\n")
    (folder / "captions.html").write_text("a page of somebody else")
    for skip, word in ((False, "a.txt exists"), (True, "no page of captions")):
        with pytest.raises(ValueError, match=word):
            open_output(["txt", "csv", "html"], pictures, tables, False, skip)
    assert not list(folder.glob("*.part"))
    (folder / "captions.html").unlink()
    output = open_output(["txt", "csv", "html"], pictures, tables, False, True)
    assert not any(map(output.has, pictures))
    for picture in pictures:
        output.write(caption(picture), "a dog")
    assert output.count == 2
    output.finish()
    assert [(folder / name).read_text() for name in ("a.txt", "b.txt")] == ["by hand\n", "a dog\n"]
    assert (folder / "captions.csv").read_text().count("a dog") == 2
    again = open_output(["txt", "csv", "html"], pictures, tables, False, True)
    assert all(map(again.has, pictures))


@pytest.mark.parametrize(
    ("kind", "content"),
    [
        ("csv", "image,text\na.png,hours of work\n"),
        ("csv", "name,caption,author\na.png,hours of work,me\n"),
        ("jsonl", '{"file_name": "a.png", "text": "hours of work"}\n'),
        ("csv", "one line without an end"),
        ("jsonl", "[1]\n"),
        ("jsonl", "no JSON\n"),
        ("html", "<p>hours of work</p>"),
        ("html", '<script id="data">{"keys": ["CIDEr"], "images": []}</script>'),
    ],
)
def test_a_table_of_somebody_else_stays(tmp_path, kind, content):
    path = tmp_path / f"captions.{kind}"
    path.write_text(content)
    with pytest.raises(ValueError, match="(no page|not a table) of .*`out`"):
        (Page if kind == "html" else Table)(str(path), False, skip_existing=True)
    assert path.read_text() == content and os.listdir(tmp_path) == [path.name]


def test_names_may_be_long_and_have_line_ends(tmp_path):
    names = [f"{'x' * 251}.jpg", "b\r.jpg", "c\r\n.jpg"]
    pictures = [str(tmp_path / name) for name in names]
    texts, table = Texts(pictures, False, False), Table(str(tmp_path / "t.csv"), False, False)
    for picture in pictures:
        texts.write(caption(picture), "a dog")
        table.write(caption(picture), "a dog")
    table.finish()
    assert (tmp_path / f"{'x' * 251}.txt").read_text() == "a dog\n"
    again = Table(str(tmp_path / "t.csv"), False, skip_existing=True)
    assert all(map(again.has, pictures))


@pytest.mark.slow
def test_prepare_reads_what_caption_wrote(trained, folder, capsys):
    """One picture is bad: it has no text, and the command says why."""
    rng = np.random.default_rng(1)
    for name in ("a.png", "b.png", "sea/old/c.png"):
        Image.fromarray(rng.integers(0, 255, (32, 32, 3), np.uint8)).save(folder / name)
    (folder / "bad.png").write_text("no picture")
    flags = ["--model_dir", trained, "--recursive", folder]
    with pytest.raises(SystemExit) as end:
        commands.run_here(caption_command, *flags, "--write=txt", "--before=Zed, ")
    printed = capsys.readouterr()
    assert end.value.code == 3 and "1 of 4 pictures could not be captioned (1 x" in printed.err
    assert "3 captions are written" in printed.out
    assert (folder / "sea/old/c.txt").read_text().startswith("Zed, ")
    (folder / "bad.png").unlink()
    first = (folder / "a.txt").read_bytes()
    (folder / "a.txt").unlink()  # as a command that was killed leaves a folder
    commands.run_here(caption_command, *flags, "--write=txt", "--before=Zed, ", "--skip_existing")
    assert "1 captions are written" in (said := capsys.readouterr().out)
    assert "2 pictures had a caption" in said and (folder / "a.txt").read_bytes() == first
    commands.run_here(caption_command, *flags, "--write=csv,html")
    assert f"{folder}/captions.csv, {folder}/captions.html" in capsys.readouterr().out
    for captions, layout in ((folder, "sidecar"), (folder / "captions.csv", "csv")):
        entries = READERS[layout].read(Source((captions,), images=folder))
        texts = {os.path.basename(entry.file_name): entry.captions for entry in entries}
        assert sorted(texts) == ["a.png", "b.png", "c.png"] and all(map(any, texts.values()))


@pytest.mark.slow
def test_a_read_only_folder_does_not_stop_the_others(trained, folder, capsys, monkeypatch):
    """The disk of one folder is read-only, also for root."""
    replace = os.replace

    def locked(source, target):
        if "sea" in str(target):
            raise OSError(errno.EROFS, os.strerror(errno.EROFS), source)
        replace(source, target)

    (folder / "z.png").write_bytes((folder / "a.png").read_bytes())
    monkeypatch.setattr(os, "replace", locked)
    flags = ["--model_dir", trained, "--recursive", "--write=txt", folder]
    with pytest.raises(SystemExit) as end:
        commands.run_here(caption_command, *flags)
    printed = capsys.readouterr()
    assert end.value.code == 3 and "3 captions are written" in printed.out
    assert "c.png: its caption cannot be written: Read-only file system" in printed.err
    assert (folder / "z.txt").exists() and not list(folder.glob("**/*.part"))
    full = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "x")
    monkeypatch.setattr(os, "replace", mock.Mock(side_effect=full))
    texts = Texts([str(folder / "a.png")], True, False)
    with pytest.raises(OSError, match=r"No space left on device: '.*/a\.txt'"):
        texts.write(caption(folder / "a.png"), "a dog")
    assert not list(folder.glob("**/*.part"))


def test_a_confidence_is_a_further_column_and_old_rows_keep_none(tmp_path):
    """A table is begun without a confidence and continued by a calibrated model, twice."""
    for ending in ("csv", "jsonl", "html"):
        path = str(tmp_path / f"table.{ending}")
        for number, confidence in enumerate((None, 0.25, 0.75)):
            [table] = open_output([], [], [path], False, number > 0)._outputs
            table.write(dataclasses.replace(caption(f"{number}.png"), confidence=confidence), "x")
            table.finish()
    with open(tmp_path / "table.csv", newline="") as file:
        rows = list(csv.reader(file))
    assert rows[0] == ["image", "caption", "score", "confidence"]
    assert [row[3] for row in rows[1:]] == ["", "0.2500", "0.7500"]
    with open(tmp_path / "table.jsonl") as file:
        rows = [json.loads(line) for line in file]
    assert [row.get("confidence") for row in rows] == [None, 0.25, 0.75]
    page = Page(str(tmp_path / "table.html"), False, True)
    assert [row[3:] for row in page._old] == [[], ["0.25"], ["0.75"]]

    # Other programs write null in the place of a missing number.
    nothing = {"image": "a.png", "caption": "x", "score": -1, "confidence": None}
    (tmp_path / "table.jsonl").write_text(json.dumps(nothing) + "\n")
    table = Table(str(tmp_path / "table.jsonl"), False, True)
    table.write(caption("b.png"), "x")
    table.finish()
    assert len((tmp_path / "table.jsonl").read_text().splitlines()) == 2


# ---- descriptions in the metadata of pictures ---------------------------------------------------


@pytest.fixture
def photos(tmp_path):
    """A folder of pictures: one plain, one that tfcap has described, and one that somebody has."""
    root = tmp_path / "photos"
    root.mkdir()
    for name in ("a.jpg", "b.png", "c.webp"):
        Image.new("RGB", (8, 8)).save(root / name)
    content = (root / "b.png").read_bytes()
    (root / "b.png").write_bytes(metadata.with_description(content, "a dog"))
    tags = Image.Exif()
    tags[0x010E] = "My dog"
    Image.new("RGB", (8, 8)).save(root / "c.webp", exif=tags)
    return root


def described(path):
    found = metadata.description(path.read_bytes())
    return found and found.text


def test_a_description_of_somebody_else_is_never_replaced(photos, caplog):
    pictures = inputs.expand([str(photos)])
    with pytest.raises(
        ValueError, match=r"b\.png has a description, and 1 more do\. `skip_existing`"
    ):
        Descriptions(pictures, False, False, embed=True)
    output = Descriptions(pictures, False, skip_existing=True, embed=True, language="en")
    assert [output.has(path) for path in pictures] == [False, True, True]
    output.write(caption(pictures[0]), "a cat")
    assert output.count == 1 and b'xml:lang="en">a cat' in (photos / "a.jpg").read_bytes()
    assert not caplog.messages
    output = Descriptions(pictures, overwrite=True, skip_existing=False, embed=True)
    assert [output.has(path) for path in pictures] == [False, False, True]
    assert "1 pictures have a description that tfcap did not write" in caplog.messages[0]
    output.write(caption(pictures[1]), "two dogs")
    assert described(photos / "b.png") == "two dogs"
    # Somebody has described a picture since the command began.
    before = (photos / "c.webp").read_bytes()
    with pytest.raises(metadata.MetadataError, match="that tfcap did not write"):
        output.write(caption(pictures[2]), "a cat")
    assert (photos / "c.webp").read_bytes() == before
    assert sorted(os.listdir(photos)) == ["a.jpg", "b.png", "c.webp"]


def test_a_caption_that_is_not_good_enough_is_no_description(photos):
    """Its text is empty. The description that it replaces goes, too."""
    pictures = inputs.expand([str(photos)])
    output = Descriptions(pictures, overwrite=True, skip_existing=False, embed=True)
    before = (photos / "a.jpg").read_bytes()
    for picture in pictures[:2]:
        output.write(caption(picture), "")
    assert (photos / "a.jpg").read_bytes() == before and described(photos / "b.png") is None
    assert output.count == 0
    output = Descriptions(pictures[:1], False, False, embed=False)
    output.write(caption(pictures[0]), "")
    assert not (photos / "a.jpg.xmp").exists()


def test_a_picture_keeps_its_permissions_its_times_and_its_link(photos, tmp_path, monkeypatch):
    modes = []
    monkeypatch.setattr(os, "fsync", lambda number: modes.append(os.fstat(number).st_mode & 0o777))
    picture, link = photos / "a.jpg", tmp_path / "link.jpg"
    link.symlink_to(picture)
    picture.chmod(0o640)
    os.utime(picture, (1_000_000_000, 1_100_000_000))
    Descriptions([str(link)], False, False, embed=True).write(caption(link), "a cat")
    status = picture.stat()
    assert link.is_symlink() and described(picture) == "a cat"
    assert (status.st_mode & 0o777, status.st_mtime) == (0o640, 1_100_000_000)
    assert modes == [0o600]  # what may be private is never readable by others


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write protected files")
def test_a_protected_picture_is_not_replaced(photos):
    (photos / "a.jpg").chmod(0o444)
    with pytest.raises(PermissionError):
        picture = str(photos / "a.jpg")
        Descriptions([picture], False, False, embed=True).write(caption(picture), "a cat")
    assert described(photos / "a.jpg") is None


def test_a_file_that_cannot_be_written_is_not_lost(photos, monkeypatch):
    picture = photos / "a.jpg"
    before = picture.read_bytes()
    output = Descriptions([str(picture)], False, False, embed=True)
    with monkeypatch.context() as patch:
        full = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "x")
        patch.setattr(os, "fsync", mock.Mock(side_effect=full))
        with pytest.raises(OSError, match=r"No space left on device: '.*/a\.jpg'"):
            output.write(caption(picture), "a cat")
    assert picture.read_bytes() == before and len(os.listdir(photos)) == 3
    with monkeypatch.context() as patch:  # another program saves the picture at the same time
        patch.setattr(os, "fsync", lambda _: picture.write_bytes(before + b"edited"))
        with pytest.raises(metadata.MetadataError, match="changed in the meantime"):
            output.write(caption(picture), "a cat")
    assert picture.read_bytes() == before + b"edited" and len(os.listdir(photos)) == 3
    picture.write_bytes(before[:100])
    with pytest.raises(metadata.MetadataError, match="cut off"):
        output.write(caption(picture), "a cat")
    assert picture.read_bytes() == before[:100]
    picture.unlink()
    with pytest.raises(metadata.MetadataError, match="no longer there"):
        output.write(caption(picture), "a cat")


def test_an_xmp_file_stands_beside_its_picture(photos):
    """A description in the picture counts, too. Another program may have begun the file."""
    pictures = inputs.expand([str(photos)])
    (photos / "b.xmp").write_bytes(
        b'<x:xmpmeta xmlns:x="adobe:ns:meta/"><rdf:RDF '
        b'xmlns:rdf="http://www.w3.org/1999/02/22-rdf-syntax-ns#"><rdf:Description rdf:about="" '
        b'xmlns:xmp="http://ns.adobe.com/xap/1.0/" xmp:Rating="4"/></rdf:RDF></x:xmpmeta>'
    )
    with pytest.raises(ValueError, match=r"b\.png has a description"):
        Descriptions(pictures, False, False, embed=False)
    output = Descriptions(pictures, True, False, embed=False, language="en")
    assert [output.has(path) for path in pictures] == [False, False, True]
    for picture in pictures[:2]:
        output.write(caption(picture), "a cat")
    assert described(photos / "b.png") == "a dog" and not (photos / "b.png.xmp").exists()
    assert b'xmp:Rating="4"' in (photos / "b.xmp").read_bytes()
    for name in ("a.jpg.xmp", "b.xmp"):
        found = metadata.sidecar_description((photos / name).read_bytes())
        assert found == ("a cat", True)
    again = Descriptions(pictures[:1], False, skip_existing=True, embed=False)
    assert again.has(pictures[0])
    (photos / "a.jpg.xmp").write_bytes(b"no XMP")
    output = Descriptions(pictures[:1], False, False, embed=False)
    with pytest.raises(metadata.MetadataError, match="XMP data is damaged"):
        output.write(caption(pictures[0]), "a cat")
    assert (photos / "a.jpg.xmp").read_bytes() == b"no XMP"


def test_pictures_that_cannot_have_a_description_of_their_own_are_refused(photos):
    Image.new("RGB", (8, 8)).save(photos / "b.jpg")
    (photos / "b.xmp").touch()
    for embed, pictures, word in (
        (True, [str(photos)], "is a directory. Use `write=xmp`"),
        (True, ["http://localhost/a.jpg"], "`write=embed` needs local files, but"),
        (False, [str(photos / "b.jpg"), str(photos / "b.png")], "into the same file"),
    ):
        with pytest.raises(ValueError, match=word):
            Descriptions(pictures, False, True, embed)


# ---- what trainers read -------------------------------------------------------------------------


def test_unlike_captions_come_first():
    texts = ["a dog runs", "a dog runs fast", "two cats sleep", "a dog runs", "a dog and two cats"]
    assert unlike_first(texts, 1) == ["a dog runs"]
    assert unlike_first(texts, 3) == ["a dog runs", "two cats sleep", "a dog and two cats"]
    assert unlike_first(texts, 9) == [texts[0], texts[2], texts[4], texts[1]]
    assert unlike_first([], 2) == []


@pytest.mark.parametrize("extension", [".txt", ".caption"])
def test_prepare_reads_several_captions_of_a_text(folder, extension):
    pictures = inputs.expand([str(folder)], recursive=True)
    output = open_output(["txt"], pictures, [], False, False, extension)
    for picture in pictures:
        output.write(caption(picture), "a dog", ["two dogs", "ein Köter"])
    assert (folder / f"a{extension}").read_text("utf-8") == "a dog\ntwo dogs\nein Köter\n"
    entries = READERS["sidecar"].read(Source((folder,), images=folder))
    assert [entry.captions for entry in entries] == [("a dog", "two dogs", "ein Köter")] * 3
    assert all(map(open_output(["txt"], pictures, [], False, True, extension).has, pictures))


def test_prepare_reads_the_json_file_of_kohyas_trainers(folder):
    path, pictures = folder / "captions.json", inputs.expand([str(folder)], recursive=True)
    output = Kohya(str(path), False, False)
    output.write(caption(pictures[0]), "a dog", ["two dogs"])
    assert not path.exists() and (folder / "captions.json.part").exists()
    output = Kohya(str(path), False, skip_existing=True)  # a killed command goes on
    assert [output.has(picture) for picture in pictures] == [True, False, False]
    for picture in pictures[1:]:
        output.write(caption(picture), "a cat")
    assert output.finish() == str(path) and not (folder / "captions.json.part").exists()
    content = json.loads(path.read_text())
    assert content[os.path.abspath(pictures[0])] == {"caption": "a dog\ntwo dogs"}
    assert recognise([path]) == "json"
    entries = READERS["json"].read(Source((path,), images=folder))
    captions = {entry.file_name: entry.captions for entry in entries}
    cats = dict.fromkeys(("b.png", "sea/old/c.png"), ("a cat",))
    assert captions == {"a.png": ("a dog", "two dogs"), **cats}


def test_tags_and_names_of_kohyas_other_tools_stay(folder):
    path, pictures = folder / "meta.json", inputs.expand([str(folder)])
    tagged = {"a": {"tags": "1dog", "caption": "mine"}, "b.png": {"tags": "2dogs"}}
    path.write_text(json.dumps(tagged | {"/elsewhere/x.png": {"caption": "a house"}}))
    with pytest.raises(ValueError, match="exists"):
        Kohya(str(path), False, False)
    output = Kohya(str(path), False, skip_existing=True)
    assert [output.has(picture) for picture in pictures] == [True, False]
    output = Kohya(str(path), overwrite=True, skip_existing=False)
    for picture in pictures:
        output.write(caption(picture), "a cat")
    output.finish()
    assert json.loads(path.read_text()) == {
        "a": {"tags": "1dog", "caption": "a cat"},
        "b.png": {"tags": "2dogs", "caption": "a cat"},
        "/elsewhere/x.png": {"caption": "a house"},
    }
    for other in ("[]", '{"a": 1}', '{"a": {"caption": []}}', "no JSON"):
        path.write_text(other)
        with pytest.raises(ValueError, match="`out`"):
            Kohya(str(path), True, False)
        assert path.read_text() == other


@pytest.mark.slow
def test_the_command_describes_pictures_and_writes_what_trainers_read(photos, capsys):
    """With the packaged captioner, which finds three captions of a picture."""
    (photos / "d.gif").write_bytes(b"")
    Image.new("RGB", (8, 8)).save(photos / "d.gif")
    flags = [photos, "--overwrite", "--write=embed,xmp", "--language=en"]
    with pytest.raises(SystemExit) as end:
        commands.run_here(caption_command, *flags)
    printed = capsys.readouterr()
    assert end.value.code == 3 and "only JPEG, PNG and WebP files" in printed.err
    assert "descriptions in the pictures" in printed.out and "1 pictures had a" in printed.out
    (photos / "d.gif").unlink()
    assert described(photos / "a.jpg") and described(photos / "c.webp") == "My dog"
    assert (photos / "b.png.xmp").exists() and not (photos / "c.webp.xmp").exists()
    flags = ["--write=txt,kohya", "--captions=3", "--extension=.caption"]
    commands.run_here(caption_command, photos, *flags)
    lines = (photos / "a.caption").read_text().splitlines()
    assert len(set(lines)) == 3 and lines[0] == described(photos / "a.jpg")
    for captions, layout in ((photos, "sidecar"), (photos / "captions.json", "json")):
        entries = READERS[layout].read(Source((captions,), images=photos))
        assert entries[0].captions == tuple(lines)
    with pytest.raises(ValueError, match="finds 3. Add --decoding=beam=8,groups=4"):
        commands.run_here(caption_command, photos, "--write=txt", "--captions=4")
