"""Decodes clips as a fixed number of frames: GIF files in the graph, films, and directories.

A clip of any length is read as N frames. If it has n > N frames, the frames at floor(i n / N) are
read, for i = 0 ... N - 1. A shorter clip repeats its last frame. A still picture is a clip of one
frame.

Letters: n frames of a clip, N frames that are read, H and W height and width in pixels.
"""

import math
import os
from collections.abc import Callable, Sequence

import numpy as np
import tensorflow as tf

from tfcap import files
from tfcap.data import films, pictures
from tfcap.images import (
    ENDINGS,
    MOST_BYTES,
    by_numbers,
    is_picture_name,
    left_out,
    readable,
    refusal,
)

_FRAMES = tuple(ending for ending in ENDINGS if ending != ".gif")  # of frames in a directory
Frames = Sequence[np.ndarray] | np.ndarray  # N pictures uint8 [H, W, 3], or [N, H, W, 3]


def frame_positions(total: tf.Tensor | int, frames: int) -> tf.Tensor:
    """Chooses N frames of a clip, evenly spaced; returns their positions, int32 [N], ascending.

    Position i is floor(i n / N), for i = 0 ... N - 1. If the clip has fewer than N frames, the
    positions are 0, 1, ... n - 1, and the last one is repeated.

    Args:
      total: number of frames of the clip, n.
      frames: number of frames to choose, N.
    """
    total = tf.convert_to_tensor(total, tf.int32)
    kept = tf.range(frames) * tf.maximum(total, frames) // frames
    return tf.minimum(kept, total - 1)


def decode_clip(content: tf.Tensor, frames: int) -> tf.Tensor:
    """Decodes N evenly spaced frames of a GIF file, as a graph function.

    A picture file of another kind is a clip of one frame. If a clip has fewer than N frames, its
    last frame is repeated. Each frame of a GIF is drawn over the frame before it; the file's
    disposal methods, which say what is erased between two frames, are ignored. If a GIF file is
    truncated, its complete frames are used.

    Args:
      content: the bytes of the file, string [].
      frames: number of frames to return, N.

    Returns:
      The frames, uint8 [N, H, W, 3] for height H and width W.

    Raises:
      tf.errors.InvalidArgumentError: the file cannot be decoded as a picture, for example
        because it is truncated and is not a GIF file.
    """
    with tf.device("/CPU:0"):
        clip = tf.cond(
            tf.strings.substr(content, 0, 4) == b"GIF8",
            lambda: pictures.decode_frames(content, lambda total: frame_positions(total, frames)),
            lambda: tf.repeat(pictures.decode(content)[None], frames, 0),
        )
    return tf.ensure_shape(clip, [frames, None, None, 3])


def read_clip_bytes(content: bytes, frames: int) -> Frames:
    """Reads N evenly spaced frames of a clip from the bytes of its file.

    The file is a GIF file, a film (a video file, such as MP4 or WebM), or another picture, which
    counts as a clip of one frame. If the clip has fewer than N frames, its last frame is repeated.

    Args:
      content: the bytes of the file.
      frames: number of frames to read, N.

    Returns:
      N upright pictures uint8 [H, W, 3], for height H and width W, as a list or as one array
      [N, H, W, 3].

    Raises:
      ValueError: the file is neither a picture nor a film that can be read, or it has too many
        pixels. The limit is `tfcap.images.MOST_PIXELS`: for a film in one frame, for a GIF file in
        all frames together.
    """
    if films.is_film(content[:16]):
        return films.read_film_bytes(content, _choice(frames))
    content = readable(content)
    try:
        return decode_clip(tf.constant(content), frames).numpy()
    except tf.errors.InvalidArgumentError:
        raise ValueError(refusal(content)) from None


def _choice(frames: int) -> Callable[[int], list[int]]:
    """Returns `frame_positions` as a function of n, for `films`."""
    return lambda total: frame_positions(total, frames).numpy().tolist()


def read_clip(path: str | os.PathLike, frames: int) -> Frames:
    """Reads N evenly spaced frames of a clip.

    If the clip has fewer than N frames, its last frame is repeated.

    Args:
      path: a GIF file, a film (a video file, such as MP4 or WebM), a directory with a picture file
        for each frame, in the order of the numbers in their names, or another picture file, which
        counts as a clip of one frame.
      frames: number of frames to read, N.

    Returns:
      N upright pictures uint8 [H, W, 3], for height H and width W, as a list or as one array
      [N, H, W, 3]. The frames of a directory may have different sizes.

    Raises:
      ValueError: `path` does not exist, or the clip cannot be read.
    """
    if files.is_directory(path):
        return _read_frame_files(path, frames)
    if not files.is_file(path):
        raise ValueError("the path is neither a file nor a directory of frames. Correct the path.")
    if os.fspath(path).lower().endswith(films.ENDINGS):
        with files.local_copy(path) as film:
            return films.read_film(film, _choice(frames))
    return read_clip_bytes(_content(path), frames)


