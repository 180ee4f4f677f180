"""Finds the kind, size and orientation of a picture file, and the reason why it cannot be read.

This module does not import TensorFlow. `tfcap.data.pictures` decodes the files inside the graph,
which reads no TIFF: `readable` makes a PNG file of it before.
"""

import collections
import io
import logging
import mimetypes
import os
import re
import warnings
from collections.abc import Iterable
from typing import BinaryIO

import numpy as np
from PIL import Image, ImageOps

MOST_BYTES = 1 << 28  # of one picture or GIF file; the largest photographs have about 100 MB
# Of a picture, or of all frames of a GIF file. Neither TensorFlow nor Pillow decodes a larger JPEG.
# The pixels have 537 MB.
MOST_PIXELS = (1 << 29) // 3
SERVED_PIXELS = 50_000_000  # of a picture sent to a server, which decodes several at once
_KINDS = ("JPEG", "PNG", "BMP", "GIF", "WEBP", "TIFF")  # that are read, as Pillow names them
TIFF = (b"II*\0", b"MM\0*", b"II+\0", b"MM\0+")  # how a file begins; the last two have 64 bits
ENDINGS = (
    *(".jpg", ".jpeg", ".png", ".bmp", ".gif", ".webp"),
    *(".jfif", ".jpe", ".jif", ".pjpeg", ".pjp", ".mpo", ".apng"),  # JPEG but for the last
    *(".tif", ".tiff"),
)
# Endings of pictures that are not decoded, which Python may not know.
_UNREADABLE = (
    *(".avif", ".heic", ".heif", ".hif", ".jxl", ".jp2", ".dib", ".psd", ".tga"),
    *(".dng", ".raw", ".cr2", ".cr3", ".nef", ".arw", ".orf", ".raf", ".rw2"),  # of cameras
)
_TYPES = mimetypes.MimeTypes()  # without those of the machine, where `photo.jpg.1` may be a manual
ORIENTATION = 0x0112  # the tag of EXIF
# Further tags of TIFF. Those with two have width and height.
_SIZE, _BITS, _COLOURS, _TILE = (0x0100, 0x0101), 0x0102, 0x0106, (0x0142, 0x0143)
_WHITE_IS_ZERO = 0  # a value of _COLOURS
# Of a damaged file Pillow also logs an error, and warns of tags.
logging.getLogger("PIL.TiffImagePlugin").setLevel(logging.CRITICAL)
warnings.filterwarnings("ignore", module=r"PIL\.TiffImagePlugin")


def is_picture_name(name: str, endings: str | tuple[str, ...] = ENDINGS) -> bool:
    """True if a file name has the ending of a picture that can be decoded, and is not hidden.

    macOS writes the hidden file `._photo.jpg`, which is not a picture, beside photo.jpg.

    Args:
      name: the file name.
      endings: the endings of pictures, in lower case.
    """
    return name.lower().endswith(endings) and not name.startswith(".")


def is_picture(path: str | os.PathLike) -> bool:
    """True if a local file seems to be a picture that can be decoded, by the ending of its name.

    If the ending does not tell the kind of file, as in `4711` or `photo.jpg.1`, the first bytes of
    the file decide.
    """
    name = os.path.basename(path)
    if is_picture_name(name):
        return True
    has_other_type = _is_unreadable(name) or _TYPES.guess_type(name)[0]
    if has_other_type or name.startswith(".") or not os.path.isfile(path):  # a pipe would wait
        return False
    try:
        with Image.open(path, formats=_KINDS):
            return True
    except Exception:  # Pillow raises many kinds of errors for damaged files
        return False


def _is_unreadable(name: str) -> bool:
    """True if the file name has the ending of a picture that is not decoded, and is not hidden."""
    if name.startswith(".") or is_picture_name(name):
        return False
    kind = _TYPES.guess_type(name)[0] or ""
    return kind.startswith("image/") or name.lower().endswith(_UNREADABLE)


def by_numbers(name: str) -> list[tuple[int, str]]:
    """Returns a key for `sorted`, by which `frame2.jpg` comes before `frame10.jpg`."""
    parts = re.split(r"(\d+)", name)
    return [(int(part), "") if part.isdecimal() else (0, part) for part in parts]


