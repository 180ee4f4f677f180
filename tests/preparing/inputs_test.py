"""Captions are read and directories are checked before anything is written."""

import dataclasses

import pytest

from tfcap import cli
from tfcap.preparing.inputs import check_images, read
from tfcap.preparing.settings import Settings
from tfcap.preparing.sources import Entry, FilePart


def entries(*names):
    return [Entry(number, name, "train", ("a dog",)) for number, name in enumerate(names)]


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "images" / "val2014").mkdir(parents=True)
    (tmp_path / "images" / "val2014" / "19.jpg").touch()
    return tmp_path


def check(folder, *names):
    settings = Settings("captions.json", "out", images=str(folder))
    check_images(settings, entries(*names))


def test_one_of_the_first_twenty_files_is_enough(folder):
    names = [f"{number}.jpg" for number in range(21)]
    check(folder / "images" / "val2014", *names)
    del names[0]
    check(folder / "images" / "val2014", *names)
    with pytest.raises(ValueError, match="None of the first 20 file names .* example a.jpg"):
        check(folder / "images" / "val2014", "a.jpg", "b.jpg", *names)


def test_pictures_are_needed_unless_the_source_holds_them():
    with pytest.raises(cli.UsageError, match="--images, the directory of the pictures, is missing"):
        check_images(Settings("c.tar", "out"), entries("0.jpg"))
    inside = [entry._replace(content=FilePart("c.tar", 0, 9)) for entry in entries("0.jpg")]
    check_images(Settings("c.tar", "out"), inside)
    with pytest.raises(cli.UsageError, match="--images, the directory of the pictures, is missing"):
        check_images(Settings("c.tar", "out"), [*inside, *entries("1.jpg")])


@pytest.fixture
def table(tmp_path):
    rows = [f"{number}.jpg,A dog." for number in range(10)] + ["../a.jpg,A dog."] * 3
    (tmp_path / "captions.csv").write_text("\n".join(["image,caption", *rows]))
    return Settings(str(tmp_path / "captions.csv"), "out", images=str(tmp_path))


def test_the_source_is_found_printed_and_divided(table, capsys):
    inputs = read(table)
    assert inputs.settings.source == "csv" and len(inputs.skipped) == 3
    assert capsys.readouterr().out.startswith("source: csv (1 file)\nsplits: drawn at random")
    assert sum(len(inputs.divided.written[split]) for split in ("train", "val", "test")) == 10
    assert all(entry.split for entry in inputs.entries)
    read(dataclasses.replace(table, source="csv"))
    assert "source:" not in capsys.readouterr().out
    with pytest.raises(cli.UsageError, match="--captions, the caption file, is missing"):
        read(Settings(None, "out"))
