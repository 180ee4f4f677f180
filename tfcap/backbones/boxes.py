"""The arithmetic of boxes in Faster R-CNN as Caffe has it, in stock TensorFlow operations.

The sources are Girshick, "Fast R-CNN", ICCV 2015, and Ren et al., "Faster R-CNN", NeurIPS 2015.
Every rounding is that of the released code: of py-faster-rcnn, and for the choice of the regions of
peteanderson80/bottom-up-attention.

Letters: H' and W' height and width of the picture that the network reads; h and w cells of its map,
of 16 pixels; A = 12 anchors; P proposals; C classes; D channels; N boxes.
"""

import numpy as np
import tensorflow as tf

_STRIDE = 16  # pixels of a cell of the map
# Corners x1, y1, x2, y2 around the first cell, as generate_anchors.py makes them: three ratios
# of four scales. The rounding is Caffe's own.
ANCHORS = np.array(
    [
        [-38, -16, 53, 31],
        [-84, -40, 99, 55],
        [-176, -88, 191, 103],
        [-360, -184, 375, 199],
        [-24, -24, 39, 39],
        [-56, -56, 71, 71],
        [-120, -120, 135, 135],
        [-248, -248, 263, 263],
        [-14, -36, 29, 51],
        [-36, -80, 51, 95],
        [-80, -168, 95, 183],
        [-168, -344, 183, 359],
    ],
    np.float32,
)
_BINS = 14  # along a side of a proposal
_RPN_OVERLAP = 0.7  # of two proposals: the share of their union that they have in common
_CLASS_OVERLAP = 0.3  # of two regions of the same class
_CONFIDENCE = np.float32(0.2)  # least score of a region in some class


def anchors(cells: tf.Tensor) -> tf.Tensor:
    """Returns the anchors of a feature map: fixed boxes around each cell, the start of proposals.

    Each cell covers 16 x 16 pixels of the picture that the network reads, and has A = 12 anchors:
    three ratios of width to height, each in four sizes.

    Args:
      cells: the feature map [1, h, w, channels] with h rows and w columns.

    Returns:
      float32 [h * w * A, 4], corners x1, y1, x2, y2 in pixels of the picture that the network
      reads: cells row by row, and for each cell its 12 anchors in the order of `ANCHORS`. Anchors
      may reach beyond the picture.
    """
    rows, columns = (tf.range(tf.shape(cells)[axis]) * _STRIDE for axis in (1, 2))
    x, y = tf.meshgrid(tf.cast(columns, tf.float32), tf.cast(rows, tf.float32))
    shifts = tf.stack([x, y, x, y], -1)[:, :, tf.newaxis]
    return tf.reshape(shifts + ANCHORS, [-1, 4])


def decoded(boxes: tf.Tensor, deltas: tf.Tensor, most: float | None) -> tf.Tensor:
    """Moves and scales boxes by the output of the network.

    As in Caffe, a box from x1 to x2 is x2 - x1 + 1 pixels wide, and its centre is at
    x1 + width / 2. The new x1 is the new centre minus half the new width, and the new x2 is the new
    centre plus half the new width. So a box becomes one pixel wider and higher if all deltas are 0.

    Args:
      boxes: float32 [N, 4], corners x1, y1, x2, y2 in pixels of N boxes.
      deltas: float32 [N, 4], the output dx, dy, dw, dh of the network. The centre moves by dx times
        the width and dy times the height. The width is multiplied by exp(dw), the height by
        exp(dh).
      most: upper limit of dw and dh; larger ones are set to it. None sets no limit.

    Returns:
      The new corners, float32 [N, 4].
    """
    sides = boxes[:, 2:] - boxes[:, :2] + 1.0
    centres = boxes[:, :2] + 0.5 * sides
    logs = deltas[:, 2:]
    if most is not None:
        logs = tf.minimum(logs, tf.cast(most, tf.float32))
    centres = deltas[:, :2] * sides + centres
    sides = tf.exp(logs) * sides
    return tf.concat([centres - 0.5 * sides, centres + 0.5 * sides], 1)


