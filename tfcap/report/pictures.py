"""Encodes small copies of pictures and attention weights as text for a page.

Letters: T' words of a caption, R regions.
"""

import base64
import concurrent.futures
import io
import itertools
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

import numpy as np
from PIL import Image

from tfcap import images
from tfcap.shading import full_strength

# Maps an image id to the bytes of its picture or None, or to the path of a file.
Pictures = Callable[[int], bytes | None] | Mapping[int, str | os.PathLike]

_AT_ONCE = 64


def thumbnail(picture: bytes | str | os.PathLike, side: int = 320, quality: int = 75) -> bytes:
    """Returns an upright JPEG whose longer side is at most `side` pixels.

    Raises:
        ValueError: The picture cannot be read.
    """
    source = io.BytesIO(picture) if isinstance(picture, bytes) else picture
    small = io.BytesIO()
    try:
        with Image.open(source) as image:
            image.draft("RGB", (2 * side, 2 * side))  # lets JPEG decode a smaller picture
            upright = images.upright(image)
            if "A" in upright.getbands() or "transparency" in upright.info:
                upright = upright.convert("RGBA")
                white = Image.new("RGBA", upright.size, "white")
                upright = Image.alpha_composite(white, upright)
            upright = upright.convert("RGB")
            if max(upright.size) <= side:
                quality = max(quality, 92)  # a small picture is shown enlarged
            upright.thumbnail((side, side), Image.Resampling.LANCZOS, reducing_gap=2.0)
            upright.save(small, "JPEG", quality=quality, optimize=True)
    # Pillow's decoders raise many kinds of errors for invalid bytes.
    except Exception as error:
        raise ValueError(f"not a picture that can be read: {error}") from error
    return small.getvalue()


def thumbnails(
    images: Iterable[int], pictures: Pictures | None, side: int = 320, quality: int = 75
) -> Iterator[str | None]:
    """Yields a base64 JPEG for each image, in order; None without a readable picture."""

    def make(image: int) -> str | None:
        picture = None
        if pictures is not None:
            picture = pictures(image) if callable(pictures) else pictures.get(image)
        if picture is None:
            return None
        try:
            return base64.b64encode(thumbnail(picture, side, quality)).decode()
        except ValueError:
            return None

    with concurrent.futures.ThreadPoolExecutor(os.cpu_count() or 1) as pool:
        images = iter(images)
        while block := list(itertools.islice(images, _AT_ONCE)):  # keeps few pictures in memory
            yield from pool.map(make, block)


def packed_weights(weights: np.ndarray) -> tuple[str, list[float]]:
    """Encodes weights as bytes; 255 stands for `shading.full_strength` of all words.

    Args:
        weights: float [T', R], not negative.

    Returns:
        Base64 of uint8 [T', R], and the largest weight of each word.
    """
    weights = np.nan_to_num(np.asarray(weights, np.float64)).clip(0.0)
    peaks = weights.max(axis=1, initial=0.0)
    scaled = np.rint(255 * weights / full_strength(weights))
    return _text(scaled.astype(np.uint8)), [round(float(peak), 4) for peak in peaks]


def packed_boxes(boxes: np.ndarray) -> str:
    """Encodes boxes [R, 4] (x1, y1, x2, y2 in 0..1) as base64 of little-endian uint16."""
    boxes = np.nan_to_num(np.asarray(boxes, np.float64)).clip(0.0, 1.0)
    return _text(np.rint(65535 * boxes).astype("<u2"))


def tiles(boxes: np.ndarray) -> bool:
    """Returns whether boxes [R, 4] are the cells of a grid, one for each pair of row and column."""
    boxes = np.round(np.asarray(boxes, np.float64), 4)
    columns, rows = (np.unique(boxes[:, sides], axis=0) for sides in ([0, 2], [1, 3]))
    return len(columns) * len(rows) == len(boxes)


def _text(array: np.ndarray) -> str:
    return base64.b64encode(np.ascontiguousarray(array).tobytes()).decode()


def file_names(images: Sequence[int], pictures: Pictures | None) -> dict[int, str]:
    """Returns the file names of images with a path in `pictures`, and the ids of others."""
    if pictures is None or callable(pictures):
        return {image: str(image) for image in images}
    return {
        image: os.path.basename(os.fspath(pictures[image])) if image in pictures else str(image)
        for image in images
    }
