"""Finds the prepared data of a run, whatever the working directory of the command is."""

import os
import pathlib
from collections.abc import Iterator

from tfcap import files
from tfcap.data.prepared import DEFAULT_DIRECTORY, FINGERPRINT, read_fingerprint

_LAST_PARTS = 3  # of an absolute path that are looked for: data/coco of /old/place/data/coco


def data_of(directory: str, configured: str, vocab_sha256: str) -> str:
    """Finds the prepared directory that a run was trained on.

    A path that exists, or is remote, is taken as it is. Otherwise it is looked for below the
    directories that hold the run. So a run of an earlier version, with a relative path, is usable
    from any directory, and a project can be moved as a whole.

    Args:
      directory: the `--model_dir`.
      configured: `task.data_dir` of the run; empty means the built-in shapes.
      vocab_sha256: the SHA-256 of the vocabulary of the run; other data of the same name is not
        taken.

    Returns:
      The directory; the configured path if nothing is found.
    """
    path = configured or DEFAULT_DIRECTORY
    if not files.is_remote(path) and not os.path.exists(os.path.join(path, FINGERPRINT)):
        for place in _places(directory, path):
            if _has_vocabulary(place, vocab_sha256):
                return place
    return path


def _places(directory: str, path: str) -> Iterator[str]:
    """Yields the path below each directory that holds the run, nearest first."""
    parts = pathlib.Path(path).parts
    tails = [parts]
    if os.path.isabs(path):
        tails = [parts[-number:] for number in range(min(_LAST_PARTS, len(parts) - 1), 0, -1)]
    for folder in pathlib.Path(os.path.abspath(directory)).parents:
        for tail in tails:
            yield os.path.join(folder, *tail)


def _has_vocabulary(place: str, vocab_sha256: str) -> bool:
    if not os.path.exists(os.path.join(place, FINGERPRINT)):
        return False
    try:
        return read_fingerprint(place)["vocab_sha256"] == vocab_sha256
    except ValueError:
        return False
