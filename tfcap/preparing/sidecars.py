"""Writes and reads the file beside each finished shard that describes it, `.shards/NAME.json`.

The file of a shard gets its final name first, and the description gets its own name after that.
Then the shard is finished. An interrupted prepare continues with the shards without description.
"""

import hashlib
import json
import os
from collections.abc import Mapping
from typing import Any

from tfcap import files
from tfcap.files import read_json, write_json

FOLDER = ".shards"  # in the prepared directory


def settings_digest(identity: Mapping[str, Any]) -> str:
    """Computes the SHA-256 of the settings that the content of shards depends on, as JSON."""
    return hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()


def path_of(folder: str | os.PathLike, name: str, ending: str = ".json") -> str:
    """Returns the path of a file about the shard `name`.

    Args:
      folder: the prepared directory.
      name: file name of the shard, `train-00000-of-00004.tfrecord`.
      ending: what the file name ends in.
    """
    return os.path.join(folder, FOLDER, os.path.splitext(name)[0] + ending)


def exist(folder: str | os.PathLike) -> bool:
    """Returns whether any shard of a directory has a description."""
    return bool(files.matching(folder, f"{FOLDER}/*.json"))


def write(folder: str | os.PathLike, digest: str, shard: Mapping[str, Any]) -> None:
    """Writes the description of a shard whose file is written.

    Args:
      folder: the prepared directory.
      digest: of the settings, see `settings_digest`.
      shard: what `work.ShardWorker` knows of the shard; `file`, `records` and `bytes` are checked
        by `read`.
    """
    path = path_of(folder, shard["file"])
    files.make_directory(os.path.dirname(path))
    write_json(path, {**shard, "settings": digest}, indent=None)


def read(folder: str | os.PathLike, digest: str, name: str) -> dict[str, Any] | None:
    """Reads the description of a shard.

    Args:
      folder: the prepared directory.
      digest: of the settings, see `settings_digest`.
      name: file name of the shard.

    Returns:
      The description; None if there is none, if it belongs to other settings, or if the file of
      the shard has changed since. A shard without a record has no file.
    """
    try:
        shard = read_json(path_of(folder, name), "Run prepare again.")
        if shard["settings"] != digest or shard["file"] != name:
            return None
        if shard["records"] and files.size(os.path.join(folder, name)) != shard["bytes"]:
            return None
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return shard
