"""Features and boxes of one image are checked, and boxes become boxes in 0..1."""

import numpy as np
import pytest
from helpers.features import vinvl_image

from tfcap.preparing.features.regions import Found, checked, grid_boxes
from tfcap.visualize import grid

GOOD = np.arange(12, dtype=np.float32).reshape(3, 4)
UNIT = np.array([[0.1, 0.2, 0.5, 1.0], [0, 0, 1, 1], [0.25, 0.5, 0.5, 0.75]])
PIXELS = UNIT * [640, 480, 640, 480]


def test_features_become_float32():
    read = checked(Found(GOOD.astype(np.float64)))
    np.testing.assert_array_equal(read.features, GOOD)
    assert read.features.dtype == np.float32 and read.boxes is None and read.image is None


def test_boxes_in_the_unit_square_are_kept():
    for size in (None, (640, 480)):
        read = checked(Found(GOOD, UNIT, size))
        np.testing.assert_allclose(read.boxes, UNIT)
        assert read.boxes.dtype == np.float32 and not read.boxes_dropped


@pytest.mark.parametrize("kind", [np.float32, np.int64, lambda number: np.array([number])])
def test_boxes_in_pixels_are_divided_by_width_and_height(kind):
    read = checked(Found(GOOD, PIXELS.astype(np.float32), (kind(640), kind(480))))
    np.testing.assert_allclose(read.boxes, UNIT, atol=1e-7)
    assert read.boxes.dtype == np.float32 and not read.boxes_dropped


def test_boxes_that_leave_the_image_by_rounding_are_clipped():
    read = checked(Found(GOOD, PIXELS + [-0.9, -0.9, 0.9, 0.9], (640, 480))).boxes
    assert read.min() == 0 and read.max() == 1
    np.testing.assert_allclose(read, UNIT, atol=0.9 / 480 + 1e-6)
    assert checked(Found(GOOD, UNIT * (1 + 1e-6))).boxes.max() == 1


def test_the_size_of_the_picture_is_used_where_the_file_has_none():
    read = checked(Found(GOOD, PIXELS), lambda: (640, 480))
    np.testing.assert_allclose(read.boxes, UNIT, atol=1e-7)
    np.testing.assert_allclose(checked(Found(GOOD, UNIT), lambda: 1 / 0).boxes, UNIT)


def test_boxes_in_pixels_of_an_image_of_unknown_size_are_dropped():
    read = checked(Found(GOOD, PIXELS))
    assert read.boxes is None and read.boxes_dropped
    assert not checked(Found(GOOD)).boxes_dropped


def test_small_boxes_that_are_known_to_be_pixels_are_divided():
    corner = np.tile(np.array([[0, 0, 1, 1]], np.float32), (3, 1))
    read = checked(Found(GOOD, corner, (10, 20), pixels=True))
    np.testing.assert_allclose(read.boxes[0], [0, 0, 0.1, 0.05])


@pytest.mark.parametrize(
    "boxes, size",
    [
        (PIXELS + [0, 0, 2, 0], (640, 480)),
        (PIXELS - [2, 0, 0, 0], (640, 480)),
        (PIXELS, (480, 640)),
        (PIXELS[:, [2, 1, 0, 3]], (640, 480)),
        (UNIT[:, [0, 3, 2, 1]], (640, 480)),
        (PIXELS * np.nan, (640, 480)),
        (PIXELS, (0, 480)),
        (PIXELS, (640, np.nan)),
        (np.zeros([2, 4]), (640, 480)),
        (np.zeros([3, 4], "U1"), (640, 480)),
    ],
)
def test_boxes_that_cannot_be_are_refused(boxes, size):
    with pytest.raises(ValueError, match="boxes|correct the size"):
        checked(Found(GOOD, boxes, size))


@pytest.mark.parametrize(
    "features",
    [
        GOOD[:0],
        GOOD[:, :0],
        np.zeros([], np.float32),
        np.zeros([2, 2, 2, 2], np.float32),
        np.zeros([512, 14, 14], np.float32),
        np.zeros([2048, 1, 1], np.float32),
        GOOD.astype(int),
        GOOD * np.nan,
        GOOD * np.array([1, 1, np.inf, 1]),
    ],
)
def test_bad_features_are_refused(features):
    with np.errstate(all="ignore"), pytest.raises(ValueError, match="regions, width|NaN"):
        checked(Found(features))