def left_out(names: Iterable[str | os.PathLike]) -> str:
    """Returns a note on pictures in formats that cannot be decoded; "" if there are none.

    An example is "4 pictures are left out (3 .heic, 1 .avif): save them as JPEG or PNG".

    Args:
      names: names or paths of any files.
    """
    unreadable = [name for name in map(os.path.basename, names) if _is_unreadable(name)]
    if not unreadable:
        return ""
    is_one = len(unreadable) == 1
    pictures = "1 picture is" if is_one else f"{len(unreadable)} pictures are"
    them = "it" if is_one else "them"
    return f"{pictures} left out ({by_ending(unreadable)}): save {them} as JPEG or PNG"


def by_ending(names: Iterable[str]) -> str:
    """Counts file names by their endings, and returns a text such as "3 .heic, 1 .avif"."""
    endings = collections.Counter(os.path.splitext(name)[1].lower() for name in names)
    return ", ".join(f"{count} {ending}" for ending, count in endings.most_common())


def refusal(content: bytes, most_pixels: int = MOST_PIXELS) -> str:
    """Returns one line: why a file cannot be decoded as a picture, and what the user can do.

    Call it for a file that `tfcap.data.pictures.decode` has refused.

    Args:
      content: the bytes of the file.
      most_pixels: the largest number of pixels that is allowed; for a GIF or WebP file, of all its
        frames together.
    """
    if not content:
        return "the file is empty. Copy or download it again."
    if content[4:8] == b"ftyp":  # the families of MP4, HEIC and AVIF
        return (
            "a film, or a HEIC or AVIF picture. Save a picture as JPEG, and the frames of a film "
            "into a directory: ffmpeg -i clip.mp4 -r 5 clip/%04d.jpg"
        )
    try:
        with Image.open(io.BytesIO(content)) as image:
            kind = str(image.format)
            width, height = image.size
            frames = getattr(image, "n_frames", 1) if kind in ("GIF", "WEBP") else 1
    except Image.DecompressionBombError:
        return f"the picture has more than {MOST_PIXELS} pixels. Save it smaller."
    except Exception:  # Pillow raises many kinds of errors for damaged files
        if content.startswith(TIFF):
            return (
                "a TIFF file of a kind that Pillow does not read, such as with many bands, or it "
                "is damaged. Save three bands as PNG: gdal_translate -b 3 -b 2 -b 1 a.tif a.png"
            )
        return (
            "a picture must be JPEG, PNG, BMP, GIF, WebP or TIFF. This file is none of these "
            "(perhaps a saved web page), or it is damaged."
        )
    if frames * width * height > most_pixels:
        several = f"{frames} frames of " if frames > 1 else ""
        return (
            f"{several}{width} x {height} pixels are more than the limit of {most_pixels} pixels. "
            "Save the picture smaller."
        )
    if kind == "WEBP" and frames > 1:
        return "an animated WebP file, which cannot be read. Save one of its frames as PNG."
    if kind == "BMP":
        return "a BMP file that is truncated, compressed or has a table of colours. Save it as PNG."
    if kind not in ("JPEG", "MPO", "PNG", "GIF", "WEBP"):
        return f"a {kind} file, which cannot be read. Save it as JPEG or PNG."
    return (
        f"a truncated or damaged {kind} file. Copy or download it again; if other programs show "
        "it, save it as PNG."
    )


def require_readable(content: bytes, most_pixels: int = MOST_PIXELS) -> None:
    """Raises ValueError if a file has too many pixels or is not a picture, without decoding it.

    Args:
      content: the bytes of the file.
      most_pixels: the largest number of pixels that is allowed; for a GIF file, of all its frames
        together.
    """
    try:
        with Image.open(io.BytesIO(content)) as image:
            frames = getattr(image, "n_frames", 1) if image.format == "GIF" else 1
            if frames * image.width * image.height <= most_pixels:
                return
    except Exception:  # Pillow raises many kinds of errors for damaged files
        pass
    raise ValueError(refusal(content, most_pixels))


