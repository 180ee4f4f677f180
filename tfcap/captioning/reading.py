"""Reads the bytes of a picture file from a path, a URL or an open file, without TensorFlow."""

import errno
import http.client
import os
import stat
import string
import urllib.error
import urllib.parse
import urllib.request
from typing import Any

from tfcap.images import ENDINGS, MOST_BYTES

_SECONDS = 30  # without an answer, until a download fails


def is_url(path: str | os.PathLike) -> bool:
    """Returns whether a path is the address of a web server."""
    return isinstance(path, str) and path.lower().startswith(("http://", "https://"))


def read_file(path: str) -> bytes:
    """Reads a file, or one of a file system of TensorFlow, such as gs://bucket/photo.jpg.

    Raises:
      ValueError: it cannot be read, is too large, or is no file.
    """
    try:
        if "://" in path:  # a file system of TensorFlow, such as gs://
            return _read_remote(path)
        if os.path.isdir(path):
            raise ValueError(
                f"the directory must hold pictures ({', '.join(ENDINGS)}). Received: none."
            )
        status = os.stat(path)
        if not stat.S_ISREG(status.st_mode):  # a pipe waits, and a device may have no end
            raise ValueError("a picture must be a regular file. Received: a pipe or a device.")
        if status.st_size > MOST_BYTES:
            raise ValueError(
                f"a picture file must have at most {MOST_BYTES} bytes. Received: {status.st_size}."
            )
        with open(path, "rb") as file:
            return file.read()
    except OSError as error:
        if error.errno == errno.ENAMETOOLONG or path.startswith("data:"):
            raise ValueError(
                "a text must be a path or a URL. If it is a picture in base64, give "
                "base64.b64decode(text)."
            ) from None
        if error.errno == errno.ENOENT:
            raise ValueError("there is no such file") from None
        raise ValueError(error.strerror or first_line(error)) from None


def _read_remote(path: str) -> bytes:
    import tensorflow as tf

    try:
        with tf.io.gfile.GFile(path, "rb") as file:
            return file.read()
    except tf.errors.NotFoundError:
        raise ValueError("there is no such file") from None
    except tf.errors.OpError as error:
        raise ValueError(first_line(error)) from None


def download(url: str) -> bytes:
    """Downloads a file.

    Raises:
      ValueError: it cannot be downloaded, or it is too large.
    """
    try:
        # Some servers refuse the name of Python's own library.
        request = urllib.request.Request(_ascii(url), headers={"User-Agent": "tfcap"})
        with urllib.request.urlopen(request, timeout=_SECONDS) as answer:
            content = answer.read(MOST_BYTES + 1)
    except urllib.error.HTTPError as error:
        raise ValueError(f"the server answers {error.code} {error.reason}") from None
    except (OSError, ValueError, http.client.HTTPException) as error:  # no server, not a URL
        reason = getattr(error, "reason", error)
        raise ValueError(f"the download failed: {first_line(reason)}") from None
    return _small_enough(content)


def _ascii(url: str) -> str:
    """Returns a URL as a server reads it, as browsers do: letters beyond ASCII have escapes.

    Raises:
      ValueError: the name of the host cannot be written in ASCII.
    """
    parts = urllib.parse.urlsplit(url)
    host = parts.netloc if parts.netloc.isascii() else parts.netloc.encode("idna").decode()
    return urllib.parse.quote(parts._replace(netloc=host).geturl(), safe=string.punctuation)


def read_open(file: Any) -> bytes:
    """Reads an open file from where it stands.

    Raises:
      ValueError: it gives text, or it is too large.
    """
    content = b""
    try:
        while len(content) <= MOST_BYTES and (part := file.read(MOST_BYTES + 1 - len(content))):
            if not isinstance(part, bytes):
                raise ValueError(
                    f"an open file must give bytes. Received: {type(part).__name__}. Open it with "
                    "the mode 'rb'."
                )
            content += part  # a pipe gives a part at a time
    except UnicodeDecodeError:
        raise ValueError(
            "an open file must give bytes. Received: text. Open it with the mode 'rb'."
        ) from None
    except OSError as error:
        raise ValueError(error.strerror or first_line(error)) from None
    return _small_enough(content)


def _small_enough(content: bytes) -> bytes:
    if len(content) > MOST_BYTES:
        raise ValueError(f"a picture file must have at most {MOST_BYTES} bytes. Received: more.")
    return content


def first_line(error: object) -> str:
    """Returns the first line of the text of an error, or the name of its type."""
    return shown((str(error).splitlines() or [type(error).__name__])[0])


def shown(text: str) -> str:
    """Returns a text for a message; a long one, such as a picture in base64, is cut."""
    return text if len(text) <= 500 else f"{text[:60]}... ({len(text)} characters)"
