"""Decodes clips as a fixed number of frames: GIF files inside the graph, films, and folders.

A clip of any length is read as N frames. Of n > N frames, every (n / N)-th is read: frame i is the
frame floor(i n / N) of the clip. A shorter clip repeats its last frame. A still picture is a clip
of one frame.

Letters: n frames of a clip, N frames that are read, H and W height and width in pixels.
"""

import math
import os
import re
from collections.abc import Sequence

import numpy as np
import tensorflow as tf

from tfcap import files
from tfcap.data import films, pictures
from tfcap.images import ENDINGS, MOST_BYTES, is_picture_name, left_out, refusal, require_readable

_FRAMES = tuple(ending for ending in ENDINGS if ending != ".gif")  # of the frames of a folder
Frames = Sequence[np.ndarray] | np.ndarray  # N pictures uint8 [H, W, 3], or [N, H, W, 3]
_DIGITS = re.compile(r"(\d+)")


def places(total: tf.Tensor | int, frames: int) -> tf.Tensor:
    """Returns the positions int32 [N], ascending, of the frames to read of n = `total` frames."""
    total = tf.convert_to_tensor(total, tf.int32)
    kept = tf.range(frames) * tf.maximum(total, frames) // frames
    return tf.minimum(kept, total - 1)


def decode(content: tf.Tensor, frames: int) -> tf.Tensor:
    """Decodes a GIF file, or another picture file as a clip of one frame: uint8 [N, H, W, 3].

    Each frame of a GIF is drawn on the frame before; the disposal methods of the file are ignored.
    If a GIF file is truncated, its complete frames are used. Other truncated files, and files that
    are not pictures, raise `tf.errors.InvalidArgumentError`.
    """
    with tf.device("/CPU:0"):
        chosen = tf.cond(
            tf.strings.substr(content, 0, 4) == b"GIF8",
            lambda: pictures.decode_frames(content, lambda total: places(total, frames)),
            lambda: tf.repeat(pictures.decode(content)[None], frames, 0),
        )
    return tf.ensure_shape(chosen, [frames, None, None, 3])


def read(content: bytes, frames: int) -> Frames:
    """Checks the size of a clip and decodes it as `decode` does; also reads films.

    Returns:
      N pictures uint8 [H, W, 3].
    """
    if films.is_film(content[:16]):
        return films.read_bytes(content, lambda total: places(total, frames).numpy().tolist())
    require_readable(content)
    try:
        return decode(tf.constant(content), frames).numpy()
    except tf.errors.InvalidArgumentError:
        raise ValueError(refusal(content)) from None


def read_path(path: str | os.PathLike, frames: int) -> Frames:
    """Reads a clip from a GIF file, a film or a folder: N upright pictures uint8 [H, W, 3]."""
    if files.is_directory(path):
        return read_folder(path, frames)
    if not files.is_file(path):
        raise ValueError("no such file or folder of frames")
    if os.fspath(path).lower().endswith(films.ENDINGS):
        with files.local_copy(path) as film:
            return films.read(film, lambda total: places(total, frames).numpy().tolist())
    return read(_content(path), frames)


def read_folder(folder: str | os.PathLike, frames: int) -> list[np.ndarray]:
    """Reads N frames of a folder: upright uint8 [H, W, 3], whose sizes may differ.

    They are in the order of the numbers in their names: `frame2.jpg` comes before `frame10.jpg`.
    """

    def key(name: str) -> list[tuple[int, int, str]]:
        parts = _DIGITS.split(name)
        return [(1, int(part), "") if part.isdecimal() else (0, 0, part) for part in parts]

    held = files.names(folder)
    names = [name for name in held if is_picture_name(name, _FRAMES)]
    if not names:
        raise ValueError(
            left_out(held)
            or f"the folder has no pictures ({', '.join(_FRAMES)}). Save the frames into it, for "
            "example with ffmpeg -i clip.mp4 -r 5 FOLDER/%04d.jpg"
        )
    names.sort(key=key)
    wanted = [names[place] for place in places(len(names), frames).numpy()]
    images: dict[str, np.ndarray] = {}
    for name in wanted:
        if name in images:
            continue
        try:
            images[name] = pictures.read(_content(os.path.join(folder, name)))
        except ValueError as error:
            raise ValueError(f"{name}: {error}") from None
    return [images[name] for name in wanted]


def _content(path: str | os.PathLike) -> bytes:
    if (size := files.size(path)) > MOST_BYTES:
        raise ValueError(f"it has {size} bytes, which are more than {MOST_BYTES}.")
    return files.read_bytes(path)


def sheet_size(frames: int) -> tuple[int, int]:
    """Returns the rows and columns of a sheet that shows N frames row by row."""
    columns = math.ceil(math.sqrt(frames))
    return math.ceil(frames / columns), columns


def sheet_boxes(frames: int) -> np.ndarray:
    """Returns where each frame lies on the sheet: float32 [N, 4], x1, y1, x2, y2 in 0..1."""
    rows, columns = sheet_size(frames)
    boxes = [
        [column / columns, row / rows, (column + 1) / columns, (row + 1) / rows]
        for row in range(rows)
        for column in range(columns)
    ]
    return np.array(boxes[:frames], np.float32)


def sheet(pixels: Frames) -> np.ndarray:
    """Returns N frames uint8 [H, W, 3] as one picture; all get the size of the first frame."""
    rows, columns = sheet_size(len(pixels))
    height, width = pixels[0].shape[:2]
    whole = np.full((rows * height, columns * width, 3), 255, np.uint8)
    for number, frame in enumerate(pixels):
        if frame.shape[:2] != (height, width):
            resized = tf.image.resize(frame, [height, width], antialias=True)
            frame = tf.saturate_cast(tf.round(resized), tf.uint8).numpy()
        y, x = (number // columns) * height, (number % columns) * width
        whole[y : y + height, x : x + width] = frame
    return whole
