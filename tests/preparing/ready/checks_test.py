"""The arrays of an image are brought into one form, with boxes in 0..1."""

import numpy as np
import pytest

from tfcap.preparing.ready import checked
from tfcap.preparing.sources.entry import Entry

UNIT = np.array([[0.1, 0.2, 0.5, 1.0], [0, 0, 1, 1], [0.25, 0.5, 0.5, 0.75]])
PIXELS = UNIT * [640, 480, 640, 480]
REGIONS = np.arange(12, dtype=np.float32).reshape(3, 4)
PADDED = ((0, 5), (0, 0))
IMAGE = Entry(9, "9.jpg", "train", ("A dog.",), has_id=True)


@pytest.mark.parametrize(
    "arrays, size, boxes",
    [
        ({"x": REGIONS, "boxes": UNIT}, None, UNIT),
        ({"x": REGIONS, "boxes": PIXELS, "image_w": 640, "image_h": np.array([480])}, None, UNIT),
        ({"x": REGIONS, "boxes": PIXELS + [-0.9, -0.9, 0.9, 0.9]}, (640, 480), UNIT),
        ({"x": REGIONS, "boxes": PIXELS, "size": np.array([480, 640, 3])}, None, UNIT),
        ({"x": REGIONS, "boxes": PIXELS, "size": np.array([0, 0])}, None, None),
        ({"x": REGIONS, "boxes": PIXELS}, None, None),
        ({"x": REGIONS[None]}, None, None),
        ({"x": REGIONS[:, None]}, None, None),
        ({"x": np.pad(REGIONS, PADDED), "bbox": np.pad(UNIT, PADDED), "num_bbox": 3}, None, UNIT),
        ({"x": np.pad(REGIONS, PADDED).T, "bbox": np.pad(UNIT, PADDED), "num_bbox": 3}, None, UNIT),
    ],
)
def test_features_and_boxes_are_brought_into_one_form(arrays, size, boxes):
    read = checked(IMAGE, arrays, lambda entry: size)
    np.testing.assert_array_equal(read.features, REGIONS)
    assert (read.boxes is None) == (boxes is None)
    assert read.boxes_dropped == (boxes is None and "boxes" in arrays)
    if boxes is not None:
        np.testing.assert_allclose(read.boxes, boxes, atol=1 / 480)
        assert read.boxes.min() == 0 and read.boxes.max() == 1


def test_a_scene_graph_stands_in_six_columns_behind_the_features():
    """The label of an object, and an edge: start and end from 1, label; labels as thousands, rest.

    Four edges need a fourth row, which has no region and no box.
    """
    edges = np.array([[0, 2, 12345], [2, -1, 7], [1, 1, 999], [0, -1, 1000]])
    arrays = {"x": REGIONS, "boxes": UNIT, "graph": edges, "labels": np.array([65535, 4])}
    read = checked(IMAGE, arrays)
    np.testing.assert_array_equal(read.features[:, :4], [*REGIONS, np.zeros(4)])
    expected = [[65, 535, 1, 3, 12, 345], [0, 4, 3, 0, 0, 7], [0, 0, 2, 2, 0, 999]]
    np.testing.assert_array_equal(read.features[:, 4:], [*expected, [0, 0, 1, 0, 1, 0]])
    np.testing.assert_array_equal(read.features, read.features.astype(np.float16))
    np.testing.assert_allclose(read.boxes, [*UNIT, np.zeros(4)])


@pytest.mark.parametrize(
    "graph, labels, message",
    [
        ([[0.0, 1.0, 5.0]], [], "write integers graph"),
        ([[0, 1]], [], r"int64 \[1, 2\]"),
        ([[0, 3, 5]], [], "rows of objects from 0 to 2, "),
        ([[-1, 0, 5]], [], "rows of objects"),
        ([[0, 1, 0]], [], "ids of words from 1 to 65535"),
        ([[0, 1, 5]], [1 << 16], "ids of words from 1 to 65535"),
        ([[0, 1, 5]] * 2049, [], "at most 2048"),
    ],
)
def test_a_scene_graph_that_fits_no_image_is_refused(graph, labels, message):
    arrays = {"x": REGIONS, "graph": np.array(graph), "labels": np.array(labels, int)}
    with pytest.raises(ValueError, match=message):
        checked(IMAGE, arrays)
