"""Checks the features and boxes of one image, whatever file they come from.

Letters: R regions, F feature width, F2 width of the vector of a whole image, H rows and W columns
of a grid.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

_MOST_CELLS = 64  # along a side of a grid; more means that the axes have another order
_PIXEL_ROUNDING = 1.0  # pixels by which a detector's box may leave its image
_UNIT_ROUNDING = 1e-3  # the same for boxes in 0..1
# VinVL appends x1, y1, x2, y2, width and height of a region, in 0..1, to its 2,048 features.
_VINVL_WIDTH, _VINVL_BOX = 2054, 6

Size = tuple[Any, Any]  # width and height of an image in pixels


class Found(NamedTuple):
    """What a file holds for one image; nothing is checked yet.

    Attributes:
      features: [R, F], also as [1, R, F] or [R, 1, F], a grid [H, W, F], or one vector [F].
      boxes: [R, 4] as x1, y1, x2, y2, or None.
      size: width and height of the image, or None.
      image: the vector [F2] of the whole image, or None.
      pixels: whether boxes are known to be in pixels; otherwise their values decide.
      regions: how many rows of features [R, F] and of boxes are no padding; None for all.
    """

    features: np.ndarray
    boxes: np.ndarray | None = None
    size: Size | None = None
    image: np.ndarray | None = None
    pixels: bool = False
    regions: float | None = None


class Regions(NamedTuple):
    """The checked features of one image.

    Attributes:
      features: float32 [R, F].
      boxes: float32 [R, 4], x1, y1, x2, y2 in 0..1, or None.
      image: float32 [F2], the vector of the whole image, or None.
      boxes_dropped: whether boxes in pixels were dropped, because the image's size is unknown.
    """

    features: np.ndarray
    boxes: np.ndarray | None
    image: np.ndarray | None
    boxes_dropped: bool


def checked(content: Found, size_of: Callable[[], Size | None] = lambda: None) -> Regions:
    """Checks what a file holds, and turns boxes in pixels into boxes in 0..1.

    A grid becomes H * W regions, row by row, with the boxes of its cells; [R, 1, F] and [1, R, F]
    are R regions and no grid. Features [F, R] beside R boxes, as MCAN and OpenVQA have them, are
    transposed. Features of VinVL, whose last six columns are the box of the region, give the boxes
    where there are no others.

    Args:
      content: the content of the file.
      size_of: returns the size of the image if the file does not have it, or None.

    Raises:
      ValueError: a wrong shape or type, no region, NaN or infinity, or boxes outside the image. The
        message does not name the file.
    """
    values, boxes = content.features, content.boxes
    rows = None if boxes is None else boxes.shape[:1]
    if rows == values.shape[1:] != values.shape[:1]:
        values = values.T
    if content.regions is not None and values.ndim == 2:
        # Features [F, R] without boxes [R, 4] would lose all but R rows of R numbers.
        turned = content.regions == values.shape[1] != len(values) and rows != values.shape[:1]
        if turned or not 0 < content.regions <= len(values):
            raise ValueError(
                f"{content.regions} regions do not fit features {list(values.shape)}: write them "
                "as [regions, width]."
            )
        values = values[: int(content.regions)]
        boxes = None if boxes is None else boxes[: int(content.regions)]
    features, grid = _rows(values)
    image = None if content.image is None else _vector(content.image)
    unit, dropped = boxes, False
    if boxes is not None:
        unit = _unit_boxes(boxes, len(features), content, size_of)
        dropped = unit is None
    elif grid is not None:
        unit = grid
    elif features.shape[1] == _VINVL_WIDTH:
        unit = _last_columns(features)
    unit = None if unit is None else np.asarray(unit, np.float32)
    return Regions(np.asarray(features, np.float32), unit, image, dropped)


def grid_boxes(rows: int, columns: int) -> np.ndarray:
    """Returns the boxes float32 [H * W, 4] of the cells of a grid, row by row, in 0..1."""
    y, x = np.divmod(np.arange(rows * columns), columns)
    return np.stack([x / columns, y / rows, (x + 1) / columns, (y + 1) / rows], 1).astype("f4")


def _rows(values: np.ndarray) -> tuple[np.ndarray, np.ndarray | None]:
    """Returns features [R, F], and the boxes of the cells if they were a grid."""
    features, boxes = values, None
    if features.ndim == 3 and len(features) == 1:
        features = features[0]
    # No grid is one cell wide. [2048, 1, 1] is neither: it has its channels first.
    if features.ndim == 3 and features.shape[1] == 1 < features.shape[2]:
        features = features[:, 0]
    features = features[None] if features.ndim == 1 else features
    if features.ndim == 3 and 0 not in features.shape and max(features.shape[:2]) <= _MOST_CELLS:
        boxes = grid_boxes(*features.shape[:2])
        features = features.reshape(-1, features.shape[2])
    if features.ndim != 2 or features.dtype.kind != "f" or 0 in features.shape:
        raise ValueError(
            f"features are {values.dtype} {list(values.shape)}: write floating point "
            f"[regions, width], or a grid [rows, columns, width] of at most {_MOST_CELLS} rows."
        )
    if not np.isfinite(features).all():
        raise ValueError("features must be finite: they have NaN or infinity.")
    return features, boxes


def _vector(image: np.ndarray) -> np.ndarray:
    """Returns the vector of a whole image as float32 [F2]; [1, F2] counts as [F2]."""
    vector = image[0] if image.ndim == 2 and len(image) == 1 else image
    if vector.ndim != 1 or vector.dtype.kind != "f" or not len(vector):
        raise ValueError(
            f"the vector of the whole image is {image.dtype} {list(image.shape)}: write floating "
            "point [width]."
        )
    if not np.isfinite(vector).all():
        raise ValueError("the vector of the whole image has NaN or infinity.")
    return vector.astype(np.float32)


def _last_columns(features: np.ndarray) -> np.ndarray | None:
    """Returns the boxes [R, 4] in the last columns of VinVL's features, or None."""
    columns = features[:, -_VINVL_BOX:].astype(np.float64)
    boxes, sides = columns[:, :4], columns[:, 4:]
    fits = _inside(boxes, np.full(4, _UNIT_ROUNDING))
    fits = fits and np.allclose(boxes[:, 2:] - boxes[:, :2], sides, atol=_UNIT_ROUNDING)
    return np.clip(boxes, 0, 1) if fits and (sides >= 0).all() else None


