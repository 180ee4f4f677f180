"""Reads films (MP4, WebM, AVI and others) with OpenCV, which TF Model Garden installs.

Letters: n frames of a film, N frames that are read, H and W height and width in pixels.
"""

import os
import tempfile
from collections.abc import Callable, Sequence

import numpy as np

from tfcap.images import MOST_PIXELS

ENDINGS = (".mp4", ".webm", ".avi", ".mov", ".mkv", ".m4v", ".mpg", ".mpeg")


def is_film(head: bytes) -> bool:
    """True if the first bytes are those of MP4, QuickTime, WebM, Matroska, AVI or MPEG.

    False for HEIC and AVIF pictures, which begin like MP4.
    """
    boxes = head[4:8] == b"ftyp" and head[8:12] not in (b"heic", b"heix", b"mif1", b"avif")
    riff = head[:4] == b"RIFF" and head[8:12] == b"AVI "
    return boxes or riff or head.startswith((b"\x1aE\xdf\xa3", b"\0\0\1\xba"))


def read(path: str | os.PathLike, choose: Callable[[int], Sequence[int]]) -> list[np.ndarray]:
    """Reads N frames of a film, upright.

    Args:
      path: the film.
      choose: maps n to the positions of the N frames to read, ascending.

    Returns:
      N pictures uint8 [H, W, 3], RGB.
    """
    # Of a damaged film, FFmpeg and OpenCV print lines of their own.
    os.environ.setdefault("OPENCV_FFMPEG_LOGLEVEL", "-8")
    import cv2

    # Not by a variable: Model Garden has imported OpenCV before.
    cv2.utils.logging.setLogLevel(cv2.utils.logging.LOG_LEVEL_SILENT)
    with open(path, "rb") as file:
        # FFmpeg would also read a playlist, which may name files and addresses.
        if not is_film(file.read(16)):
            raise ValueError("a film must be MP4, WebM, AVI, Matroska or MPEG.")
    film = cv2.VideoCapture(os.fspath(path), cv2.CAP_FFMPEG)
    try:
        width, height = film.get(cv2.CAP_PROP_FRAME_WIDTH), film.get(cv2.CAP_PROP_FRAME_HEIGHT)
        if width * height > MOST_PIXELS:
            raise ValueError(f"a frame has more than {MOST_PIXELS} pixels. Save the film smaller.")
        # What the header promises; a damaged film has fewer, and some formats promise nothing.
        total = int(film.get(cv2.CAP_PROP_FRAME_COUNT))
        images = _chosen(film, choose(total)) if total > 0 else {}
        if total <= 0 or len(images) < len(set(choose(total))):
            film.open(os.fspath(path), cv2.CAP_FFMPEG)
            total = 0
            while film.grab():
                total += 1
            film.open(os.fspath(path), cv2.CAP_FFMPEG)
            images = _chosen(film, choose(total)) if total else {}
            if not total or len(images) < len(set(choose(total))):
                raise ValueError(
                    "OpenCV cannot read the film; it may be damaged. Try: ffmpeg -i FILM new.mp4"
                )
        return [images[position] for position in choose(total)]
    finally:
        film.release()


def _chosen(film, positions: Sequence[int]) -> dict[int, np.ndarray]:
    """Returns position -> frame for these positions; fewer if the film ends earlier."""
    wanted, images = set(positions), {}
    for position in range(max(wanted) + 1):
        if not film.grab():
            break
        if position in wanted:
            good, image = film.retrieve()
            if not good:
                break
            images[position] = np.ascontiguousarray(image[..., ::-1])
    return images


def read_bytes(content: bytes, choose: Callable[[int], Sequence[int]]) -> list[np.ndarray]:
    """Reads a film from the bytes of its file, as `read` does."""
    with tempfile.NamedTemporaryFile(suffix=".film") as file:
        file.write(content)
        file.flush()
        return read(file.name, choose)
