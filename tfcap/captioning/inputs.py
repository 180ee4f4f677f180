"""Reads the pictures that a captioner is given, in any form, without TensorFlow.

A picture is the path of a file, a URL, the bytes of a file, an open file, a Pillow image, or an
array or tensor uint8 [H, W, 3]. Several pictures are a folder, an array [B, H, W, 3], any iterable
of pictures, or a `tf.data.Dataset` of pictures.

A model of clips reads GIF files as clips. A folder of still pictures is then one clip, whose frames
the pictures are, and a folder of GIF files or of such folders is several clips.

Letters: B pictures, H and W height and width of a picture.
"""

import os
import reprlib
import sys
import unicodedata
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from PIL import Image

from tfcap.captioning import reading
from tfcap.images import ENDINGS, is_animated, is_picture_name, upright

# Errors of TensorFlow for one element of a data set: a damaged, missing, unreadable file, a folder.
_OF_ELEMENTS = (
    "InvalidArgumentError",
    "NotFoundError",
    "PermissionDeniedError",
    "FailedPreconditionError",
)
_REPEATS = 3  # of one error in a row, after which a data set does not go on
_LONGEST_PATH = 4096


class AnimationWarning(UserWarning):
    """An animated picture was read, of which only the first frame is used."""


class FrameFolder(NamedTuple):
    """A folder of pictures that are the frames of one clip."""

    path: str


class Picture(NamedTuple):
    """A picture that was read, or the reason why it could not be read.

    Attributes:
      position: its position in the input, from 0.
      source: its path or URL; None for others. A long one that cannot be read is shortened.
      content: bytes of a file, uint8 [H, W, 3], or a folder of frames; None if it could not be
        read.
      reason: why it could not be read.
    """

    position: int
    source: str | None
    content: bytes | np.ndarray | FrameFolder | None
    reason: str = ""


def is_single(given: Any, clips: bool = False) -> bool:
    """Returns whether `given` is one picture, and not a folder or a collection of pictures.

    Args:
      given: a picture or pictures.
      clips: whether the model reads clips.
    """
    if isinstance(given, str | os.PathLike):
        path = os.path.expanduser(given)
        return reading.is_url(path) or not os.path.isdir(path) or (clips and is_clip(path))
    if isinstance(given, bytes | bytearray | memoryview | Image.Image) or hasattr(given, "read"):
        return True
    shape = getattr(given, "shape", None)  # of an array or a tensor; a data set has none
    if shape is not None:
        return len(shape) in (0, 2, 3)
    if not isinstance(given, Iterable) or isinstance(given, Mapping):
        raise ValueError(_unknown(given))
    return False


def _is_input(given: Any) -> bool:
    try:
        is_single(given)
    except ValueError:
        return False
    return True


def is_clip(folder: str | os.PathLike) -> bool:
    """Returns whether a folder holds the frames of one clip: pictures, none of them a GIF file."""
    pictures = [name for name in os.listdir(folder) if is_picture_name(name)]
    return bool(pictures) and not any(is_picture_name(name, ".gif") for name in pictures)


def read(given: Any, clips: bool = False) -> Iterator[Picture]:
    """Reads one picture or many, one after the other, in order.

    A picture that cannot be read gives a reason, and the others are read. The first animated GIF
    file gives an `AnimationWarning`, unless the model reads clips.

    Args:
      given: a picture or pictures.
      clips: whether the model reads clips.

    Raises:
      ValueError: `given` is neither a picture nor pictures.
    """
    warned = clips
    for position, one in enumerate(_each(given, clips)):
        source = None
        if isinstance(one, _Unreadable):
            yield Picture(position, one.source, None, one.reason)
            continue
        try:
            animation = _animated_image(one, clips)
            one = _plain(one)
            if isinstance(one, str):
                source = one
                one = _read_path(one, clips)
            animation = animation or ("" if warned else _animated_file(one))
            if animation and not warned:
                warned = True
                name = reading.shown(source) if source else f"picture {position}"
                warnings.warn(f"{name} is {animation}", AnimationWarning, stacklevel=2)
            yield Picture(position, source, one)
        except ValueError as error:
            yield Picture(position, source and reading.shown(source), None, str(error))


