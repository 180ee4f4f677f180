"""Finds the kind, size and orientation of a picture file, and the reason why it cannot be read.

This module does not import TensorFlow. `tfcap.data.pictures` decodes the files inside the graph.
"""

import io
import os
from typing import BinaryIO

import numpy as np
from PIL import Image, ImageOps

MOST_BYTES = 1 << 28  # of one picture or GIF file; the largest photographs have about 100 MB
# Of a picture, or of all frames of a GIF file. Neither TensorFlow nor Pillow decodes a larger JPEG.
# The pixels have 537 MB.
MOST_PIXELS = (1 << 29) // 3
SERVED_PIXELS = 50_000_000  # of a picture sent to a server, which decodes several at once
READABLE = ("JPEG", "PNG", "BMP", "GIF", "WebP")
ENDINGS = (".jpg", ".jpeg", ".png", ".bmp", ".gif", ".webp")  # of the files of these kinds
MOST_CLIP_BYTES = 1 << 30  # of all frames of a GIF, decoded: ten minutes of 160 x 120 pixels
_CONVERT = "Convert it to JPEG or PNG."
_ORIENTATION = 0x0112  # the tag of EXIF
# Beginning of a file -> its kind; the first that fits counts.
_BEGINNINGS = (
    (b"\xff\xd8\xff", "JPEG"),
    (b"\x89PNG\r\n\x1a\n", "PNG"),
    (b"GIF8", "GIF"),
    (b"BM", "BMP"),
    (b"II*\0", "TIFF"),
    (b"MM\0*", "TIFF"),
    (b"II+\0", "TIFF"),
    (b"MM\0+", "TIFF"),
    (b"\xff\x0a", "JPEG XL"),
    (b"\0\0\0\x0cJXL ", "JPEG XL"),
    (b"\0\0\0\x0cjP  ", "JPEG 2000"),
    (b"\xff\x4f\xff\x51", "JPEG 2000"),
    (b"8BPS", "Photoshop"),
    (b"\0\0\x01\0", "icon"),
    (b"%PDF", "PDF"),
    (b"%!PS", "PostScript"),
    (b"PK\x03\x04", "ZIP archive"),
    (b"\x1f\x8b", "gzip"),
)
# Brand of an ISO media file (bytes 8 to 12) -> its kind.
_BRANDS = {
    **dict.fromkeys((b"avif", b"avis"), "AVIF"),
    **dict.fromkeys((b"heic", b"heix", b"hevc", b"hevx", b"heim", b"heis"), "HEIC"),
    **dict.fromkeys((b"mif1", b"msf1"), "HEIF"),
    b"crx ": "raw camera",
}


def is_picture_name(name: str, endings: str | tuple[str, ...] = ENDINGS) -> bool:
    """Returns whether the name of a file is that of a picture.

    Hidden files are none: macOS writes `._photo.jpg`, which is no picture, beside photo.jpg.
    """
    return name.lower().endswith(endings) and not name.startswith(".")


def kind(content: bytes) -> str:
    """Returns the kind of a file by its first bytes, for example "JPEG" or "TIFF"."""
    if not content:
        return "empty"
    if content[:4] == b"RIFF" and content[8:12] == b"WEBP":
        return "WebP"
    if content[4:8] == b"ftyp":
        return _BRANDS.get(content[8:12], "video")
    for beginning, name in _BEGINNINGS:
        if content.startswith(beginning):
            return name
    text = content[:1000].lstrip(b"\xef\xbb\xbf \t\r\n").lower()
    if text.startswith((b"<svg", b"<?xml", b"<!--")) and b"<svg" in text:
        return "SVG"
    if text.startswith((b"<!doctype html", b"<html", b"<head", b"<body")):
        return "HTML"
    return "unknown"


def refusal(content: bytes, most_pixels: int = MOST_PIXELS) -> str:
    """Returns why `tfcap.data.pictures.decode` refuses a file, and what to do, on one line.

    Args:
      content: the whole file.
      most_pixels: largest number of pixels that the head of the file may name.
    """
    name = kind(content)
    frames, width, height = claimed_size(content)
    if frames * width * height > most_pixels:
        several = f"{frames} frames of " if frames > 1 else ""
        return (
            f"a {name} file must have at most {most_pixels} pixels{' in all' if several else ''}. "
            f"Received: {several}{width} x {height}. "
            "Check the file; if it is whole, save the picture smaller."
        )
    if name == "WebP" and is_animated(content):
        return "an animated WebP file, which cannot be read. Save one of its frames as PNG."
    if name == "BMP":
        return (
            "a truncated BMP file, or one that is compressed or has a table of colours. "
            "Save it as PNG."
        )
    if name in READABLE:
        return (
            f"a truncated or damaged {name} file. Copy or download it again; "
            "if other programs show it, save it as PNG."
        )
    if name == "empty":
        return "the file is empty. Copy or download it again."
    received = "a file of an unknown kind" if name == "unknown" else f"{name} data"
    remedy = {
        "unknown": "Check the file.",
        "HTML": "The web page was saved in place of the picture; download the picture itself.",
        "video": "Save one of its frames as PNG.",
    }.get(name, _CONVERT)
    known = f"{', '.join(READABLE[:-1])} or {READABLE[-1]}"
    return f"a picture must be {known}. Received: {received}. {remedy}"