def suppressed(
    boxes: tf.Tensor, scores: tf.Tensor, most: int, milvlg: bool = False
) -> tuple[tf.Tensor, tf.Tensor]:
    """Keeps each box, unless its overlap with a kept box of a better score is more than 0.7.

    The overlap of two boxes is their common area divided by the area of their union. A box from x1
    to x2 is x2 - x1 + 1 pixels wide.

    Args:
      boxes: float32 [N, 4], corners x1, y1, x2, y2 in pixels of N boxes.
      scores: float32 [N], probabilities; a box with the score -1 is left out.
      most: largest number of boxes that are kept, P.
      milvlg: whether a box is also left out if the overlap equals the float32 number 0.7, as in
        MILVLG/bottom-up-attention.pytorch. Caffe keeps such a box, because it compares the overlap
        with the double 0.7, a slightly larger number.

    Returns:
      Indices of the kept boxes, best first, int32 [P]; and the number of kept boxes, int32 []. If
      fewer than P boxes are kept, the other indices are padding.
    """
    threshold = np.float32(_RPN_OVERLAP)
    if milvlg:
        threshold = np.nextafter(threshold, np.float32(0))  # TensorFlow suppresses what is larger
    # The operation under `tf.image.non_max_suppression`, which alone pads its result.
    kept, number = tf.raw_ops.NonMaxSuppressionV4(
        boxes=boxes + [0.0, 0.0, 1.0, 1.0],
        scores=scores,
        max_output_size=most,
        iou_threshold=threshold,
        score_threshold=-0.5,
        pad_to_max_output_size=True,
    )
    return tf.ensure_shape(kept, [most]), number


# ---- the largest values of bins -----------------------------------------------------------------


def running_maxima(cells: tf.Tensor) -> tf.Tensor:
    """Computes the maxima of all windows of 1, 2 or 4 rows and 1, 2 or 4 columns of a feature map.

    With these maxima `roi_pool` need not read all cells of a bin: at most two windows in each
    direction, which may overlap, cover a bin.

    Args:
      cells: the feature map [h, w, D] with h rows, w columns and D channels.

    Returns:
      [9 * h * w, D], of the dtype of `cells`: for each of the nine sizes (rows x columns: 1 x 1,
      1 x 2, 1 x 4, 2 x 1, ...), the maxima of the windows that begin at each cell, row by row. Of a
      window that reaches beyond the map only the cells inside count.
    """

    def along(x: tf.Tensor, axis: int) -> list[tf.Tensor]:
        maxima = [x]
        for step in (1, 2):
            size = tf.shape(x)[axis]
            indices = tf.minimum(tf.range(size) + step, size - 1)
            maxima.append(tf.maximum(maxima[-1], tf.gather(maxima[-1], indices, axis=axis)))
        return maxima

    windows = [wide for tall in along(cells, 0) for wide in along(tall, 1)]
    return tf.reshape(tf.stack(windows), [-1, cells.shape[-1]])


def roi_pool(maxima: tf.Tensor, size: tf.Tensor, rois: tf.Tensor, long: int) -> tf.Tensor:
    """Divides boxes into 14 x 14 bins and takes the maximum of each channel in each bin: RoIPool.

    Girshick, "Fast R-CNN", ICCV 2015.

    Args:
      maxima: the result of `running_maxima` for the feature map.
      size: int32 [2], number of rows and columns of the feature map.
      rois: float32 [N, 4], corners x1, y1, x2, y2 of N boxes in pixels of the picture that the
        network reads; none is negative.
      long: largest possible side of that picture in pixels.

    Returns:
      [N, 14, 14, D] for D channels; a bin beyond the feature map is 0.
    """
    corners = rois * (1 / _STRIDE)  # exact
    whole = tf.floor(corners)
    # C rounds halves away from zero. `tf.round` rounds them to even, and floor(x + 0.5) is wrong
    # just below a half.
    corners = tf.cast(whole, tf.int32) + tf.cast(corners - whole >= 0.5, tf.int32)
    # float32 division, then float32 products: integers give other bins for 57 and 62 cells, and a
    # compiler may turn a division by 14 into a product. So the bins are a table.
    lengths = np.arange(long // _STRIDE + 3, dtype=np.float32)
    side = (lengths / np.float32(_BINS))[:, None]
    starts = np.floor(np.arange(_BINS, dtype=np.float32) * side).astype(np.int32)
    ends = np.ceil(np.arange(1, _BINS + 1, dtype=np.float32) * side).astype(np.int32)

    def windows(axis: int) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor, tf.Tensor]:
        """Returns the size of the two windows of each bin, where they start, and if it is empty."""
        first = corners[:, 1 - axis]
        last = corners[:, 3 - axis]
        length = tf.maximum(last - first + 1, 1)
        start = tf.minimum(tf.gather(starts, length) + first[:, None], size[axis])
        end = tf.minimum(tf.gather(ends, length) + first[:, None], size[axis])
        cells = end - start
        level = tf.cast(cells >= 2, tf.int32) + tf.cast(cells >= 4, tf.int32)
        start = tf.minimum(start, size[axis] - 1)  # of an empty bin
        other = tf.maximum(end - tf.bitwise.left_shift(1, level), start)
        return level, start, other, cells <= 0

    row_level, top, bottom, no_rows = windows(0)
    column_level, left, right, no_columns = windows(1)
    level = row_level[:, :, None] * 3 + column_level[:, None]

    def values(rows: tf.Tensor, columns: tf.Tensor) -> tf.Tensor:
        indices = (level * size[0] + rows[:, :, None]) * size[1] + columns[:, None]
        return tf.gather(maxima, indices)

    upper = tf.maximum(values(top, left), values(top, right))
    lower = tf.maximum(values(bottom, left), values(bottom, right))
    empty = no_rows[:, :, None] | no_columns[:, None]
    return tf.where(empty[..., None], 0.0, tf.maximum(upper, lower))


