"""Reads the pictures that a captioner is given, in any form, without TensorFlow.

A picture is the path of a file, a URL, the bytes of a file, an open binary file, a Pillow image, or
an array or tensor uint8 [H, W, 3]. Several pictures are a folder, an array [B, H, W, 3], any
iterable of pictures, or a `tf.data.Dataset` of pictures or of batches.

A model of clips reads GIF files as clips. A folder of still pictures is then one clip, whose frames
the pictures are, and a folder of GIF files or of such folders is several clips.

Letters: B pictures, H and W height and width of a picture.
"""

import http.client
import os
import stat
import string
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from PIL import Image

from tfcap.images import ENDINGS, MOST_BYTES, is_picture_name, upright

_SECONDS = 30  # without an answer, until a download fails


class FrameFolder(NamedTuple):
    """A folder of pictures that are the frames of one clip."""

    path: str


class Picture(NamedTuple):
    """A picture that was read, or the reason why it could not be read.

    Attributes:
      position: its position in the input, from 0.
      source: its path or URL; None for others.
      content: bytes of a file, uint8 [H, W, 3], or a folder of frames; None if it could not be
        read.
      reason: why it could not be read.
    """

    position: int
    source: str | None
    content: bytes | np.ndarray | FrameFolder | None
    reason: str = ""


def is_single(images: Any, clips: bool = False) -> bool:
    """Returns whether `images` is one picture, and not a folder or a collection of pictures.

    Args:
      images: a picture or pictures.
      clips: whether the model reads clips.

    Raises:
      ValueError: it is neither.
    """
    if isinstance(images, str | os.PathLike):
        path = os.path.expanduser(images)
        return _is_url(path) or not os.path.isdir(path) or (clips and is_clip(path))
    if isinstance(images, bytes | bytearray | memoryview | Image.Image) or hasattr(images, "read"):
        return True
    if hasattr(images, "shape"):  # an array or a tensor; a data set has none
        return len(images.shape) in (0, 2, 3)
    if not isinstance(images, Iterable) or isinstance(images, Mapping):
        raise ValueError(_unknown(images))
    return False


def is_clip(folder: str | os.PathLike) -> bool:
    """Returns whether a folder holds the frames of one clip: pictures, none of them a GIF file."""
    pictures = [name for name in os.listdir(folder) if is_picture_name(name)]
    return bool(pictures) and not any(is_picture_name(name, ".gif") for name in pictures)


def read(images: Any, clips: bool = False) -> Iterator[Picture]:
    """Reads one picture or many, one after the other, in order.

    A picture that cannot be read gives a reason, and the others are read.

    Args:
      images: a picture or pictures.
      clips: whether the model reads clips.

    Raises:
      ValueError: `images` is neither a picture nor pictures.
    """
    for position, image in enumerate(_pictures(images, clips)):
        source = None
        try:
            content = _plain(image)
            if isinstance(content, str):
                source = content
                yield Picture(position, source, _read_path(source, clips))
            else:
                yield Picture(position, None, content)
        except (ValueError, OSError) as error:
            lines = (
                getattr(error, "strerror", None) or str(error) or "it cannot be read"
            ).splitlines()
            yield Picture(position, source and _shortened(source), None, _shortened(lines[0]))


def expand(paths: Sequence[str], clips: bool = False) -> list[str]:
    """Replaces each directory by the pictures that it holds; keeps a directory without pictures.

    Args:
      paths: files, URLs and directories.
      clips: whether the model reads clips: a directory is then replaced by its GIF files and by the
        folders of frames in it, and a folder of frames stays.
    """
    sources: list[str] = []
    for path in paths:
        names = []
        if os.path.isdir(path) and not (clips and is_clip(path)):
            names = sorted(name for name in os.listdir(path) if _is_wanted(path, name, clips))
        sources += [os.path.join(path, name) for name in names] or [path]
    return sources


def _is_wanted(folder: str, name: str, clips: bool) -> bool:
    """Returns whether a file or folder of a directory is captioned."""
    path = os.path.join(folder, name)
    if clips and os.path.isdir(path):
        return is_clip(path)
    return is_picture_name(name, ".gif" if clips else ENDINGS)


def _pictures(images: Any, clips: bool) -> Iterator[Any]:
    """Yields the pictures of `images`; folders and batches are replaced by what they hold."""
    if is_single(images, clips):
        yield images
    elif isinstance(images, str | os.PathLike):
        yield from expand([os.path.expanduser(os.fsdecode(images))], clips)
    else:
        for image in images:
            several = isinstance(image, str | os.PathLike) or hasattr(image, "shape")
            yield from _pictures(image, clips) if several else [image]


