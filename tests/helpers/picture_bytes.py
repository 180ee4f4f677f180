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
