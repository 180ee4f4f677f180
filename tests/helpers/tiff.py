"""Bytes of plain TIFF files, of kinds that Pillow does not write."""

import struct

import numpy as np

GREY, RGB, CMYK, YCC, LAB = 1, 2, 5, 6, 8  # values of the tag 262, which says what the numbers are
WHITE_IS_ZERO = 0


def file(pixels: np.ndarray, colours: int = GREY, bits: int = 0, tags: dict | None = None) -> bytes:
    """A TIFF file of one strip without compression, in little-endian order.

    Args:
      pixels: the numbers as they are stored, [H, W] or [H, W, samples].
      colours: the tag 262.
      bits: bits of a number; 0 takes those of the array.
      tags: further tags, each with its numbers of 16 bits, or in a list of one of 32 bits.
    """
    samples = pixels.shape[2] if pixels.ndim == 3 else 1
    data = pixels.tobytes()
    shorts = {258: (bits or pixels.itemsize * 8,) * samples, 259: (1,), 262: (colours,)}
    shorts |= {277: (samples,)}
    longs = {256: [pixels.shape[1]], 257: [pixels.shape[0]], 273: [8], 278: [pixels.shape[0]]}
    longs |= {279: [len(data)]}
    entries = sorted((shorts | longs | (tags or {})).items())
    begin = 8 + len(data)
    behind = begin + 6 + 12 * len(entries)
    directory, further = struct.pack("<H", len(entries)), b""
    for tag, numbers in entries:
        is_long = isinstance(numbers, list)
        value = struct.pack("<" + "HI"[is_long] * len(numbers), *numbers)
        if len(value) > 4:
            value, further = struct.pack("<I", behind + len(further)), further + value
        directory += struct.pack("<HHI", tag, 3 + is_long, len(numbers)) + value.ljust(4, b"\0")
    return struct.pack("<2sHI", b"II", 42, begin) + data + directory + bytes(4) + further
