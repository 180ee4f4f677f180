"""Checks the features and boxes of one image, whatever file they come from.

Letters: R regions, F feature width, F2 width of the vector of a whole image, H rows and W columns
of a grid.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

# Names that published files give to the arrays of an image; the first that is there counts.
FEATURES = ("feat", "features", "x", "z")
BOXES = ("boxes", "bbox")
COUNTS = ("num_boxes", "num_bbox")  # rows behind this number are padding
SIZES = (("image_w", "image_h"), ("img_w", "img_h"))

# A larger array belongs to a damaged or hostile file: 10,000 regions of 4,096 float64.
MAX_ARRAY_BYTES = 10_000 * 4_096 * 8
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
    values, boxes, unit = content.features, content.boxes, False
    rows = None if boxes is None else boxes.shape[:1]
    if rows == values.shape[1:] != values.shape[:1]:
        values = values.T
    if content.regions is not None and values.ndim == 2:
        # Features [F, R] without boxes [R, 4] would lose all but R rows of R numbers.
        turned = content.regions == values.shape[1] != len(values) and rows != values.shape[:1]
        if turned or not 0 < content.regions <= len(values):
            raise ValueError(
                f"num_boxes or num_bbox must be 1 to the number of regions. Received: "
                f"{content.regions} for features {list(values.shape)} and "
                f"{'no boxes' if boxes is None else f'boxes {list(boxes.shape)}'}. Write features "
                "as [regions, width]."
            )
        values = values[: int(content.regions)]
        boxes = None if boxes is None else boxes[: int(content.regions)]
    features = values[0] if values.ndim == 3 and len(values) == 1 else values
    # No grid is one cell wide. [2048, 1, 1] is neither: it has its channels first.
    if features.ndim == 3 and features.shape[1] == 1 < features.shape[2]:
        features = features[:, 0]
    features = features[None] if features.ndim == 1 else features
    if features.ndim == 3 and 0 not in features.shape and max(features.shape[:2]) <= _MOST_CELLS:
        if boxes is None:
            boxes, unit = grid_boxes(*features.shape[:2]), True
        features = features.reshape(-1, features.shape[2])
    if features.ndim != 2 or features.dtype.kind != "f" or 0 in features.shape:
        raise ValueError(
            "features must be floating point [regions, width] with at least one region, or a grid "
            f"[rows, columns, width] of at most {_MOST_CELLS} rows and columns. Received: "
            f"{values.dtype} {list(values.shape)}. Write them in this form."
        )
    if not np.isfinite(features).all():
        raise ValueError("features must be finite. Received: NaN or infinity. Extract them again.")
    image = None if content.image is None else _vector(content.image)
    if boxes is None and features.shape[1] == _VINVL_WIDTH:
        boxes = _last_columns(features)
        unit = boxes is not None
    dropped = False
    if boxes is not None and not unit:
        given, boxes = boxes, _unit_boxes(boxes, len(features), content, size_of)
        dropped = boxes is None and given is not None
    features = np.asarray(features, np.float32)
    boxes = None if boxes is None else np.asarray(boxes, np.float32)
    return Regions(features, boxes, image, dropped)


def found(arrays: Mapping[str, np.ndarray], features: str) -> Found:
    """Returns what an image has in an npz file or in a group of HDF5.

    Args:
      arrays: its arrays by their names in the file.
      features: the name of the features.
    """

    def first(names: Sequence[str]) -> np.ndarray | None:
        return next((arrays[name] for name in names if name in arrays and name != features), None)

    values, boxes, count = arrays[features], first(BOXES), first(COUNTS)
    regions = None
    if count is not None and count.size == 1 and count.dtype.kind in "iuf":
        regions = count.item()
    size = next(((arrays[w], arrays[h]) for w, h in SIZES if w in arrays and h in arrays), None)
    image = first(["image"])
    if image is not None and (image.dtype.kind != "f" or image.squeeze().ndim != 1):
        image = None  # something else, such as the pixels of the picture
    return Found(values, boxes, size, image, regions=regions)


def grid_boxes(rows: int, columns: int) -> np.ndarray:
    """Returns the boxes float32 [H * W, 4] of the cells of a grid, row by row, in 0..1."""
    y, x = np.divmod(np.arange(rows * columns), columns)
    return np.stack([x / columns, y / rows, (x + 1) / columns, (y + 1) / rows], 1).astype("f4")


def _vector(image: np.ndarray) -> np.ndarray:
    """Returns the vector of a whole image as float32 [F2]; [1, F2] counts as [F2]."""
    vector = image[0] if image.ndim == 2 and len(image) == 1 else image
    if vector.ndim != 1 or vector.dtype.kind != "f" or not len(vector):
        raise ValueError(
            "the vector of the whole image must be floating point [width]. Received: "
            f"{image.dtype} {list(image.shape)}. Write it in this form."
        )
    if not np.isfinite(vector).all():
        raise ValueError(
            "the vector of the whole image must be finite. Received: NaN or infinity. Extract it "
            "again."
        )
    return vector.astype(np.float32)


def _last_columns(features: np.ndarray) -> np.ndarray | None:
    """Returns the boxes [R, 4] in the last columns of VinVL's features, or None."""
    columns = features[:, -_VINVL_BOX:].astype(np.float64)
    boxes, sides = columns[:, :4], columns[:, 4:]
    fits = _inside(boxes, np.full(4, _UNIT_ROUNDING))
    fits = fits and np.allclose(boxes[:, 2:] - boxes[:, :2], sides, atol=_UNIT_ROUNDING)
    return np.clip(boxes, 0, 1) if fits and (sides >= 0).all() else None


