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
from tfcap.captioning import Caption, inputs
from tfcap.captioning.caption_files import Page, Table, Texts, Wording, open_output
from tfcap.preparing.sources import READERS
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
    with pytest.raises(ValueError, match=r"a\.jpg and .*a\.png into the same text file"):
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
