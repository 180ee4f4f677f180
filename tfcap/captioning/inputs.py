"""Reads the pictures for a captioner, from files, URLs, bytes or arrays, without TensorFlow.

A picture is the path of a file, a URL, the bytes of a file, an open binary file, a Pillow image, or
an array or tensor uint8 [H, W, 3]. Several pictures are a folder, an array [B, H, W, 3], any
iterable of pictures, or a `tf.data.Dataset` of pictures or of batches.

A model of clips reads GIF files and films as clips. For such a model a folder of still pictures is
one clip, and the pictures are its frames. A folder of GIF files, films or such folders is several
clips.

For a model of images with several pictures, such as the views of an X-ray study, a folder of
pictures is one image, too, unless folders of pictures are in it. So is a list or a tuple of
pictures inside an iterable.

Letters: B pictures, H and W height and width of a picture.
"""

import http.client
import os
import string
import urllib.parse
import urllib.request
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np
from PIL import Image

from tfcap import files
from tfcap import images as image_files
from tfcap.data import films
from tfcap.images import ENDINGS, MOST_BYTES, by_numbers, is_picture, is_picture_name, upright

Reads = Literal["pictures", "clips", "views"]  # what a model reads; views: several pictures each
_CLIPS = (".gif", *films.ENDINGS)
_SECONDS = 30  # without an answer, until a download fails


class ClipPath(NamedTuple):
    """The path of a clip: a film (a video file), or a directory of pictures, its frames.

    For a model of images with several pictures it is the directory of the pictures of an image.
    """

    path: str


View = bytes | np.ndarray  # the bytes of a file, or uint8 [H, W, 3]
Content = View | ClipPath | tuple[View, ...]  # also a clip, or the pictures of one image


class Picture(NamedTuple):
    """A picture that was read, or the reason why it could not be read.

    Attributes:
      position: the position of the picture in the input, from 0.
      source: the path or URL of the picture; None if it came as bytes, pixels or an open file.
      content: the bytes of the file, the pixels uint8 [H, W, 3], the path of a clip, or several
        pictures of one image; None if the picture could not be read.
      reason: why the picture could not be read; "" if it was read.
    """

    position: int
    source: str | None
    content: Content | None
    reason: str = ""


def is_single(images: Any, reads: Reads = "pictures") -> bool:
    """True if `images` is one picture; False if it holds several, as a list or a directory does.

    Args:
      images: a picture, or several.
      reads: what the model reads. For "clips" a directory of frames counts as one picture, and for
        "views" one of the pictures of an image.

    Raises:
      ValueError: `images` is of a type that holds no pictures.
    """
    if isinstance(images, str | os.PathLike):
        path = os.path.expanduser(images)
        return _is_url(path) or not os.path.isdir(path) or _is_one(path, reads)
    if isinstance(images, bytes | Image.Image) or hasattr(images, "read"):
        return True
    if hasattr(images, "shape"):  # an array or a tensor; a data set has none
        return len(images.shape) in (0, 2, 3)
    if not isinstance(images, Iterable) or isinstance(images, Mapping):
        raise ValueError(
            "`images` must be a path, a URL, the bytes of a file, an open file, a Pillow image, an "
            "array uint8 [height, width, 3], or a list of these, and not of the type "
            f"{type(images).__name__}."
        )
    return False


def _is_one(directory: str | os.PathLike, reads: Reads) -> bool:
    """True if the pictures in a directory are one input: the frames of a clip, or views."""
    names = os.listdir(directory)
    if reads == "pictures" or not any(map(is_picture_name, names)):
        return False
    if reads == "clips":
        return not any(is_picture_name(name, _CLIPS) for name in names)
    inner = (os.path.join(directory, name) for name in names if name[0] != ".")
    return not any(
        any(map(is_picture_name, os.listdir(path))) for path in inner if os.path.isdir(path)
    )


