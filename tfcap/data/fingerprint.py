"""Reads and writes dataset.json, the fingerprint of a prepared directory."""

import os
import reprlib
from collections.abc import Mapping
from typing import Any

from tfcap import storage
from tfcap.data import tokens
from tfcap.data.splits import split_name
from tfcap.files import read_json, write_json

FINGERPRINT = "dataset.json"
VOCABULARY = "vocab.txt"
FORMAT = 1


def write_fingerprint(folder: str | os.PathLike, fingerprint: Mapping[str, Any]) -> None:
    """Writes dataset.json; prepare writes it last, to show that all files are complete."""
    write_json(os.path.join(folder, FINGERPRINT), {"format": FORMAT, **fingerprint})


def load_vocabulary(
    folder: str | os.PathLike,
    fingerprint: dict[str, Any],
    remedy: str = "Restore it or run prepare again.",
) -> tokens.Vocab:
    """Reads vocab.txt of a prepared directory or a run and compares it with its dataset.json.

    Args:
      folder: the directory of both files.
      fingerprint: the content of dataset.json.
      remedy: last sentence of the error.

    Raises:
      ValueError: it is missing, damaged or another vocabulary.
    """
    path = os.path.join(folder, VOCABULARY)
    vocab = tokens.Vocab.load(path)
    if vocab.sha256 != fingerprint["vocab_sha256"]:
        raise ValueError(
            f"{path} must be the vocabulary of {FINGERPRINT}, with sha256 "
            f"{fingerprint['vocab_sha256'][:12]}…. Received: {vocab.sha256[:12]}…. {remedy}"
        )
    return vocab


def read_fingerprint(folder: str | os.PathLike) -> dict[str, Any]:
    """Reads and checks dataset.json.

    Raises:
      ValueError: not a prepared directory, another format, or an entry missing or of a wrong type.
    """
    path = os.path.join(folder, FINGERPRINT)
    if not storage.exists(path):
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
    check_entries(value, path, "Run prepare again.")
    return value


def check_entries(value: Any, path: str, remedy: str, shards: bool = True) -> None:
    """Checks that dataset.json has the entries that readers need, with correct types.

    Args:
      value: the content.
      path: the file, for the error.
      remedy: the last sentence of the error.
      shards: whether the records lie beside it. A converted run has none.

    Raises:
      ValueError: an entry is missing or of a wrong type.
    """
    try:
        _check_origin(value)
        if shards:
            _whole(value["features"], "max_regions", 1)
            _check_splits(value["splits"])
    except KeyError as error:
        raise ValueError(f"{path} must have the entry {error}. {remedy}") from None
    except (TypeError, AttributeError, ValueError) as error:
        raise ValueError(f"{path} has a wrong entry: {error} {remedy}") from None


def _whole(where: Any, key: str, least: int) -> None:
    number = where[key]
    if not isinstance(number, int) or isinstance(number, bool) or not least <= number < 1 << 62:
        shown = reprlib.repr(number)
        raise TypeError(f"{key} must be an integer of at least {least}. Received: {shown}.")


def _group(value: Any, name: str) -> None:
    if not isinstance(value, dict):
        raise TypeError(f"{name} must be a group of entries. Received: {reprlib.repr(value)}.")


def _check_origin(value: Any) -> None:
    """Raises KeyError or TypeError unless the entries that a model depends on are right."""
    _group(value, "the file")
    _group(value["features"], "features")
    words = value["vocab_sha256"]
    if not isinstance(words, str):
        raise TypeError(f"vocab_sha256 must be text. Received: {reprlib.repr(words)}.")
    _whole(value, "vocab_size", len(tokens.SPECIALS))
    _whole(value["features"], "dim", 1)
    if "image_dim" in value["features"]:
        _whole(value["features"], "image_dim", 1)
    if "frames" in value:
        _whole(value, "frames", 1)
    if value.get("backbone") is not None:
        _check_backbone(value["backbone"])


def _check_backbone(made_by: Any) -> None:
    """Raises KeyError or TypeError unless a network is described."""
    _group(made_by, "backbone")
    _whole(made_by, "grid", 1)
    _whole(made_by, "image_size", 1)
    texts = {"name": made_by["name"]}
    texts |= {key: made_by[key] for key in ("weights", "weights_sha256") if made_by[key]}
    texts |= {key: made_by[key] for key in ("wheel_sha256",) if key in made_by}
    for key, text in texts.items():
        if not isinstance(text, str):
            raise TypeError(f"{key} must be text. Received: {reprlib.repr(text)}.")


def _check_splits(splits: Any) -> None:
    """Raises KeyError, TypeError or ValueError unless splits and shards are described."""
    _group(splits, "splits")
    for name, split in splits.items():
        split_name(name)  # it becomes part of file names
        _whole(split, "images", 0)
        _whole(split, "captions", 0)
        for shard in split["shards"]:
            _whole(shard, "records", 1)
            _whole(shard, "bytes", 1)
            file = shard["file"]
            if not isinstance(file, str) or file != os.path.basename(file) or file in ("", ".."):
                shown = reprlib.repr(file)
                raise TypeError(f"file must be a plain file name. Received: {shown}.")
