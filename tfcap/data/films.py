"""Reads films (MP4, WebM, AVI and others) with OpenCV, which TF Model Garden installs.

Letters: n frames of a film, N frames that are read, H and W height and width in pixels.
"""

import os
import tempfile
from collections.abc import Callable, Sequence

import numpy as np

from tfcap.images import MOST_PIXELS

ENDINGS: tuple[str, ...] = (".mp4", ".webm", ".avi", ".mov", ".mkv", ".m4v", ".mpg", ".mpeg")


def is_film(head: bytes) -> bool:
    """Tells whether a file is a film: MP4, QuickTime, WebM, Matroska, AVI or MPEG.

    HEIC and AVIF pictures begin like MP4, but are no films.

    Args:
      head: the first bytes of the file, at least 12.
    """
    boxes = head[4:8] == b"ftyp" and head[8:12] not in (b"heic", b"heix", b"mif1", b"avif")
    riff = head[:4] == b"RIFF" and head[8:12] == b"AVI "
    return boxes or riff or head.startswith((b"\x1aE\xdf\xa3", b"\0\0\1\xba"))


def read_film(path: str | os.PathLike, choose: Callable[[int], Sequence[int]]) -> list[np.ndarray]:
    """Reads chosen frames of a film, a video file, with OpenCV.

    Args:
      path: a local file.
      choose: a function that chooses the frames. It gets the number of frames of the film and
        returns the positions of N frames in ascending order. The first frame of the film has the
        position 0.

    Returns:
      The N frames as upright pictures, uint8 [H, W, 3] for height H and width W, RGB.

    Raises:
      ValueError: the file is no film that can be read, or a frame has more than
        `tfcap.images.MOST_PIXELS` pixels.
    """
    # Of a damaged film, FFmpeg and OpenCV print lines of their own.
    os.environ.setdefault("OPENCV_FFMPEG_LOGLEVEL", "-8")
    import cv2

    # A variable has no effect here, because Model Garden has imported OpenCV before.
    cv2.utils.logging.setLogLevel(cv2.utils.logging.LOG_LEVEL_SILENT)
    with open(path, "rb") as file:
        # FFmpeg would also read a playlist, which may name files and addresses.
        if not is_film(file.read(16)):
            raise ValueError(
                "the file is no film. Give a video file: MP4, WebM, AVI, Matroska or MPEG."
            )
    name = os.fspath(path)
    film = cv2.VideoCapture(name, cv2.CAP_FFMPEG)
    try:
        width = film.get(cv2.CAP_PROP_FRAME_WIDTH)
        height = film.get(cv2.CAP_PROP_FRAME_HEIGHT)
        if width * height > MOST_PIXELS:
            raise ValueError(
                f"a frame of the film has more than {MOST_PIXELS} pixels. Scale the film down: "
                "ffmpeg -i FILM -vf scale=1280:-2 new.mp4"
            )
        # Some formats state the number of frames; for others FFmpeg estimates it from duration and
        # rate. The packets of a film can be counted without decoding them, but where a codec has
        # hidden frames, there are more packets than frames. So the number counts if both agree;
        # otherwise all frames are decoded once to count them.
        total = int(film.get(cv2.CAP_PROP_FRAME_COUNT))
        packets = _length(cv2.VideoCapture(name, cv2.CAP_FFMPEG, [cv2.CAP_PROP_FORMAT, -1]))
        images = _frames(film, total, choose) if total == packets else None
        if images is None:
            film.open(name, cv2.CAP_FFMPEG)
            total = _length(film)
            film.open(name, cv2.CAP_FFMPEG)
            images = _frames(film, total, choose)
        if images is None:
            raise ValueError(
                "OpenCV cannot read the film; it may be damaged. Convert it: ffmpeg -i FILM new.mp4"
            )
        return images
    finally:
        film.release()


def _length(film) -> int:
    """Reads an open film to its end, closes it, and returns the number of its frames or packets."""
    try:
        return sum(1 for _ in iter(film.grab, False))
    finally:
        film.release()


def _frames(film, total: int, choose: Callable[[int], Sequence[int]]) -> list[np.ndarray] | None:
    """Returns the N chosen frames of n = `total`; None if the film has none or ends earlier."""
    positions = choose(total) if total > 0 else []
    images: dict[int, np.ndarray] = {}
    for position in range(max(positions, default=-1) + 1):
        if not film.grab():
            return None
        if position in positions:
            succeeded, image = film.retrieve()
            if not succeeded:
                return None
            images[position] = np.ascontiguousarray(image[..., ::-1])
    return [images[position] for position in positions] or None


def read_film_bytes(content: bytes, choose: Callable[[int], Sequence[int]]) -> list[np.ndarray]:
    """Reads chosen frames of a film from the bytes of its file.

    Args:
      content: the bytes of the file.
      choose: a function that chooses the frames, as in `read_film`.

    Returns:
      The N chosen frames as upright pictures, uint8 [H, W, 3] for height H and width W, RGB.

    Raises:
      ValueError: as in `read_film`.
    """
    with tempfile.NamedTemporaryFile(suffix=".film") as file:
        file.write(content)
        file.flush()
        return read_film(file.name, choose)