def read(images: Any, reads: Reads = "pictures") -> Iterator[Picture]:
    """Reads pictures one after the other, from files, URLs, bytes or arrays.

    Args:
      images: a picture, or several.
      reads: what the model reads. For "clips" a film (a video file) is one picture. For "clips" and
        "views" a directory of pictures, or a list inside `images`, is one.

    Yields:
      A `Picture` for each picture, in the order of the input. If a picture cannot be read, its
      `Picture` has the reason, and the next picture follows.
    """
    for position, image in enumerate(_pictures(images, reads)):
        source = None
        try:
            if reads != "pictures" and isinstance(image, list | tuple):
                parts = [_source_or_content(view) for view in image]
                source = next((part for part in parts if isinstance(part, str)), None)
                views = [_read_file(part) if isinstance(part, str) else part for part in parts]
                yield Picture(position, source, tuple(views))
                continue
            content = _source_or_content(image)
            if isinstance(content, str):
                source = content
                yield Picture(position, source, _read_path(source, reads))
            else:
                yield Picture(position, None, content)
        except (ValueError, OSError) as error:
            reason = getattr(error, "strerror", None) or str(error) or "it cannot be read"
            # A text may be a whole picture in base64.
            yield Picture(position, source and source[:200], None, reason.splitlines()[0][:200])


def expand(
    paths: Sequence[str],
    reads: Reads = "pictures",
    recursive: bool = False,
    others: list[str] | None = None,
) -> list[str]:
    """Returns the paths with each directory replaced by the paths of the pictures in it.

    A directory without pictures stays in the list. Reading it then says what is wrong.

    Args:
      paths: the paths of files and directories, and URLs.
      reads: what the model reads. For "clips" a directory of frames stays as one path, and another
        directory is replaced by its GIF files, films (video files) and directories of frames. For
        "views" a directory of the pictures of an image stays as one path, and another directory is
        replaced by its pictures and such directories.
      recursive: whether subdirectories are searched, too. Hidden ones and links never are.
      others: a list to which the function appends the files that it leaves out; None forgets them.
    """
    sources: list[str] = []
    others = [] if others is None else others
    for path in paths:
        if os.path.isdir(path) and not _is_one(path, reads):
            sources += list(_inside(path, reads, recursive, others)) or [path]
        else:
            sources.append(path)
    return sources


def left_out(others: Sequence[str], reads: Reads = "pictures") -> list[str]:
    """Returns notes for the user, each a line of text, on files that `expand` left out.

    Args:
      others: the paths of the files that `expand` left out. Only pictures and films (video files)
        are noted.
      reads: what the model reads. One of clips reads films, and no still pictures: then the notes
        name these. Otherwise they name the films.
    """
    notes = [note] if (note := image_files.left_out(others)) else []
    endings = ENDINGS if reads == "clips" else films.ENDINGS
    names = [name for name in map(os.path.basename, others) if is_picture_name(name, endings)]
    if names and reads == "clips":
        counts = image_files.by_ending(names)
        notes.append(f"still pictures are left out ({counts}): the model reads clips")
    elif names:
        counts = image_files.by_ending(names)
        notes.append(f"films are left out ({counts}): a model of clips reads them")
    return notes


def _inside(directory: str, reads: Reads, recursive: bool, others: list[str]) -> Iterator[str]:
    """Yields the inputs in a directory, sorted by name; adds other files to `others`."""
    for name in sorted(os.listdir(directory)):
        path = os.path.join(directory, name)
        is_directory = os.path.isdir(path)
        if _is_input(path, reads, is_directory):
            yield path
        elif not is_directory:
            others.append(path)
        elif recursive and not os.path.islink(path) and name[0] != ".":
            yield from _inside(path, reads, recursive, others)


def _is_input(path: str, reads: Reads, is_directory: bool) -> bool:
    """True for a picture, or for what else the model reads, such as a film or a folder."""
    if is_directory:
        return _is_one(path, reads)
    if reads == "clips":
        return is_picture_name(os.path.basename(path), _CLIPS)
    return is_picture(path)


def _pictures(images: Any, reads: Reads) -> Iterator[Any]:
    """Yields the pictures of `images`; directories and batches are replaced by their pictures."""
    if is_single(images, reads):
        yield images
    elif isinstance(images, str | os.PathLike):
        others: list[str] = []
        yield from expand([os.path.expanduser(os.fsdecode(images))], reads, others=others)
        for note in left_out(others, reads):
            warnings.warn(note, stacklevel=2)
    else:
        for image in images:
            several = isinstance(image, str | os.PathLike) or hasattr(image, "shape")
            yield from _pictures(image, reads) if several else [image]


