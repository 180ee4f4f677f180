"""Chooses the bytes of a picture that `prepare --keep_pictures` stores in its record.

Letters: H and W height and width of a picture in pixels.
"""

import tensorflow as tf

_MOST_BYTES = 2**17  # of a file that is kept as it is
_MARGIN = 8 / 7  # a backbone that crops reads 256 pixels for its 224
_LONGEST = 4  # times the shorter side
_QUALITY = 95  # of JPEG


def shorter_side(image_size: int) -> int:
    """Returns the largest shorter side that a stored picture can have, in pixels.

    Args:
      image_size: side of the square that the backbone reads.
    """
    return round(image_size * _MARGIN)


def expected_bytes(image_size: int) -> int:
    """Returns about how many bytes a kept photograph has."""
    return round(0.8 * shorter_side(image_size) ** 2)


def kept(content: tf.Tensor, image: tf.Tensor, image_size: int) -> tf.Tensor:
    """Returns the file itself if it is small, and otherwise a smaller JPEG of the upright picture.

    A small file is kept byte for byte, so that training decodes what a server decodes. A larger one
    would be decoded and shrunk in every epoch: a photograph of a camera takes ten times as long and
    a hundred times the space. Its shorter side is resized to `shorter_side`, which is a little more
    than the backbone reads, and its aspect is kept, because a backbone may crop. JPEG of quality 95
    without chroma subsampling is hardly visible after the backbone has shrunk the picture again.

    Args:
      content: string [], bytes of a picture file.
      image: uint8 [H, W, 3], what `data.pictures.decode` returns for it.
      image_size: side of the square that the backbone reads.

    Returns:
      string [], bytes of a picture file.
    """
    sides, short = tf.shape(image)[:2], shorter_side(image_size)
    fits = (tf.reduce_min(sides) <= short) & (tf.reduce_max(sides) <= _LONGEST * short)
    is_small = fits & (tf.strings.length(content) <= _MOST_BYTES)
    return tf.cond(is_small, lambda: content, lambda: _encoded(image, sides, short))


def _encoded(image: tf.Tensor, sides: tf.Tensor, short: int) -> tf.Tensor:
    """Returns a JPEG of uint8 [H, W, 3] whose shorter side has at most `short` pixels."""
    scale = tf.minimum(1.0, short / tf.cast(tf.reduce_min(sides), tf.float32))
    size = tf.cast(tf.round(tf.cast(sides, tf.float32) * scale), tf.int32)
    size = tf.clip_by_value(size, 1, _LONGEST * short)
    resized = tf.image.resize(image, size, method="bilinear", antialias=True)
    resized = tf.saturate_cast(tf.round(resized), tf.uint8)
    return tf.io.encode_jpeg(resized, quality=_QUALITY, chroma_downsampling=False)