def _animated_image(one: Any, clips: bool) -> str:
    """Returns what a Pillow image of several frames loses; empty for others."""
    # Photographs of telephones (MPO) and TIFF files may hold several pictures, too.
    if not isinstance(one, Image.Image) or one.format not in ("GIF", "PNG", "WEBP"):
        return ""
    try:
        if not getattr(one, "is_animated", False):
            return ""
    except Exception:  # Pillow looks for the frames only now, and the file may be damaged
        return ""
    if clips:
        raise ValueError(
            "a clip must be the path or the bytes of a GIF file. Received: a Pillow image, which "
            "holds one of its frames at a time."
        )
    return "an animated Pillow image. Only its current frame is used."


def _animated_file(content: Any) -> str:
    """Returns what a GIF file of several frames loses; empty for others."""
    if not isinstance(content, bytes) or content[:4] != b"GIF8" or not is_animated(content):
        return ""
    return "an animated GIF file. Only the first frame of such files is used."


def lasting(given: Any) -> Any:
    """Returns pictures in a form that can be read twice: files as bytes, other iterables as lists.

    A data set that shuffles gives another order when it is read again.
    """
    if hasattr(given, "read"):
        return reading.read_open(given)
    if is_single(given) or isinstance(given, str | os.PathLike) or hasattr(given, "shape"):
        return given
    return [reading.read_open(one) if hasattr(one, "read") else one for one in _elements(given)]


class _Unreadable(NamedTuple):
    source: str | None
    reason: str


def _each(given: Any, clips: bool) -> Iterator[Any]:
    """Yields the pictures of `given`; folders in it are replaced by the pictures that they hold."""
    if not is_single(given, clips):
        if isinstance(given, str | os.PathLike):
            yield from expand([os.path.expanduser(given)], clips)
            return
        for one in _elements(given):
            if isinstance(one, _Unreadable):
                yield one
            elif isinstance(one, list | tuple) or not _is_input(one):
                yield _Unreadable(None, _unknown(one))
            else:  # a picture, a folder, or a batch of a data set
                try:
                    yield from _each(one, clips)
                except OSError as error:  # a folder that cannot be listed
                    yield _Unreadable(str(one), error.strerror or reading.first_line(error))
        return
    yield given


def _elements(given: Iterable) -> Iterator[Any]:
    """Iterates over `given`; an element that a data set cannot compute is an `_Unreadable`."""
    iterator, before, times = iter(given), "", 0
    while True:
        try:
            one = next(iterator)
            before = ""
        except StopIteration:
            return
        except Exception as error:
            reason = reading.first_line(error)
            times = times + 1 if reason == before else 1
            # Most data sets go on after these errors; others, as those of TFRecord files, repeat
            # one for ever.
            if type(error).__name__ not in _OF_ELEMENTS or times > _REPEATS:
                raise
            before = reason
            one = _Unreadable(None, f"the data set cannot compute it: {reason}")
        yield one