def claimed_size(content: bytes) -> tuple[int, int, int]:
    """Reads the number of frames, the width and the height from the head of a file.

    Only a GIF file has several frames. The sides are 0 for other kinds and damaged heads.
    `tfcap.data.picture_heads.claimed_pixels` reads the same inside the graph.
    """
    name, head = kind(content), content[:30].ljust(30, b"\0")
    if name == "GIF":
        return clip_size(content)
    if name == "PNG":
        return 1, int.from_bytes(head[16:20], "big"), int.from_bytes(head[20:24], "big")
    if name == "BMP":
        width, height = (int.from_bytes(head[n : n + 4], "little", signed=True) for n in (18, 22))
        return 1, abs(width), abs(height)
    if name == "WebP":
        return 1, *_webp_size(head)
    if name == "JPEG":
        return 1, *_jpeg_size(content)
    return 1, 0, 0


def _webp_size(head: bytes) -> tuple[int, int]:
    """Returns width and height by the first chunk of a WebP file, of which 30 bytes are given."""
    chunk = head[12:16]
    if chunk == b"VP8X":
        first, second = (1 + int.from_bytes(head[n : n + 3], "little") for n in (24, 27))
        return first, second
    if chunk == b"VP8L":
        packed = int.from_bytes(head[21:25], "little")
        return 1 + packed % 2**14, 1 + packed // 2**14 % 2**14
    if chunk == b"VP8 ":
        first, second = (int.from_bytes(head[n : n + 2], "little") % 2**14 for n in (26, 28))
        return first, second
    return 0, 0


def _jpeg_size(content: bytes) -> tuple[int, int]:
    """Returns width and height of a JPEG file by its first frame header; zeros without one."""
    place = 2
    while (place := content.find(b"\xff", place)) >= 0 and place + 9 <= len(content):
        marker = content[place + 1]
        if marker in (0x00, 0x01, 0xFF) or 0xD0 <= marker <= 0xD7:  # without content
            place += 1 if marker == 0xFF else 2
        elif 0xC0 <= marker <= 0xCF and marker not in (0xC4, 0xC8, 0xCC):
            height, width = (
                int.from_bytes(content[place + n : place + n + 2], "big") for n in (5, 7)
            )
            return width, height
        else:
            place += 2 + int.from_bytes(content[place + 2 : place + 4], "big")
    return 0, 0


def is_animated(content: bytes) -> bool:
    """Returns whether a file is a GIF with several frames, or a WebP marked as an animation."""
    if kind(content) == "WebP":
        return content[12:16] == b"VP8X" and bool(content[20:21] and content[20] & 2)
    if kind(content) != "GIF":
        return False
    try:
        with Image.open(io.BytesIO(content)) as image:
            return getattr(image, "is_animated", False)
    except Exception:  # Pillow raises many kinds of errors for damaged files
        return False


def upright_size(file: str | os.PathLike | BinaryIO) -> tuple[int, int] | None:
    """Returns width and height of a picture file turned upright; None if it cannot be read.

    Only the head of the file is read.
    """
    try:
        with Image.open(file) as image:
            turned = image.getexif().get(_ORIENTATION, 1) in (5, 6, 7, 8)
            return image.size[::-1] if turned else image.size
    except Exception:  # Pillow raises many kinds of errors for damaged files
        return None


def upright(image: Image.Image) -> Image.Image:
    """Returns a copy of a Pillow image that is turned upright by its EXIF orientation.

    Grey pictures of 16 bits become pictures of 8 bits, as TensorFlow decodes them; Pillow would cut
    their values off at 255. EXIF that is damaged is ignored. Unlike `tfcap.data.pictures.decode`,
    Pillow also applies an orientation that is stored in XMP only, and EXIF behind the pixels of a
    PNG file.
    """
    try:
        turned = ImageOps.exif_transpose(image)
    except Exception:  # of the parser of EXIF, which raises many kinds
        turned = image.copy()
    if turned.mode.startswith("I"):  # I;16 of any byte order; I where Pillow has read 16 bits
        values = np.asarray(turned)
        if turned.mode != "I" or values.max(initial=0) > 255:
            turned = Image.fromarray((values >> 8).clip(0, 255).astype(np.uint8))
    return turned


def clip_size(content: bytes) -> tuple[int, int, int]:
    """Returns number of frames, largest width and largest height of a GIF file.

    Only the heads of the frames are read, up to the first damaged one. The result for
    another kind of file is one frame of size 0.
    """
    if kind(content) != "GIF":
        return 1, 0, 0
    frames, sizes = 0, [content[6:10]]
    place = 13 + _palette(content[10:11])
    while (mark := content[place : place + 1]) in (b"!", b","):
        if mark == b",":
            frames += 1
            sizes.append(content[place + 5 : place + 9])
            place += 11 + _palette(content[place + 9 : place + 10])
        else:
            place += 2
        while length := content[place] if place < len(content) else 0:  # a block of data
            place += 1 + length
        place += 1
    widths, heights = ([int.from_bytes(s[a : a + 2], "little") for s in sizes] for a in (0, 2))
    return frames, max(widths), max(heights)


def _palette(flags: bytes) -> int:
    """Returns how many bytes the colours take that the flags of a GIF announce."""
    return 3 << ((flags[0] & 7) + 1) if flags and flags[0] & 0x80 else 0


def clip_refusal(content: bytes) -> str:
    """Returns why a GIF file is too large to be decoded; empty if it can be decoded."""
    frames, width, height = clip_size(content)
    size = 3 * frames * width * height
    if size <= MOST_CLIP_BYTES:
        return ""
    return (
        f"a GIF of {frames} frames of {width} x {height} pixels would take {size / 1e6:.0f} MB of "
        f"memory; at most {MOST_CLIP_BYTES / 1e6:.0f} MB are allowed. Make it smaller, or save its "
        "frames as a folder of pictures."
    )