def _unit_boxes(
    corners: np.ndarray, regions: int, content: Found, size_of: Callable[[], Size | None]
) -> np.ndarray | None:
    """Returns boxes [R, 4] in 0..1, or None if they are in pixels and the size is unknown."""
    if corners.shape != (regions, 4) or corners.dtype.kind not in "fiu":
        raise ValueError(
            f"boxes are {corners.dtype} {list(corners.shape)}: write numbers [{regions}, 4]."
        )
    boxes, size = corners.astype(np.float64), None
    rounding: np.ndarray = np.full(4, _UNIT_ROUNDING)
    if content.pixels or not _inside(boxes, rounding):
        size = content.size or size_of()
        if size is None:
            return None
        sides = np.array([np.asarray(side).item() for side in size] * 2, np.float64)
        if not (0 < sides).all() or not (sides < np.inf).all():
            raise ValueError(f"the image has {sides[0]:g} x {sides[1]:g} pixels: correct the size.")
        boxes, rounding = boxes / sides, _PIXEL_ROUNDING / sides
    if not _inside(boxes, rounding) or not (boxes[:, :2] <= boxes[:, 2:]).all():
        pixels = "of unknown size" if size is None else f"of {sides[0]:g} x {sides[1]:g} pixels"
        raise ValueError(
            f"boxes of {corners.min()} to {corners.max()} are not x1, y1, x2, y2 inside an image "
            f"{pixels}, with x1 <= x2 and y1 <= y2."
        )
    return np.clip(boxes, 0, 1)


def _inside(boxes: np.ndarray, rounding: np.ndarray) -> bool:
    """Returns whether all boxes [R, 4] lie in 0..1 up to rounding [4]; False for NaN."""
    return bool(((boxes >= -rounding) & (boxes <= 1 + rounding)).all())
