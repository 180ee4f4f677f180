"""Ready features: one npz per image."""

import io
import zipfile

import numpy as np
import pytest

from tfcap.preparing.features import ready
from tfcap.preparing.features.ready import read_npz


def _npz(tmp_path, **arrays):
    path = tmp_path / "7.npz"
    np.savez(path, **arrays)
    return path


GOOD = np.arange(12, dtype=np.float32).reshape(3, 4)


@pytest.mark.parametrize("key", ["feat", "features", "x"])
def test_reads_the_array_under_any_of_its_names(tmp_path, key):
    array, boxes, _ = read_npz(_npz(tmp_path, **{key: GOOD.astype(np.float64)}), dim=4)
    np.testing.assert_array_equal(array, GOOD)
    assert array.dtype == np.float32 and boxes is None


UNIT = np.array([[0.1, 0.2, 0.5, 1.0], [0, 0, 1, 1], [0.25, 0.5, 0.5, 0.75]])
PIXELS = UNIT * [640, 480, 640, 480]


def test_boxes_in_the_unit_square_are_kept(tmp_path):
    for sizes in ({}, {"image_h": 480}, {"image_w": 640, "image_h": 480}):
        read = read_npz(_npz(tmp_path, features=GOOD, boxes=UNIT, **sizes))
        np.testing.assert_allclose(read.boxes, UNIT)
        assert read.boxes.dtype == np.float32 and not read.boxes_dropped


@pytest.mark.parametrize("kind", [np.float32, np.int64, lambda number: np.array([number])])
def test_boxes_in_pixels_are_divided_by_width_and_height(tmp_path, kind):
    sizes = {"image_w": kind(640), "image_h": kind(480)}
    read = read_npz(_npz(tmp_path, features=GOOD, boxes=PIXELS.astype(np.float32), **sizes))
    np.testing.assert_allclose(read.boxes, UNIT, atol=1e-7)
    assert read.boxes.dtype == np.float32 and not read.boxes_dropped


def test_boxes_that_leave_the_image_by_rounding_are_clipped(tmp_path):
    sizes = {"image_w": 640, "image_h": 480}
    beyond = PIXELS + [-0.9, -0.9, 0.9, 0.9]
    read = read_npz(_npz(tmp_path, features=GOOD, boxes=beyond, **sizes)).boxes
    assert read.min() == 0 and read.max() == 1
    np.testing.assert_allclose(read, UNIT, atol=0.9 / 480 + 1e-6)
    read = read_npz(_npz(tmp_path, features=GOOD, boxes=UNIT * (1 + 1e-6))).boxes
    assert read.max() == 1


def test_boxes_in_pixels_without_the_image_size_are_dropped(tmp_path):
    for sizes in ({}, {"image_h": 480}, {"image_w": 640}):
        read = read_npz(_npz(tmp_path, features=GOOD, boxes=PIXELS, **sizes))
        assert read.boxes is None and read.boxes_dropped
    assert not read_npz(_npz(tmp_path, features=GOOD)).boxes_dropped


@pytest.mark.parametrize(
    "boxes, sizes, message",
    [
        (PIXELS + [0, 0, 2, 0], (640, 480), "inside the image.* Received: 0.0 to 642.0"),
        (PIXELS - [2, 0, 0, 0], (640, 480), "inside the image"),
        (PIXELS, (480, 640), "inside the image"),
        (PIXELS[:, [2, 1, 0, 3]], (640, 480), "x1 <= x2"),
        (UNIT[:, [0, 3, 2, 1]], (640, 480), "y1 <= y2"),
        (PIXELS * np.nan, (640, 480), "inside the image"),
        (PIXELS, (0, 480), "one positive number each. Received: 0 and 480"),
        (PIXELS, (640, np.nan), "one positive number each"),
        (PIXELS, ([640, 640], 480), "one positive number each"),
        (PIXELS, (640, "480"), "one positive number each"),
    ],
)
def test_boxes_that_cannot_be_are_refused(tmp_path, boxes, sizes, message):
    width, height = sizes
    path = _npz(tmp_path, features=GOOD, boxes=boxes, image_w=width, image_h=height)
    with pytest.raises(ValueError, match=f"7.npz.*{message}"):
        read_npz(path)


@pytest.mark.parametrize(
    "arrays, message",
    [
        ({"feat": GOOD[:, :3]}, "must be 4 wide.* Received: 3"),
        ({"feat": GOOD[:0]}, "at least one region"),
        ({"feat": GOOD[0]}, r"floating point \[regions, width\]"),
        ({"feat": GOOD.astype(int)}, "floating point"),
        ({"feat": GOOD * np.nan}, "NaN or infinity"),
        ({"feat": GOOD * np.array([1, 1, np.inf, 1])}, "NaN or infinity"),
        ({"a": GOOD, "b": GOOD}, "must have an array 'feat' or 'features'. Received: .'a', 'b'"),
        ({}, "must have an array"),
        ({"feat": GOOD, "boxes": np.zeros([2, 4])}, r"boxes must be numbers \[3, 4\]"),
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


def test_claimed_sizes_are_checked_before_reading(tmp_path, monkeypatch):
    monkeypatch.setattr(ready, "MAX_ARRAY_BYTES", 1_000_000)
    bomb = tmp_path / "bomb.npz"
    header = io.BytesIO()
    claimed = {"descr": "<f4", "fortran_order": False, "shape": (100_000, 2048)}
    np.lib.format.write_array_header_1_0(header, claimed)
    with zipfile.ZipFile(bomb, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("feat.npy", header.getvalue() + bytes(1_000_000))
    assert bomb.stat().st_size < 10_000
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
