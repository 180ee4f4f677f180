"""Tables whose delimiter, columns or language must be told from few hints."""

import pytest
from helpers import published
from helpers.sources import jpeg

from tfcap.preparing import inputs
from tfcap.preparing.settings import Settings
from tfcap.preparing.sources import READERS, tables
from tfcap.preparing.sources.entry import Source


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        (["1.jpg,A dog; a cat", "2.jpg,Two dogs"], "A dog; a cat"),
        (["1.jpg,A dog; a cat", "2.jpg,A dog; a cow"], "A dog; a cat"),
        (["1.jpg;A dog, a cat", "2.jpg;Two dogs"], "A dog, a cat"),
        (["1.jpg\tA dog; a cat, a cow", "2.jpg\tTwo; dogs, here"], "A dog; a cat, a cow"),
    ],
)
def test_the_delimiter_gives_all_lines_the_chosen_columns(tmp_path, lines, expected):
    published.write(path := tmp_path / "a.txt", *lines)
    settings = Settings("out", path, columns="image=1,caption=2", backbone="pixels").checked()
    entry = inputs.read(settings).entries[0]
    assert (entry.file_name, entry.captions) == ("1.jpg", (expected,))


def test_metadata_of_test_may_have_no_captions(tmp_path):
    published.write(tmp_path / "train/metadata.csv", "file_name,text", "a.jpg,A kite .")
    published.write(tmp_path / "test/metadata.csv", "file_name", "b.jpg")
    for name in ("train/a.jpg", "test/b.jpg"):
        (tmp_path / name).write_bytes(jpeg(1))
    entries = READERS["imagefolder"].read(Source((tmp_path,), images=tmp_path))
    assert [(e.split, e.captions) for e in entries] == [("test", ()), ("train", ("A kite .",))]


@pytest.mark.parametrize("language", ["hindi", "bengali", "malayalam"])
def test_the_file_name_tells_the_language_of_visual_genome(tmp_path, language):
    path = tmp_path / f"{language}-visual-genome-train.txt"
    published.write(path, "7\t1\t2\t3\t4\tA kite .\tx")
    table = tables.table_of(path)
    assert table is not None and table.names[5:] == ["english", language]