@pytest.mark.parametrize("count", [None, 2, 3])
@pytest.mark.parametrize("padding", [0, 5])
def test_features_with_their_regions_last_are_transposed(count, padding):
    """MCAN and OpenVQA write [width, regions]; a cut before this took numbers for regions."""
    width, boxes = np.tile(GOOD.T, (8, 1)), UNIT
    if padding:
        width, boxes = np.pad(width, ((0, 0), (0, padding))), np.pad(UNIT, ((0, padding), (0, 0)))
    read = checked(Found(width, boxes, regions=count))
    regions = count or 3 + padding
    np.testing.assert_array_equal(read.features, width.T[:regions])
    np.testing.assert_array_equal(read.boxes, boxes[:regions].astype("f4"))


@pytest.mark.parametrize("shape", [(2, 4), (3, 4)])
def test_rows_behind_the_count_are_cut_from_features_and_boxes(shape):
    padded = np.pad(GOOD, ((0, 2), (0, 0)))
    read = checked(Found(padded, np.pad(UNIT, ((0, 7), (0, 0))), regions=shape[0]))
    np.testing.assert_array_equal(read.features, GOOD[: shape[0]])
    np.testing.assert_array_equal(read.boxes, UNIT[: shape[0]].astype("f4"))


@pytest.mark.parametrize(
    ("count", "boxes"), [(0, None), (-1, UNIT), (4, UNIT), (np.nan, None), (4, None), (4, UNIT[:2])]
)
def test_a_count_that_is_not_of_the_regions_is_refused(count, boxes):
    with pytest.raises(ValueError, match="regions do not fit features"):
        checked(Found(GOOD, boxes, regions=count))
    with pytest.raises(ValueError, match="regions do not fit features"):
        checked(Found(np.zeros([32, 6], np.float32), regions=6))


def test_a_grid_gives_a_region_with_a_box_for_each_cell():
    cells = np.random.default_rng(0).normal(size=(2, 3, 5)).astype(np.float32)
    read = checked(Found(cells))
    np.testing.assert_array_equal(read.features, cells.reshape(6, 5))
    assert grid(read.boxes) == (2, 3)
    np.testing.assert_allclose(read.boxes[4], [1 / 3, 1 / 2, 2 / 3, 1])
    assert grid(grid_boxes(14, 14)) == (14, 14)
    with_a_batch_axis = checked(Found(GOOD[None], PIXELS, (640, 480)))
    np.testing.assert_array_equal(with_a_batch_axis.features, GOOD)


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("regions", [1, 3, 100])
def test_an_axis_of_one_makes_no_grid(axis, regions):
    features = np.random.default_rng(0).normal(size=(regions, 5)).astype(np.float32)
    read = checked(Found(np.expand_dims(features, axis)))
    np.testing.assert_array_equal(read.features, features)
    assert read.boxes is None


def test_one_vector_is_one_region():
    read = checked(Found(GOOD[0]))
    assert read.features.shape == (1, 4) and read.boxes is None


def test_the_vector_of_the_whole_image_is_kept():
    for vector in (GOOD[0].astype(np.float64), GOOD[:1]):
        read = checked(Found(GOOD, image=vector))
        np.testing.assert_array_equal(read.image, GOOD[0])
        assert read.image.dtype == np.float32
    for vector in (GOOD, GOOD[0] * np.nan):
        with pytest.raises(ValueError, match="vector of the whole image"):
            checked(Found(GOOD, image=vector))


def test_the_last_columns_of_vinvl_are_boxes():
    one = vinvl_image(3)
    np.testing.assert_allclose(checked(Found(one.features)).boxes, one.unit, atol=1e-6)
    other = one.features.copy()
    other[0, -1] += 0.1  # the height is not that of the box: so these columns are something else
    assert checked(Found(other)).boxes is None
