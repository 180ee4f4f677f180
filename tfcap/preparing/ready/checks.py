"""Checks the arrays of an image that another program has written, and brings them into one form.

Letters: R regions, F feature width, F2 width of the vector of a whole image, H rows and W columns
of a grid.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from tfcap.preparing.pictures import Extracted
from tfcap.preparing.ready.layouts import (
    BOXES,
    COUNTS,
    FEATURES,
    GRAPH,
    OTHERS,
    SHAPES,
    SIZES,
    Arrays,
)
from tfcap.preparing.sources.entry import Entry

_MOST_CELLS = 64  # along a side of a grid; more means that the axes have another order
_PIXEL_ROUNDING = 1.0  # pixels by which a detector's box may leave its image
_UNIT_ROUNDING = 1e-3  # the same for boxes in 0..1
# VinVL appends x1, y1, x2, y2, width and height of a region, in 0..1, to its 2,048 features.
_VINVL_WIDTH = 2054
_VINVL_BOX = 6

Size = tuple[Any, Any]  # width and height of an image in pixels


def checked(
    entry: Entry, arrays: Arrays, size_of: Callable[[Entry], Size | None] = lambda entry: None
) -> Extracted:
    """Checks the arrays of one image from feature files, and brings them into one form.

    R is the number of regions, F the width of a feature vector. The features may be

    * [R, F], [1, R, F], [R, 1, F] or one vector [F];
    * a grid [rows, columns, F]: its cells become regions, row by row, with the boxes of the cells;
    * [F, R], if there are R boxes, as in MCAN and OpenVQA: they are transposed;
    * those of VinVL [R, 2054]: if there is no array of boxes, the last six columns give the boxes.

    Boxes are corners x1, y1, x2, y2, in 0..1 or in pixels.

    A scene graph, for the system `sgae`, becomes six numbers behind the features of each region,
    see `_graph_columns`. It is in two arrays:

    * `graph`, integers [E, 3]: of each of E edges the row of the object where it begins, the row of
      the object to which it leads, from 0, and the id of its word in the vocabulary. -1 in place of
      the second row makes the edge an attribute of the first.
    * `labels`, integers [O]: of each object of a sentence the id of its word. The objects of an
      image are its regions, which need no labels.

    Args:
      entry: the image.
      arrays: the arrays of the image by name, as `FeatureFiles.read` returns them.
      size_of: a function that returns width and height of the image in pixels, or None if they are
        unknown. The function is called if the boxes are in pixels and the arrays do not have the
        size. If it returns None, the boxes are dropped.

    Returns:
      An `Extracted` with `features`, `boxes` (None if there are none) and `boxes_dropped`, and with
      `image` if the arrays have a vector of the whole image.

    Raises:
      ValueError: the arrays do not fit each other, or have none of these forms.
    """
    name = name_of_features(arrays)
    others = {n: np.asarray(arrays[n]) for n in OTHERS if n in arrays and n != name}
    values = np.asarray(arrays[name])
    boxes = _first(others, BOXES)
    if boxes is not None and boxes.shape[:1] == values.shape[1:] != values.shape[:1]:
        values = values.T
    values, boxes = _without_padding(values, boxes, _first(others, COUNTS))
    features, unit = _rows(values)
    dropped = False
    if boxes is not None:
        size = _stated_size(others)
        unit = _unit_boxes(boxes, len(features), size, lambda: size_of(entry))
        dropped = unit is None
    elif unit is None and features.shape[1] == _VINVL_WIDTH:
        unit = _last_columns(features)
    graph, labels = map(others.get, GRAPH)
    if graph is not None:
        columns = _graph_columns(graph, np.zeros(0, int) if labels is None else labels, features)
        missing = ((0, len(columns) - len(features)), (0, 0))
        features = np.hstack([np.pad(features, missing), columns])
        unit = None if unit is None else np.pad(unit, missing)
    return Extracted(
        entry,
        np.asarray(features, np.float32),
        None if unit is None else np.asarray(unit, np.float32),
        None,
        dropped,
        image=_vector(others.get("image")),
    )


def _graph_columns(graph: np.ndarray, labels: np.ndarray, features: np.ndarray) -> np.ndarray:
    """Returns a scene graph as six columns of numbers that are exact as float16.

    Row i has the label of object i (thousands, rest), the start of edge i, its end, and its label
    (thousands, rest). Start and end are counted from 1; 0 means that there is none. There may be
    more rows than regions.
    """
    objects = max(len(features), len(labels))
    whole = graph.dtype.kind in "iu" and labels.dtype.kind in "iu"
    if not whole or labels.ndim != 1 or graph.shape != (len(graph), 3):
        raise ValueError(
            f"the scene graph is {graph.dtype} {list(graph.shape)} with labels {labels.dtype} "
            f"{list(labels.shape)}: write integers graph [edges, 3] and labels [objects]."
        )
    first, second, words = graph.T
    ids = np.concatenate([labels, words])
    rows_exist = (first >= 0).all() and (second >= -1).all() and (graph[:, :2] < objects).all()
    rows = max(objects, len(graph))
    if not rows_exist or not ((ids > 0) & (ids < 1 << 16)).all() or rows > 2048:
        raise ValueError(
            "the scene graph names objects or words that there cannot be, or is too large: write "
            f"rows of objects from 0 to {objects - 1}, -1 as the end of an attribute, ids of words "
            "from 1 to 65535, and at most 2048 objects and edges."
        )
    columns = np.zeros((rows, 6))
    columns[: len(labels), :2] = np.stack(np.divmod(labels, 1000), axis=1)
    columns[: len(graph), 2:4] = graph[:, :2] + 1
    columns[: len(graph), 4:] = np.stack(np.divmod(words, 1000), axis=1)
    return columns


def _first(arrays: Mapping[str, np.ndarray], names: Sequence[str]) -> np.ndarray | None:
    """Returns the first of the named arrays that is there."""
    return next((arrays[name] for name in names if name in arrays), None)


def _vector(image: np.ndarray | None) -> np.ndarray | None:
    """Returns the vector [F2] of a whole image, or None for something else, such as its pixels."""
    if image is None or image.dtype.kind != "f" or image.squeeze().ndim != 1:
        return None
    return image.astype(np.float32).ravel()


def _without_padding(
    values: np.ndarray, boxes: np.ndarray | None, count: np.ndarray | None
) -> tuple[np.ndarray, np.ndarray | None]:
    """Returns the first `count` rows of features and boxes."""
    if count is None or count.size != 1 or values.ndim != 2:
        return values, boxes
    regions = int(count.item())
    if not 0 < regions <= len(values):
        raise ValueError(
            f"the file states {regions} regions, but its features have the shape "
            f"{list(values.shape)}: write features [regions, width]."
        )
    return values[:regions], None if boxes is None else boxes[:regions]


def name_of_features(arrays: Arrays) -> str:
    """Returns the name of the array that has the features.

    If an array has a usual name for features, such as `feat` or `features`, that name is returned.
    Otherwise arrays with another usual name, such as `boxes` or `image_w`, are left aside, and the
    name of the only other array is returned. If there is just one array, its name is returned.

    Raises:
      ValueError: no array has a usual name for features, and it is not clear which one has them.
    """
    name = next((name for name in FEATURES if name in arrays), None)
    if name is not None:
        return name
    left = [n for n in arrays if n not in OTHERS] or list(arrays)
    if len(left) != 1:
        raise ValueError(
            f"no array in the file has a known name for features ({', '.join(FEATURES)}); the file "
            f"has: {', '.join(left)}. Rename the array of the features to feat."
        )
    return left[0]


def _stated_size(arrays: Mapping[str, np.ndarray]) -> Size | None:
    """Returns width and height as the file has them, or None."""
    for width, height in SIZES:
        if width in arrays and height in arrays:
            return arrays[width], arrays[height]
    shape = _first(arrays, SHAPES)  # with the channels, if it is that of an array
    return None if shape is None or shape.size not in (2, 3) else tuple(shape.ravel()[1::-1])


def _rows(values: np.ndarray) -> tuple[np.ndarray, np.ndarray | None]:
    """Returns features [R, F], and the boxes of the cells if they were a grid."""
    features = values
    boxes = None
    if features.ndim == 3 and len(features) == 1:
        features = features[0]
    # No grid is one cell wide. [2048, 1, 1] is neither: it has its channels first.
    if features.ndim == 3 and features.shape[1] == 1 < features.shape[2]:
        features = features[:, 0]
    features = features[None] if features.ndim == 1 else features
    if features.ndim == 3 and max(features.shape[:2]) <= _MOST_CELLS:
        rows, columns, _ = features.shape
        y, x = np.divmod(np.arange(rows * columns), columns)
        boxes = np.stack([x / columns, y / rows, (x + 1) / columns, (y + 1) / rows], 1)
        features = features.reshape(rows * columns, -1)
    if features.ndim != 2 or features.dtype.kind != "f" or 0 in features.shape:
        raise ValueError(
            f"the features are {values.dtype} with the shape {list(values.shape)}: write "
            "floating-point numbers [regions, width], or a grid [rows, columns, width] of at most "
            f"{_MOST_CELLS} rows and columns."
        )
    return features, boxes


def _last_columns(features: np.ndarray) -> np.ndarray | None:
    """Returns the boxes [R, 4] in the last columns of VinVL's features, or None."""
    columns = features[:, -_VINVL_BOX:].astype(np.float64)
    boxes = columns[:, :4]
    sides = columns[:, 4:]
    fits = _inside(boxes, _UNIT_ROUNDING)
    fits = fits and np.allclose(boxes[:, 2:] - boxes[:, :2], sides, atol=_UNIT_ROUNDING)
    return np.clip(boxes, 0, 1) if fits and (sides >= 0).all() else None