def expand(paths: Sequence[str], clips: bool = False) -> list[str]:
    """Replaces each directory by the pictures that it holds; keeps a directory without pictures.

    Folders in a directory are left out, and a note tells how many.

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
            others = [one.name for one in os.scandir(path) if one.is_dir() and one.name[0] != "."]
            if left := set(others) - set(names):
                print(f"note: folders in {path} that are not read: {len(left)}", file=sys.stderr)
        sources += [os.path.join(path, name) for name in names] or [path]
    return sources


def _is_wanted(folder: str, name: str, clips: bool) -> bool:
    """Returns whether a file or folder of a directory is captioned."""
    path = os.path.join(folder, name)
    if clips and os.path.isdir(path):
        return is_clip(path)
    return is_picture_name(name, ".gif" if clips else ENDINGS)


def _plain(one: Any) -> str | bytes | np.ndarray:
    """Returns a path or URL, the bytes of a file, or uint8 [H, W, 3].

    Raises:
      ValueError: it is no picture.
    """
    if isinstance(one, Image.Image):
        return _pixels_of(one)
    if isinstance(one, str | os.PathLike):
        return os.path.expanduser(os.fsdecode(one))
    if hasattr(one, "read"):
        one = reading.read_open(one)
    if isinstance(one, bytes | bytearray | memoryview):
        return bytes(one)
    if hasattr(one, "numpy"):
        one = one.numpy()
    if isinstance(one, np.ndarray) and one.ndim == 0:
        one = one.item()
    if isinstance(one, bytes):  # of a tensor, which has no other type for text
        return _path_in(one) or one
    if isinstance(one, str):
        return one
    if isinstance(one, np.ndarray):
        return _checked(one)
    raise ValueError(_unknown(one))


def _pixels_of(image: Image.Image) -> np.ndarray:
    """Returns the pixels of a Pillow image, uint8 [H, W, 3]."""
    if image.mode == "F":  # Pillow would cut the values to 0..255, and those of 0..1 would be black
        raise ValueError(
            "a Pillow image must have whole numbers as pixels. Received: the mode F. Scale its "
            "values to 0..255 and convert it to RGB."
        )
    try:
        pixels = np.asarray(upright(image).convert("RGB"))
    except Exception as error:  # of the file that Pillow reads only now
        raise ValueError(f"Pillow cannot read it: {reading.first_line(error)}") from None
    if not pixels.size:
        raise ValueError(
            "a Pillow image must have at least one pixel. Received: "
            f"{image.width} x {image.height} pixels."
        )
    return pixels


def _path_in(content: bytes) -> str | None:
    """Returns the path that a string tensor holds; None if it holds a picture file."""
    if len(content) > _LONGEST_PATH:
        return None
    try:
        text = content.decode()
    except UnicodeDecodeError:
        return None
    # Names may have characters that are not printable, such as the narrow space in those of macOS.
    return None if any(unicodedata.category(sign) == "Cc" for sign in text) else text


def _checked(pixels: np.ndarray) -> np.ndarray:
    if pixels.dtype != np.uint8 or pixels.ndim != 3 or pixels.shape[2] != 3 or not pixels.size:
        remedy = "Convert it to RGB."
        if pixels.dtype.kind == "f":
            remedy = (
                "Give pixels from 0 to 255; if they are in 0..1, (255 * picture).astype('uint8')."
            )
        elif pixels.dtype == bool:
            remedy = "Give pixels from 0 to 255: 255 * picture.astype('uint8')."
        elif pixels.dtype != np.uint8:
            remedy = "If the pixels are from 0 to 255, picture.astype('uint8')."
        raise ValueError(
            "An array must be uint8 [height, width, 3]. Received: "
            f"{pixels.dtype} {list(pixels.shape)}. {remedy}"
        )
    return pixels


def _read_path(path: str, clips: bool) -> bytes | FrameFolder:
    """Reads a file or a URL; a model of clips gets the name of a folder of frames."""
    if reading.is_url(path):
        return reading.download(path)
    if clips and "://" not in path and os.path.isdir(path) and is_clip(path):
        return FrameFolder(path)
    return reading.read_file(path)


def _unknown(given: Any) -> str:
    if isinstance(given, Mapping):
        return (
            "Pictures must be a list and not a dictionary. Received: "
            f"{reprlib.repr(list(given))} as its keys. Give list(pictures.values())."
        )
    return (
        "A picture must be a path, a URL, bytes of a file, an open file, a Pillow image, or an "
        f"array uint8 [height, width, 3]. Received: {type(given).__name__}."
    )
