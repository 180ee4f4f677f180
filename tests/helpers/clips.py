"""Small clips for tests: GIF files and folders of frames."""

import io
import pathlib

import numpy as np
from PIL import Image

# A white square that goes from left to right over six frames of 24 x 36 pixels.
FRAMES = np.zeros((6, 24, 36, 3), np.uint8)
for _number in range(6):
    FRAMES[_number, 8:16, 6 * _number : 6 * _number + 6] = 255


def gif(frames: np.ndarray) -> bytes:
    """The bytes of a GIF file with frames uint8 [n, H, W, 3]."""
    pictures, file = [Image.fromarray(frame) for frame in frames], io.BytesIO()
    pictures[0].save(file, "GIF", save_all=True, append_images=pictures[1:], duration=100, loop=0)
    return file.getvalue()


def write_frames(folder: pathlib.Path, count: int) -> None:
    """Writes frame0.png, frame1.png, ..., each of one grey that is ten times its number."""
    folder.mkdir(exist_ok=True)
    for number in range(count):
        Image.new("RGB", (12, 8), (10 * number,) * 3).save(folder / f"frame{number}.png")
