"""Where regions are in relation to each other, for attention that reads it.

Letters: B images, R regions, H heads.
"""

import keras
import numpy as np
from keras import ops

from tfcap.layers import common

_WAVES = 8  # sines of each of the four numbers of a pair of boxes
_WAVELENGTH = 1000.0


def boxes_of(inputs):
    """Returns the boxes of the regions of each image.

    An image whose boxes are not known, because there is no entry `boxes` or its boxes are all
    zeros, gets the cells of a square grid, row by row. The grid has as many rows as the smallest
    square that holds the regions of the image. So the cells are those of a backbone's grid.

    Args:
      inputs: dictionary with `mask` bool [B, R], False for padding; and, if the boxes are known,
        `boxes` float [B, R, 4], the corners x1, y1, x2, y2 as fractions (0..1) of the width and the
        height of the picture.

    Returns:
      float32 [B, R, 4], the corners of each region; for padding any numbers from 0 to 1.

    Example:
      >>> print(boxes_of({"mask": np.array([[True, True, True, True]])})[0, 1].numpy())
      [0.5 0.  1.  0.5]
    """
    mask = inputs["mask"]
    counts = ops.sum(ops.cast(mask, "float32"), axis=1, keepdims=True)
    # The root of a square number may be rounded to a little more than it is.
    side = ops.maximum(ops.ceil(ops.sqrt(counts) - 1e-3), 1.0)  # [B, 1]
    number = ops.cast(ops.arange(ops.shape(mask)[1]), "float32")
    number = ops.where(mask, number, 0.0)
    row = ops.floor((number + 0.5) / side)
    corner = ops.stack([number - row * side, row], axis=-1) / side[..., None]
    cells = ops.concatenate([corner, corner + 1 / side[..., None]], axis=-1)
    if "boxes" not in inputs:
        return cells
    boxes = ops.where(mask[..., None], ops.cast(inputs["boxes"], "float32"), 0.0)
    known = ops.any(boxes != 0, axis=(1, 2), keepdims=True)
    return ops.where(known, boxes, cells)


def relation_codes(boxes):
    """Encodes how each region lies to each other region of an image.

    For regions m and n with centres x, y, width w = x2 - x1 + 1 and height h = y2 - y1 + 1:

    l(m, n) = [ln max(|x_m - x_n| / w_m, 1e-3); ln max(|y_m - y_n| / h_m, 1e-3);
               ln(w_m / w_n); ln(h_m / h_n)]

    Each number l of the four becomes sin(100 l / 1000^(k / 8)) and cos(100 l / 1000^(k / 8)) for
    k = 0 to 7. The sines of all numbers stand before the cosines. Source: Herdade et al., "Image
    Captioning: Transforming Objects into Words", NeurIPS 2019, equation 6 and section 4.2; factors,
    1e-3 and the 1 in w and h are those of the released code, whose boxes are fractions, too. In the
    paper the last two numbers are ln(w_n / w_m) and ln(h_n / h_m).

    Args:
      boxes: corners x1, y1, x2, y2 of the regions, float32 [B, R, 4].

    Returns:
      float32 [B, R, R, 64]: for region m (second axis) and region n (third axis) of each image.

    Example:
      >>> relation_codes(np.zeros((2, 5, 4), np.float32)).shape
      TensorShape([2, 5, 5, 64])
    """
    low, high = boxes[..., :2], boxes[..., 2:]
    centre = (low + high) * 0.5
    size = ops.maximum(high - low, 0.0) + 1.0
    own, other = size[:, :, None], size[:, None]  # region m, region n
    apart = ops.abs((centre[:, :, None] - centre[:, None]) / own)
    numbers = ops.log(ops.concatenate([ops.maximum(apart, 1e-3), own / other], axis=-1))
    rates = 100.0 / _WAVELENGTH ** (np.arange(_WAVES) / _WAVES)
    angles = numbers[..., None] * rates.astype("float32")  # [B, R, R, 4, 8]
    shape = ops.shape(numbers)
    angles = ops.reshape(angles, (*shape[:3], 4 * _WAVES))
    return ops.concatenate([ops.sin(angles), ops.cos(angles)], axis=-1)


@keras.saving.register_keras_serializable("tfcap")
class GeometricBias(common.Layer):
    """What attention between regions adds to its logits: ln max(ReLU(w_h c(m, n) + b_h), 1e-6).

    c(m, n) are `relation_codes` of the regions m and n. Each head h has weights w_h and a bias b_h.
    The softmax of logits with this bias is the product of the geometric weights and the exponential
    of the other logits, as shares of their sum. Source: Herdade et al., "Image Captioning:
    Transforming Objects into Words", NeurIPS 2019, equations 7 and 8. Everything is
    float32. Only products of the gradient may be bfloat16, see `precision.float32_product`.

    Args:
      heads: number of attention heads, H.

    Example:
      >>> layer = GeometricBias(heads=2)
      >>> layer(relation_codes(np.zeros((3, 5, 4), np.float32))).shape
      TensorShape([3, 2, 5, 5])
    """

    def __init__(self, heads: int, **kwargs):
        super().__init__(**kwargs)
        self.weigh = common.linear(8 * _WAVES, heads, "weigh", dtype="float32")
        # Each head is an affine map to one number in the released code.
        limit = (6 / (8 * _WAVES + 1)) ** 0.5
        self.weigh.kernel_initializer = keras.initializers.RandomUniform(-limit, limit)

    def call(self, codes):
        """Returns float32 [B, H, R, R] for `codes` float32 [B, R, R, 64] of `relation_codes`."""
        weights = ops.relu(self.weigh(ops.cast(codes, "float32")))
        return ops.transpose(ops.log(ops.maximum(weights, 1e-6)), (0, 3, 1, 2))