def _plain(image: Any) -> str | bytes | np.ndarray:
    """Returns a path or URL, the bytes of a file, or uint8 [H, W, 3].

    Raises:
      ValueError: it is no picture.
    """
    if isinstance(image, Image.Image):
        return _pixels_of(image)
    if isinstance(image, str | os.PathLike):
        return os.path.expanduser(os.fsdecode(image))
    if hasattr(image, "read"):
        image = image.read(MOST_BYTES + 1)
        if not isinstance(image, bytes):
            raise ValueError("an open file must give bytes. Open it with the mode 'rb'.")
    if isinstance(image, bytes | bytearray | memoryview):
        return _small_enough(bytes(image))
    if hasattr(image, "numpy"):
        image = image.numpy()
    if isinstance(image, np.ndarray) and image.ndim == 0:
        image = image.item()
    if isinstance(image, bytes):  # of a tensor, which has no other type for text
        return _path_or_content(image)
    if isinstance(image, str):
        return image
    if isinstance(image, np.ndarray):
        return _checked(image)
    raise ValueError(_unknown(image))


def _pixels_of(image: Image.Image) -> np.ndarray:
    """Returns the pixels of a Pillow image, uint8 [H, W, 3]."""
    if image.mode == "F":  # Pillow would cut the values to 0..255, and those of 0..1 would be black
        raise ValueError("a Pillow image of the mode F. Scale it to 0..255 and convert it to RGB.")
    try:
        return _checked(np.asarray(upright(image).convert("RGB")))
    except Exception as error:  # of the file that Pillow reads only now
        raise ValueError(f"Pillow cannot read it: {error}") from None


def _path_or_content(text: bytes) -> str | bytes:
    """Returns the path that a string tensor holds, or the bytes of a picture file."""
    if b"\0" in text[:100]:
        return text
    try:
        return text.decode()
    except UnicodeDecodeError:
        return text


def _checked(pixels: np.ndarray) -> np.ndarray:
    if pixels.dtype != np.uint8 or pixels.ndim != 3 or pixels.shape[2] != 3 or not pixels.size:
        raise ValueError(
            "an array must be RGB with values from 0 to 255, uint8 [height, width, 3]. This one "
            f"is {pixels.dtype} {list(pixels.shape)}."
        )
    return pixels


def _read_path(path: str, clips: bool) -> bytes | FrameFolder:
    """Reads a file or a URL; a model of clips gets the name of a folder of frames."""
    if _is_url(path):
        return _download(path)
    if "://" in path:  # a file system of TensorFlow, such as gs://bucket/photo.jpg
        return _read_remote(path)
    if os.path.isdir(path):
        if clips and is_clip(path):
            return FrameFolder(path)
        raise ValueError(f"the directory holds no pictures ({', '.join(ENDINGS)}).")
    try:
        status = os.stat(path)
    except FileNotFoundError:
        raise ValueError("there is no such file") from None
    if not stat.S_ISREG(status.st_mode):  # a pipe waits, and a device may have no end
        raise ValueError("a picture must be a regular file, and not a pipe or a device.")
    with open(path, "rb") as file:
        return _small_enough(file.read(MOST_BYTES + 1))


def _read_remote(path: str) -> bytes:
    import tensorflow as tf

    try:
        with tf.io.gfile.GFile(path, "rb") as file:
            return _small_enough(file.read(MOST_BYTES + 1))
    except tf.errors.NotFoundError:
        raise ValueError("there is no such file") from None
    except tf.errors.OpError as error:
        raise ValueError(str(error)) from None


def _is_url(path: Any) -> bool:
    return isinstance(path, str) and path.lower().startswith(("http://", "https://"))


def _download(url: str) -> bytes:
    try:
        # Some servers refuse the name of Python's own library.
        request = urllib.request.Request(_ascii(url), headers={"User-Agent": "tfcap"})
        with urllib.request.urlopen(request, timeout=_SECONDS) as answer:
            content = answer.read(MOST_BYTES + 1)
    except urllib.error.HTTPError as error:
        raise ValueError(f"the server answers {error.code} {error.reason}") from None
    except (OSError, ValueError, http.client.HTTPException) as error:  # no server, not a URL
        raise ValueError(f"the download failed: {getattr(error, 'reason', error)}") from None
    return _small_enough(content)


def _ascii(url: str) -> str:
    """Returns a URL as a server reads it, as browsers do: letters beyond ASCII have escapes."""
    parts = urllib.parse.urlsplit(url)
    host = parts.netloc if parts.netloc.isascii() else parts.netloc.encode("idna").decode()
    return urllib.parse.quote(parts._replace(netloc=host).geturl(), safe=string.punctuation)


def _small_enough(content: bytes) -> bytes:
    if len(content) > MOST_BYTES:
        raise ValueError(f"a picture file must have at most {MOST_BYTES} bytes.")
    return content


def _shortened(text: str) -> str:
    """Returns a text for a message; a long one, such as a picture in base64, is cut."""
    return text if len(text) <= 500 else f"{text[:60]}... ({len(text)} characters)"


def _unknown(images: Any) -> str:
    if isinstance(images, Mapping):
        return "Pictures must be a list and not a dictionary. Give list(pictures.values())."
    return (
        "A picture must be a path, a URL, bytes of a file, an open file, a Pillow image, or an "
        f"array uint8 [height, width, 3], and not of the type {type(images).__name__}."
    )