def readable(content: bytes, most_pixels: int = MOST_PIXELS) -> bytes:
    """Returns the bytes of a picture file that the graph decodes.

    They are those of the file itself. Only of a TIFF file they are those of a PNG file with the
    same pixels: of its first page, upright, and without its transparency. Grey of up to 16 bits
    stays so; a smaller number of bits is scaled to 16.

    Args:
      content: the bytes of the file.
      most_pixels: the largest number of pixels that is allowed, as in `require_readable`.

    Raises:
      ValueError: the file has too many pixels, is not a picture, or is a TIFF file that cannot be
        converted without loss.
    """
    require_readable(content, most_pixels)
    if not content.startswith(TIFF):
        return content
    stream = io.BytesIO()
    with Image.open(io.BytesIO(content), formats=("TIFF",)) as file:
        width, height = (file.tag_v2.get(tag, 0) for tag in _TILE)  # type: ignore[attr-defined]
        if width * height > most_pixels:  # the memory for a tile does not depend on the picture
            raise ValueError(f"a tile has more than {most_pixels} pixels. Save the file as PNG.")
        try:
            image = _without_loss(file)
        except Exception as error:  # Pillow raises many kinds of errors for damaged files
            raise ValueError(
                "a truncated or damaged TIFF file. Copy or download it again; if other programs "
                "show it, save it as PNG."
            ) from error
        if image is None:
            raise ValueError(
                f"a TIFF file whose numbers are no colours of a screen (Pillow calls them "
                f"{file.mode}). Scale them to 0..255, and save them as PNG."
            )
    image.save(stream, "PNG", compress_level=1)
    return stream.getvalue()


def _without_loss(file: Image.Image) -> Image.Image | None:
    """Returns the pixels of a TIFF file as PNG can store them; None for those that it cannot."""
    tags = file.tag_v2  # type: ignore[attr-defined]
    file.load()
    turned = upright(file) if not file.mode.startswith("I") else ImageOps.exif_transpose(file)
    if turned.mode.startswith("I;16"):
        values = np.asarray(turned).astype(np.uint16) << (16 - tags.get(_BITS, (16,))[0])
        if tags.get(_COLOURS) == _WHITE_IS_ZERO:  # which Pillow heeds for 8 bits alone
            values = 65535 - values
        return Image.fromarray(values)
    if turned.mode in ("1", "L", "LA"):
        return turned.convert("L")
    # Pillow's formula for CMYK is that of the decoder of JPEG.
    colours = ("P", "PA", "RGB", "RGBA", "RGBX", "CMYK", "YCbCr")
    return turned.convert("RGB") if turned.mode in colours else None


def has_pages(content: bytes) -> bool:
    """True if the bytes are those of a TIFF file with several pages."""
    if not content.startswith(TIFF):
        return False
    try:
        with Image.open(io.BytesIO(content), formats=("TIFF",)) as image:
            image.seek(1)
            return True
    except Exception:  # EOFError, or an error of a damaged page
        return False


def is_animated(content: bytes) -> bool:
    """True if the bytes are those of a GIF or WebP file with several frames."""
    try:
        with Image.open(io.BytesIO(content)) as image:
            return image.format in ("GIF", "WEBP") and getattr(image, "is_animated", False)
    except Exception:
        return False


def upright_size(file: str | os.PathLike | BinaryIO) -> tuple[int, int] | None:
    """Returns (width, height) in pixels of a picture after it was turned upright.

    Returns None if the file cannot be read. Only the head of the file is read.

    Args:
      file: the path of the file, or the open file.
    """
    try:
        with Image.open(file) as image:
            size = image.size
            if image.format == "TIFF":  # for which Pillow may give the turned size
                size = tuple(image.tag_v2[tag] for tag in _SIZE)  # type: ignore[attr-defined]
            turned = image.getexif().get(ORIENTATION, 1) in (5, 6, 7, 8)
            return size[::-1] if turned else size
    except Exception:  # Pillow raises many kinds of errors for damaged files
        return None


def upright(image: Image.Image) -> Image.Image:
    """Returns a Pillow image turned upright by its EXIF orientation.

    Damaged EXIF data is ignored. Grey pictures of 16 bits become pictures of 8 bits, as TensorFlow
    decodes them; Pillow would cut their values off at 255. Unlike this function,
    `tfcap.data.pictures.decode` ignores an orientation that only the XMP data gives, and EXIF data
    that follows the pixels in a PNG file.

    Args:
      image: the image, as Pillow opened it.
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
