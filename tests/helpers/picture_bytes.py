"""Bytes of small picture files, and of files whose heads claim other sizes than they have."""

import io
import struct

import numpy as np
from PIL import Image

SIZE = (40, 24)  # width and height


def file(form: str, frames: int = 1, mode: str = "RGB", **options) -> bytes:
    """A file of noise, 40 x 24 pixels."""
    noise = np.random.default_rng(1).integers(0, 256, (frames, *SIZE[::-1], 3), np.uint8)
    first, *others = (Image.fromarray(frame).convert(mode) for frame in noise)
    stream = io.BytesIO()
    if others:
        options |= {"save_all": True, "append_images": others}
    first.save(stream, form, **options)
    return stream.getvalue()


def claiming(form: str, width: int, height: int, **options) -> bytes:
    """A file of noise with another size in its head; `form` is that of `file`."""
    content = bytearray(file(form, **options))
    if form == "JPEG":
        place, new = content.index(b"\xff\xc0") + 5, struct.pack(">HH", height, width)
    elif form == "PNG":
        place, new = 16, struct.pack(">II", width, height)
    elif form == "BMP":
        place, new = 18, struct.pack("<ii", width, height)
    elif form == "GIF":  # its first frame has a size of its own, which counts for the decoder
        content[6:10] = struct.pack("<HH", width, height)
        palette = 3 << ((content[10] & 7) + 1) if content[10] & 0x80 else 0
        place, new = content.index(b",", 13 + palette) + 5, struct.pack("<HH", width, height)
    elif content[12:16] == b"VP8 ":
        place, new = 26, struct.pack("<HH", width, height)
    elif content[12:16] == b"VP8L":
        place, new = 21, struct.pack("<I", width - 1 | (height - 1) << 14)
    else:
        sides = ((side - 1).to_bytes(3, "little") for side in (width, height))
        place, new = 24, b"".join(sides)
    content[place : place + len(new)] = new
    return bytes(content)


def gif(
    screen: tuple[int, int],
    frames: list[tuple[np.ndarray, int, int]],
    version: bytes = b"GIF89a",
    extensions: bytes = b"",
    local: bool = False,
    **options,
) -> bytes:
    """A GIF file of frames: numbers of colours uint8 [h, w], left and top on the screen.

    `screen` is width and height, `options` are those of Pillow, and `local` gives each frame a
    table of colours of its own.
    """
    colours = np.random.default_rng(2).integers(1, 256, 3 * 255, np.uint8).tobytes()
    table = bytes(3) + colours  # the number 0 is black
    content = version + struct.pack("<HH", *screen) + b"\xf7\0\0" + table + extensions
    for numbers, left, top in frames:
        image, stream = Image.fromarray(numbers, "P"), io.BytesIO()
        image.putpalette(table)
        image.save(stream, "GIF", optimize=False, **options)
        one = stream.getvalue()
        start = one.index(b"," + struct.pack("<4H", 0, 0, *numbers.shape[::-1]))
        own = bytes(3) + colours[::-1] if local else b""
        flags = one[start + 9] & 0x40 | (0x87 if local else 0)
        content += one[13 + 3 * 256 : start + 1] + struct.pack("<HH", left, top)
        content += one[start + 5 : start + 9] + bytes([flags]) + own
        behind = start + 10 + (3 << (one[start + 9] & 7) + 1 if one[start + 9] & 0x80 else 0)
        content += one[behind:-1]
    return content + b";"