# ---- selection ----------------------------------------------------------------------------------


def confidences(boxes: tf.Tensor, scores: tf.Tensor, number: tf.Tensor) -> tf.Tensor:
    """Returns the confidence of boxes: the best score among the classes in which a box is kept.

    In each class a box is kept, unless its overlap with a kept box of a better score is 0.3 or
    more. The overlap of two boxes is their common area divided by the area of their union.

    Args:
      boxes: float32 [P, 4], corners x1, y1, x2, y2 in pixels of P boxes, the same for all classes.
      scores: float32 [P, C], the score of each box in each of C classes, without the background.
      number: int32 [], how many of the P boxes are real; the others are padding.

    Returns:
      float32 [P]; 0 for a box that is kept in no class, -1 for padding.
    """
    low = boxes[:, :2]
    high = boxes[:, 2:]
    area = tf.reduce_prod(high - low + 1.0, 1)
    common = tf.minimum(high[:, None], high) - tf.maximum(low[:, None], low) + 1.0
    common = tf.reduce_prod(tf.maximum(common, 0.0), 2)
    overlap = common / (area[:, None] + area - common)
    suppresses = overlap >= np.float32(_CLASS_OVERLAP)
    suppresses = tf.linalg.set_diag(suppresses, tf.zeros_like(area, tf.bool))
    proposals = boxes.shape[0]
    real = tf.range(proposals) < number
    by_class = tf.transpose(tf.where(real[:, None], scores, -1.0))  # [C, P]
    order = tf.argsort(by_class, direction="DESCENDING", stable=True)

    def step(rank: tf.Tensor, left: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        box = order[:, rank]
        stays = tf.gather(left, box, batch_dims=1)
        return rank + 1, left & ~(tf.gather(suppresses, box) & stays[:, None])

    left = tf.broadcast_to(real, tf.shape(by_class))
    _, left = tf.while_loop(lambda rank, _: rank < number, step, (0, left))
    best = tf.reduce_max(tf.where(left, by_class, 0.0), 0)
    return tf.where(real, best, -1.0)


def choose(
    confidence: tf.Tensor, number: tf.Tensor, least: int, most: int
) -> tuple[tf.Tensor, tf.Tensor]:
    """Chooses the regions of a picture among the proposals.

    The regions are the proposals with a confidence of 0.2 or more, in the order of the proposals.
    If there are fewer such proposals than `least`, the `least` most confident proposals are taken
    instead. If there are more than `most`, the `most` most confident ones are taken. In both of
    these cases the regions are sorted by confidence, the highest first. Of two with equal
    confidence, the earlier proposal comes first (Caffe leaves this open).

    Args:
      confidence: float32 [P], the confidence of P proposals, see `confidences`.
      number: int32 [], how many of the P proposals are real; the others are padding.
      least: the smallest number of regions, unless there are fewer proposals.
      most: the largest number of regions.

    Returns:
      Indices of proposals, int32 [min(most, P)], the regions first; and the number of regions,
      int32 []. The indices after the regions are padding.
    """
    good = confidence >= _CONFIDENCE
    count = tf.reduce_sum(tf.cast(good, tf.int32))
    in_order = tf.argsort(tf.cast(~good, tf.int32), stable=True)
    best_first = tf.argsort(confidence, direction="DESCENDING", stable=True)
    fits = (count >= least) & (count <= most)
    chosen = tf.where(fits, in_order, best_first)[:most]
    return chosen, tf.minimum(tf.clip_by_value(count, least, most), number)
