"""Texts of Multi30k and Flickr8k-CN beside other files, and those that cannot be read."""

import gzip

import pytest
from helpers import published

from tfcap.preparing.sources import READERS
from tfcap.preparing.sources.entry import Source


def parallel(tmp_path, content):
    """The entries of a compressed text of one line."""
    published.write(tmp_path / "image_splits/train.txt", "a.jpg")
    path = tmp_path / "raw/train.de.gz"
    path.parent.mkdir()
    path.write_bytes(content)
    return lambda: READERS["parallel"].read(Source((path.parent,)))


def test_a_text_beside_its_compressed_copy_is_read_once(tmp_path):
    read = parallel(tmp_path, gzip.compress(b"Ein Kran .\n"))
    assert [entry.captions for entry in read()] == [("Ein Kran .",)]
    published.write(tmp_path / "raw/train.de", "Ein Kran .")
    assert [entry.captions for entry in read()] == [("Ein Kran .",)]


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (gzip.compress(b"Ein Kran .\n")[:-12], "Compressed file ended"),
        (gzip.compress(b"Ein Kran .\n")[:10] + b"\xff" * 20, "Error -3"),
        (gzip.compress("Ein Bär .\n".encode("cp1252")), "'utf-8' codec"),
        (gzip.compress(bytes((1 << 27) + 1), 1), "it has more than 134217728 bytes"),
    ],
    ids=["cut", "damaged", "encoding", "large"],
)
def test_a_text_that_cannot_be_read_is_named(tmp_path, content, reason):
    with pytest.raises(ValueError, match=f"train.de.gz cannot be read: {reason}.*Copy it again"):
        parallel(tmp_path, content)()


def test_a_byte_order_mark_is_no_part_of_a_name(tmp_path):
    read = parallel(tmp_path, gzip.compress("\ufeffEin Bär .\n".encode()))
    names = tmp_path / "image_splits/train.txt"
    names.write_bytes("\ufeffä.jpg\n".encode())
    assert [entry[1:4] for entry in read()] == [("ä.jpg", "train", ("Ein Bär .",))]


def test_only_lists_of_splits_are_read_beside_a_caption_file(tmp_path):
    path = tmp_path / "flickr8kzhc_train.txt"
    published.write(path, "10_ab.jpg#zhc#0 一只狗", "11_ab.jpg#zhc#0 一只狗")
    published.write(tmp_path / "flickr8ktrain.txt", "10_ab")
    published.write(tmp_path / "flickr8kval.txt", "11_ab")
    published.write(tmp_path / "eval.txt", "what was measured")
    source = Source((path,))
    assert [entry.split for entry in READERS["flickr8k"].read(source)] == ["train", "val"]
    assert not source.skipped