def _unit_boxes(
    corners: np.ndarray, regions: int, size: Size | None, size_of: Callable[[], Size | None]
) -> np.ndarray | None:
    """Returns boxes [R, 4] in 0..1, or None if they are in pixels and the size is unknown."""
    if corners.shape != (regions, 4):
        raise ValueError(
            f"the boxes have the shape {list(corners.shape)}, but there are {regions} regions: "
            f"write [{regions}, 4], a row per region."
        )
    boxes = corners.astype(np.float64)
    rounding = np.full(4, _UNIT_ROUNDING)
    pixels = "of unknown size"
    if not _inside(boxes, rounding):
        size = size or size_of()
        if size is None:
            return None
        sides = np.array([np.asarray(side).item() for side in size] * 2, np.float64)
        if not (sides > 0).all():
            return None
        pixels = f"of {sides[0]:g} x {sides[1]:g} pixels (width x height)"
        boxes = boxes / sides
        rounding = _PIXEL_ROUNDING / sides
    if not _inside(boxes, rounding) or not (boxes[:, :2] <= boxes[:, 2:]).all():
        raise ValueError(
            f"the boxes have values from {corners.min()} to {corners.max()}, and the image is "
            f"{pixels}: write x1, y1, x2, y2 inside the image, with x1 <= x2 and y1 <= y2."
        )
    return np.clip(boxes, 0, 1)


def _inside(boxes: np.ndarray, rounding: np.ndarray | float) -> bool:
    """True if all boxes [R, 4] lie in 0..1 up to rounding; False for NaN."""
    return bool(((boxes >= -rounding) & (boxes <= 1 + rounding)).all())
