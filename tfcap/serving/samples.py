"""Makes the requests that a server is warmed up and measured with.

Letters: B pictures, R regions, F feature width.
"""

import io
import os
from collections.abc import Sequence

import numpy as np
import tensorflow as tf
from PIL import Image, ImageDraw

from tfcap.images import ENDINGS, MOST_BYTES, is_picture_name

_SIZES = ((640, 480), (480, 640), (500, 375), (1024, 768), (320, 240), (600, 600))  # of drawings
_REGIONS = 36  # of an image whose features do not come from a backbone


def drawn_pictures(count: int) -> list[bytes]:
    """Draws JPEG files of several sizes: shapes on a coloured ground, with noise as a camera has.

    The same count gives the same files.
    """
    return [_drawing(number) for number in range(count)]


def _drawing(number: int) -> bytes:
    rng = np.random.default_rng(number)
    width, height = _SIZES[number % len(_SIZES)]
    top, bottom = rng.integers(40, 216, (2, 3))
    ground = np.linspace(top, bottom, height)[:, None]
    noise = rng.normal(0, 8, (height, width, 3))
    image = Image.fromarray(np.clip(ground + noise, 0, 255).astype(np.uint8))
    draw = ImageDraw.Draw(image)
    for _ in range(6):
        x, y = rng.integers(0, (width, height)).tolist()
        size = int(rng.integers(20, height // 2))
        shape = draw.ellipse if rng.integers(2) else draw.rectangle
        shape((x, y, x + size, y + size), fill=tuple(rng.integers(0, 256, 3).tolist()))
    stream = io.BytesIO()
    image.save(stream, "JPEG", quality=88)
    return stream.getvalue()


def pictures_of(folder: str, count: int) -> list[bytes]:
    """Reads the first picture files of a folder in the order of their names.

    Raises:
      ValueError: the folder cannot be read or has no picture file, or a file is too large.
    """
    try:
        names = sorted(filter(is_picture_name, os.listdir(folder)))
    except OSError as error:
        raise ValueError(
            f"--warmup_images must be a folder of pictures. Received: {folder} "
            f"({error.strerror}). Correct the path."
        ) from None
    if not names:
        raise ValueError(
            f"--warmup_images must hold pictures ({', '.join(ENDINGS)}). Received: {folder} "
            "without one. Choose another folder."
        )
    contents = []
    for name in names[:count]:
        path = os.path.join(folder, name)
        if not os.path.isfile(path) or os.path.getsize(path) > MOST_BYTES:
            raise ValueError(
                f"{path} must be a file of at most {MOST_BYTES} bytes. Remove it from the folder."
            )
        with open(path, "rb") as file:
            contents.append(file.read())
    return contents


def inputs(
    specs: dict[str, tf.TensorSpec], size: int, pictures: Sequence[bytes], regions: int | None
) -> dict[str, np.ndarray]:
    """Makes the inputs of a signature for a batch.

    Args:
      specs: the inputs of the signature by name.
      size: B.
      pictures: files; they are repeated if there are fewer than B.
      regions: R; None takes 36.

    Returns:
      `image_bytes` object [B], or `features` float32 [B, R, F] and `num_regions` int32 [B]; `seed`
      int64 [B] if the signature has it.

    Raises:
      ValueError: the signature has another input.
    """
    made: dict[str, np.ndarray] = {}
    for name, spec in specs.items():
        if name == "image_bytes":
            made[name] = np.array([pictures[i % len(pictures)] for i in range(size)], object)
        elif name == "features":
            shape = (size, regions or _REGIONS, spec.shape[-1])
            made[name] = np.random.default_rng(size).normal(size=shape).astype(np.float32)
        elif name == "num_regions":
            made[name] = np.full(size, regions or _REGIONS, np.int32)
        elif name == "seed":
            made[name] = np.arange(size, dtype=np.int64)
        else:
            raise ValueError(
                "The inputs of an exported signature must be image_bytes, features, num_regions "
                f"and seed. Received: {name}. Export the run again."
            )
    return made
