"""Reads and writes dataset.json, the fingerprint of a prepared directory."""

import os
from collections.abc import Mapping
from typing import Any

from tfcap.data import tokens
from tfcap.data.splits import split_name
from tfcap.files import read_json, write_json

FINGERPRINT = "dataset.json"
VOCABULARY = "vocab.txt"
FORMAT = 1


def write_fingerprint(folder: str | os.PathLike, fingerprint: Mapping[str, Any]) -> None:
    """Writes dataset.json; prepare writes it last, to show that all files are complete."""
    write_json(os.path.join(folder, FINGERPRINT), {"format": FORMAT, **fingerprint})


def read_fingerprint(folder: str | os.PathLike) -> dict[str, Any]:
    """Reads and checks dataset.json.

    Raises:
      ValueError: not a prepared directory, another format, or an entry missing or of a wrong type.
    """
    path = os.path.join(folder, FINGERPRINT)
    if not os.path.exists(path):
        raise ValueError(
            f"{folder} has no {FINGERPRINT}: it is not a prepared directory, or prepare was "
            "interrupted. Run prepare, which continues where it stopped."
        )
    value = read_json(path, "Run prepare again.")
    if not isinstance(value, dict) or value.get("format") != FORMAT:
        received = value.get("format") if isinstance(value, dict) else type(value).__name__
        raise ValueError(
            f"{path} must have format {FORMAT}. Received: {received!r}. "
            "Run this version's prepare into a new directory."
        )
    if value.get("tokenizer") != tokens.TOKENIZER:
        raise ValueError(
            f"{path} must be made with the tokenizer {tokens.TOKENIZER!r} of this version. "
            f"Received: tokenizer {value.get('tokenizer')!r}. Run prepare again."
        )
    try:
        _check_types(value)
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise ValueError(
            f"{path} has a missing or wrong entry: {error}. Run prepare again."
        ) from None
    return value


def _check_types(value: dict[str, Any]) -> None:
    """Raises KeyError, TypeError or ValueError unless the entries are as readers expect them."""

    def whole(where: Mapping[str, Any], key: str, least: int) -> None:
        number = where[key]
        if not isinstance(number, int) or isinstance(number, bool) or number < least:
            raise TypeError(f"{key} must be an integer of at least {least}. Received: {number!r}")

    whole(value, "vocab_size", len(tokens.SPECIALS))
    if not isinstance(value["vocab_sha256"], str):
        raise TypeError(f"vocab_sha256 must be text. Received: {value['vocab_sha256']!r}")
    whole(value["features"], "dim", 1)
    whole(value["features"], "max_regions", 1)
    if "frames" in value:
        whole(value, "frames", 1)
    if "image_dim" in value["features"]:
        whole(value["features"], "image_dim", 1)
    for name, split in value["splits"].items():
        split_name(name)  # it becomes part of file names
        whole(split, "images", 0)
        whole(split, "captions", 0)
        for shard in split["shards"]:
            whole(shard, "records", 1)
            whole(shard, "bytes", 1)
            file = shard["file"]
            if not isinstance(file, str) or file != os.path.basename(file) or file in ("", ".."):
                raise TypeError(f"file must be a plain file name. Received: {file!r}")
