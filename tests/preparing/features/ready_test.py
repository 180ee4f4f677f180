"""Ready features: one npz per image."""

import io
import zipfile

import numpy as np
import pytest

from tfcap.preparing.features.ready import MAX_ARRAY_BYTES, read_npz


def _npz(tmp_path, **arrays):
    path = tmp_path / "7.npz"
    np.savez(path, **arrays)
    return path


GOOD = np.arange(12, dtype=np.float32).reshape(3, 4)


@pytest.mark.parametrize("key", ["feat", "features", "x"])
def test_reads_the_array_under_any_of_its_names(tmp_path, key):
    array, boxes = read_npz(_npz(tmp_path, **{key: GOOD.astype(np.float64)}), dim=4)
    np.testing.assert_array_equal(array, GOOD)
    assert array.dtype == np.float32 and boxes is None


def test_reads_boxes_in_the_unit_square_and_leaves_out_pixels(tmp_path):
    boxes = np.tile([0.1, 0.2, 0.5, 1.0], (3, 1))
    read = read_npz(_npz(tmp_path, features=GOOD, boxes=boxes, image_h=480))[1]
    np.testing.assert_allclose(read, boxes)
    assert read.dtype == np.float32
    assert read_npz(_npz(tmp_path, features=GOOD, boxes=boxes * 300))[1] is None


@pytest.mark.parametrize(
    "arrays, message",
    [
        ({"feat": GOOD[:, :3]}, "3 wide, expected 4"),
        ({"feat": GOOD[:0]}, "zero regions"),
        ({"feat": GOOD[0]}, r"floats of \[regions, width\]"),
        ({"feat": GOOD.astype(int)}, "floats of"),
        ({"feat": GOOD * np.nan}, "NaN or infinity"),
        ({"feat": GOOD * np.array([1, 1, np.inf, 1])}, "NaN or infinity"),
        ({"a": GOOD, "b": GOOD}, "no array 'feat' or 'features'"),
        ({}, "no array"),
        ({"feat": GOOD, "boxes": np.zeros([2, 4])}, r"boxes must be numbers of \[3, 4\]"),
    ],
)
def test_bad_features_are_refused(tmp_path, arrays, message):
    with np.errstate(all="ignore"), pytest.raises(ValueError, match=f"7.npz.*{message}"):
        read_npz(_npz(tmp_path, **arrays), dim=4)


class _Harmful:
    def __reduce__(self):
        return exec, ("raise SystemExit('code from a feature file was run')",)


def test_pickled_content_is_never_run(tmp_path):
    path = tmp_path / "7.npz"
    np.savez(path, feat=np.array([_Harmful()], object))
    with pytest.raises(ValueError, match="7.npz.*pickle"):
        read_npz(path)


def test_claimed_sizes_are_checked_before_reading(tmp_path):
    bomb = tmp_path / "bomb.npz"
    header = io.BytesIO()
    claimed = {"descr": "<f4", "fortran_order": False, "shape": (100_000, 2048)}
    np.lib.format.write_array_header_1_0(header, claimed)
    with zipfile.ZipFile(bomb, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("feat.npy", header.getvalue() + bytes(MAX_ARRAY_BYTES))
    assert bomb.stat().st_size < 1_000_000
    with pytest.raises(ValueError, match="claims .* bytes"):
        read_npz(bomb)
    with zipfile.ZipFile(bomb, "w") as archive:
        archive.writestr("feat.npy", header.getvalue() + bytes(100))
    with pytest.raises(ValueError, match="bomb.npz.*promises 819200000 bytes"):
        read_npz(bomb)


def test_files_that_are_no_npz(tmp_path):
    path = _npz(tmp_path, feat=GOOD)
    whole = path.read_bytes()
    for content in (b"", b"hello", whole[: len(whole) // 2]):
        path.write_bytes(content)
        with pytest.raises(ValueError, match="not a readable npz"):
            read_npz(path)
    damaged = bytearray(whole)
    damaged[150] ^= 255
    path.write_bytes(damaged)
    with pytest.raises(ValueError, match="7.npz"):
        read_npz(path)
    with pytest.raises(ValueError, match="No such file"):
        read_npz(tmp_path / "8.npz")