def _source_or_content(image: Any) -> str | bytes | np.ndarray:
    """Returns a path or URL, the bytes of a file, or uint8 [H, W, 3]."""
    if isinstance(image, Image.Image):
        try:
            image = np.asarray(upright(image).convert("RGB"))
        except Exception as error:  # of the file that Pillow reads only now
            raise ValueError(
                f"Pillow cannot read the picture: {error}. Use another copy."
            ) from None
    if isinstance(image, str | os.PathLike):
        return os.path.expanduser(os.fsdecode(image))
    if hasattr(image, "read"):
        image = image.read(MOST_BYTES + 1)
    if isinstance(image, bytes):
        return _small_enough(image)
    if hasattr(image, "numpy"):
        image = image.numpy()
    if isinstance(image, np.ndarray) and image.ndim == 0:
        image = image.item()
    if isinstance(image, bytes):  # of a tensor, which has no other type for a path
        try:
            return image if b"\0" in image[:100] else image.decode()
        except UnicodeDecodeError:
            return image
    if isinstance(image, str):
        return image
    if not isinstance(image, np.ndarray):
        raise ValueError(
            "a picture must be a path, a URL, the bytes of a file, an open file, a Pillow image or "
            f"an array uint8 [height, width, 3], and not of the type {type(image).__name__}."
        )
    if image.dtype != np.uint8 or image.ndim != 3 or image.shape[2] != 3 or not image.size:
        raise ValueError(
            "an array of pixels must be uint8 [height, width, 3], RGB with values from 0 to 255. "
            f"This array is {image.dtype} {list(image.shape)}."
        )
    return image


def _read_path(path: str, reads: Reads) -> bytes | ClipPath:
    """Reads a file or a URL; a folder that is one input, and a film for a model of clips, stays."""
    if reads != "pictures" and os.path.isdir(path) and _is_one(path, reads):
        return ClipPath(path)
    if reads == "clips" and path.lower().endswith(films.ENDINGS) and files.is_file(path):
        if not files.is_remote(path) and not _is_url(path):
            return ClipPath(path)
    return _read_file(path)


def _read_file(path: str) -> bytes:
    """Reads a file or a URL."""
    if _is_url(path):
        return _download(path)
    if os.path.isdir(path):
        raise ValueError(
            "the directory holds no pictures. Give one with files that end with "
            f"{', '.join(ENDINGS)}."
        )
    if not files.is_file(path):  # a pipe would wait, and a device has no end
        raise ValueError("there is no such file; check the path")
    with files.local_copy(path) as local, open(local, "rb") as file:
        return _small_enough(file.read(MOST_BYTES + 1))


def views_of(content: Content, most: int) -> list[View]:
    """Returns the pictures of one image, each as the bytes of its file or as pixels.

    Args:
      content: the content of a `Picture`; of a directory its pictures are read, in the order of the
        numbers in their names.
      most: the largest number of pictures that the model reads of an image.

    Raises:
      ValueError: there are more pictures or none, or a file cannot be read.
    """
    views: list[View]
    if isinstance(content, ClipPath):
        names = sorted(filter(is_picture_name, os.listdir(content.path)), key=by_numbers)
        views = [os.path.join(content.path, name) for name in names]  # type: ignore[misc]
    else:
        views = [*content] if isinstance(content, tuple) else [content]
    if not 0 < len(views) <= most:
        raise ValueError(
            f"an image of {len(views)} pictures, but the model reads 1 to {most} of an image. "
            "Put those of each image into a folder of its own. A file is an image of one picture."
        )
    return [_read_file(view) if isinstance(view, str) else view for view in views]


def _is_url(path: Any) -> bool:
    return isinstance(path, str) and path.lower().startswith(("http://", "https://"))


def _download(url: str) -> bytes:
    try:
        # Some servers refuse the name of Python's own library.
        request = urllib.request.Request(_ascii(url), headers={"User-Agent": "tfcap"})
        with urllib.request.urlopen(request, timeout=_SECONDS) as answer:
            content = answer.read(MOST_BYTES + 1)
    except (OSError, ValueError, http.client.HTTPException) as error:  # no server, not a URL
        raise ValueError(f"the download failed: {error}. Check the URL.") from None
    return _small_enough(content)


def _ascii(url: str) -> str:
    """Escapes the letters of a URL that are not ASCII, as browsers do."""
    parts = urllib.parse.urlsplit(url)
    host = parts.netloc if parts.netloc.isascii() else parts.netloc.encode("idna").decode()
    return urllib.parse.quote(parts._replace(netloc=host).geturl(), safe=string.punctuation)


def _small_enough(content: bytes) -> bytes:
    if len(content) > MOST_BYTES:
        raise ValueError(
            f"a picture file must have at most {MOST_BYTES} bytes. Save the picture smaller."
        )
    return content
