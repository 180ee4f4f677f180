"""The small files of a prepared directory: hostile npz files, document frequencies, references."""

import zipfile

import numpy as np
import pytest

from tfcap.data.document_frequency import (
    document_frequencies,
    load_document_frequencies,
    write_document_frequencies,
)
from tfcap.data.references import load_references, write_references
from tfcap.files import load_npz, read_json, write_json


def test_npz_that_promises_too_much(tmp_path):
    header = np.lib.format.magic(1, 0)
    text = repr({"descr": "<f4", "fortran_order": False, "shape": (10**11,)}).encode()
    text += b" " * (63 - (len(text) + 10) % 64) + b"\n"
    with zipfile.ZipFile(tmp_path / "x.npz", "w") as archive:
        archive.writestr("feat.npy", header + len(text).to_bytes(2, "little") + text)
    with pytest.raises(ValueError, match="promises 400000000000 bytes"):
        load_npz(tmp_path / "x.npz", ["feat"])
    (tmp_path / "y.npz").write_bytes(b"no archive")
    with pytest.raises(ValueError, match="not a usable npz"):
        load_npz(tmp_path / "y.npz")


def test_document_frequencies_by_hand(tmp_path):
    table = document_frequencies([[[4, 5], [4, 4]], [[4, 5]]])
    counted = {
        tuple(int(i) for i in ngram if i): int(count)
        for ngram, count in zip(table.ngrams, table.counts, strict=True)
    }
    assert counted == {
        (4,): 2,
        (5,): 2,
        (2,): 2,
        (4, 5): 2,
        (5, 2): 2,
        (4, 5, 2): 2,
        (4, 4): 1,
        (4, 2): 1,
        (4, 4, 2): 1,
    }
    assert table.images == 2
    write_document_frequencies(tmp_path, table)
    loaded = load_document_frequencies(tmp_path)
    np.testing.assert_array_equal(loaded.ngrams, table.ngrams)
    np.testing.assert_array_equal(loaded.counts, table.counts)
    assert loaded.images == 2 and loaded.ngrams.dtype == loaded.counts.dtype == np.int32
    with pytest.raises(ValueError, match="at least one image"):
        document_frequencies([])
    with pytest.raises(ValueError, match="word ids"):
        document_frequencies([[[4, 0]]])


def test_references_round_trip_and_damage(tmp_path):
    items = [(3, "b.jpg", ["One \u00e9 \U0001f600", "two\nlines"]), (1, "a.jpg", ["x"])]
    assert write_references(tmp_path, "val", items) == 3
    names, captions = load_references(tmp_path, "val")
    assert names == {3: "b.jpg", 1: "a.jpg"}
    assert captions == {3: items[0][2], 1: ["x"]}
    (tmp_path / "references_val.json").write_text('{"images": [{"id": 1}]}')
    with pytest.raises(ValueError, match="references_val.json is not a COCO caption file"):
        load_references(tmp_path, "val")


def test_interrupted_write_leaves_the_old_file(tmp_path):
    path = tmp_path / "x.json"
    write_json(path, {"a": 1})
    with pytest.raises(ValueError, match="JSON"):
        write_json(path, {"a": float("nan")})
    assert read_json(path) == {"a": 1}
    assert [file.name for file in tmp_path.iterdir()] == ["x.json"]
