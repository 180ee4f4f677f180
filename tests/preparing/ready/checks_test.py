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