def read_frames(paths: Sequence[str | os.PathLike], frames: int | None) -> Frames:
    """Reads the pictures of an image of a data set, for `sheet`.

    Args:
      paths: the path of a clip, see `read_clip`; or those of the pictures.
      frames: number of frames to read of the clip; None reads pictures.

    Returns:
      Upright pictures uint8 [H, W, 3], for height H and width W.

    Raises:
      ValueError: a path does not exist or cannot be read.
    """
    if frames is not None:
        return read_clip(paths[0], frames)
    return [pictures.read(_content(path)) for path in paths]


def _read_frame_files(directory: str | os.PathLike, frames: int) -> list[np.ndarray]:
    """Reads a clip from a directory of pictures, one for each frame; see `read_clip`.
    The order is that of the numbers in the names: `frame2.jpg` comes before `frame10.jpg`.
    """
    contents = files.names(directory)
    names = sorted((n for n in contents if is_picture_name(n, _FRAMES)), key=by_numbers)
    if not names:
        raise ValueError(
            left_out(contents)
            or f"the directory has no pictures ({', '.join(_FRAMES)}). Save the frames into it, "
            "for example with ffmpeg -i clip.mp4 -r 5 DIRECTORY/%04d.jpg"
        )
    chosen = [names[position] for position in _choice(frames)(len(names))]
    images: dict[str, np.ndarray] = {}
    for name in chosen:
        if name in images:
            continue
        try:
            images[name] = pictures.read(_content(os.path.join(directory, name)))
        except ValueError as error:
            raise ValueError(f"{name}: {error}") from None
    return [images[name] for name in chosen]


def _content(path: str | os.PathLike) -> bytes:
    """Reads a file, unless it is too large."""
    if (size := files.size(path)) > MOST_BYTES:
        raise ValueError(
            f"the file has {size} bytes, which are more than {MOST_BYTES}. Save it with fewer "
            "frames or pixels."
        )
    return files.read_bytes(path)


def _sheet_size(frames: int) -> tuple[int, int]:
    """Returns the numbers of rows and columns of a sheet, which shows N frames row by row."""
    columns = math.ceil(math.sqrt(frames))
    return math.ceil(frames / columns), columns


def sheet_boxes(frames: int) -> np.ndarray:
    """Returns where `sheet` draws each of N frames, float32 [N, 4].

    A box is x1, y1, x2, y2: the left, upper, right and lower edge, as fractions of the width and
    the height of the sheet.

    Args:
      frames: number of frames, N.
    """
    rows, columns = _sheet_size(frames)
    boxes = [
        [column / columns, row / rows, (column + 1) / columns, (row + 1) / rows]
        for row in range(rows)
        for column in range(columns)
    ]
    return np.array(boxes[:frames], np.float32)


def on_sheet(boxes: Sequence[np.ndarray]) -> np.ndarray:
    """Moves the boxes of several pictures to where `sheet` draws the pictures.

    Args:
      boxes: the boxes of each picture, float32 [R, 4] with its own R: x1, y1, x2, y2 as fractions
        of the width and the height of the picture.

    Returns:
      The boxes of all pictures one after the other, as fractions of the sheet. Those of a single
      picture do not change.
    """
    if len(boxes) == 1:
        return boxes[0]
    cells = sheet_boxes(len(boxes))
    return np.concatenate(
        [
            np.tile(cell[:2], 2) + own * np.tile(cell[2:] - cell[:2], 2)
            for cell, own in zip(cells, boxes, strict=True)
        ]
    )


def sheet(pixels: Frames) -> np.ndarray:
    """Draws the frames of a clip into one picture, the sheet: row by row, in a grid.

    Args:
      pixels: the N frames, each uint8 [H, W, 3] for height H and width W. Frames of other sizes are
        resized to the size of the first frame.

    Returns:
      The sheet, uint8 [rows x H, columns x W, 3], for H and W of the first frame. It has
      ceil(sqrt(N)) columns and as many rows as the frames need; cells without a frame are white.
    """
    rows, columns = _sheet_size(len(pixels))
    height, width = pixels[0].shape[:2]
    whole = np.full((rows * height, columns * width, 3), 255, np.uint8)
    for number, frame in enumerate(pixels):
        if frame.shape[:2] != (height, width):
            resized = tf.image.resize(frame, [height, width], antialias=True)
            frame = tf.saturate_cast(tf.round(resized), tf.uint8).numpy()
        row, column = divmod(number, columns)
        y = row * height
        x = column * width
        whole[y : y + height, x : x + width] = frame
    return whole