def _unit_boxes(
    given: np.ndarray, regions: int, content: Found, size_of: Callable[[], Size | None]
) -> np.ndarray | None:
    """Returns boxes [R, 4] in 0..1, or None if they are in pixels and the size is unknown."""
    if given.shape != (regions, 4) or given.dtype.kind not in "fiu":
        raise ValueError(
            f"boxes must be numbers [{regions}, 4]. Received: {given.dtype} {list(given.shape)}. "
            "Write a box for each region."
        )
    boxes, size = given.astype(np.float64), None
    rounding: np.ndarray = np.full(4, _UNIT_ROUNDING)
    if content.pixels or not _inside(boxes, rounding):
        size = _checked_size(content.size)
        if size is None:
            size = _checked_size(size_of())
        if size is None:
            return None
        boxes, rounding = boxes / size, _PIXEL_ROUNDING / size
    if not _inside(boxes, rounding) or not (boxes[:, :2] <= boxes[:, 2:]).all():
        raise ValueError(
            "boxes must be x1, y1, x2, y2 inside the image, with x1 <= x2 and y1 <= y2. Received: "
            f"{given.min()} to {given.max()}, image size "
            f"{'unknown' if size is None else size[:2].tolist()}. Correct the boxes or the size."
        )
    return np.clip(boxes, 0, 1)


def _inside(boxes: np.ndarray, rounding: np.ndarray) -> bool:
    """Returns whether all boxes [R, 4] lie in 0..1 up to rounding [4]; False for NaN."""
    return bool(((boxes >= -rounding) & (boxes <= 1 + rounding)).all())


def _checked_size(size: Size | None) -> np.ndarray | None:
    """Returns (w, h, w, h) float64 [4] in pixels."""
    if size is None:
        return None
    sides = [np.asarray(side) for side in size]
    if not all(s.size == 1 and s.dtype.kind in "fiu" and 0 < s.item() < np.inf for s in sides):
        width, height = (side.tolist() for side in sides)
        raise ValueError(
            "width and height of the image must be one positive number each. Received: "
            f"{width!r:.60} and {height!r:.60}. Correct the size in the file."
        )
    return np.array([side.item() for side in sides] * 2, np.float64)
