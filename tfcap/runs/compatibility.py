"""Compares a run with a configuration and with prepared data: can they go together?"""

import os
from collections.abc import Iterator
from typing import Any

from tfcap import configs
from tfcap.data.fingerprint import FINGERPRINT
from tfcap.data.prepared import PreparedData
from tfcap.data.tokens import Vocab
from tfcap.files import read_json

PARAMS = "params.yaml"
# What may not change between the start of a run and its continuation.
FIXED = ("task.model", "task.max_length", "task.seed", "task.train_data.global_batch_size")


def read_fingerprint(directory: str) -> dict:
    """Reads the fingerprint of the data that a run was trained on.

    Raises:
      ValueError: if it is missing or not JSON.
    """
    return read_json(os.path.join(directory, FINGERPRINT), "Is this a --model_dir?")


def check_vocabulary(run: Any, data: PreparedData) -> None:
    """Checks that a `Run` can read data.

    Raises:
      ValueError: `data` was prepared with another vocabulary or other features.
    """
    for name, got, wanted in differences(data.vocab, data.fingerprint, run.fingerprint):
        raise ValueError(
            f"the {name} of {data.folder} ({got}) is not the one that {run.directory} was "
            f"trained with ({wanted}): use the data that it was trained on"
        )


def differences(vocab: Vocab, mine: dict, fingerprint: dict) -> Iterator[tuple[str, Any, Any]]:
    """Yields the differences of two fingerprints that matter to a model: name, mine, the run's."""

    def backbone(of: dict) -> str:
        made_by = of["backbone"]
        if made_by is None:
            return "ready features"
        weights = (made_by["weights_sha256"] or "none")[:12]
        size = f"grid {made_by['grid']} of {made_by['image_size']} pixels"
        size += ", 10 crops" if made_by.get("crops", 1) > 1 else ""
        return f"{made_by['name']}, {size}, weights {weights}"

    pairs = (
        ("vocabulary", vocab.sha256[:12], fingerprint["vocab_sha256"][:12]),
        ("feature width", mine["features"]["dim"], fingerprint["features"]["dim"]),
        ("backbone", backbone(mine), backbone(fingerprint)),
    )
    yield from (pair for pair in pairs if pair[1] != pair[2])


def check_same(
    directory: str, experiment: str, params: configs.Experiment, data: PreparedData
) -> None:
    """Checks that training in a run directory can go on with a configuration and data.

    Raises:
      ValueError: the experiment, a key of `FIXED` or the data differ.
    """
    with open(os.path.join(directory, PARAMS), encoding="utf-8", errors="replace") as file:
        first = file.readline().strip()
    if first != f"experiment: {experiment}":
        raise ValueError(
            f"{directory} belongs to another experiment ({first!r}), this is {experiment!r}: "
            "choose another --model_dir"
        )
    old = {key: value for key, value, _ in configs.leaves(configs.load(f"{directory}/{PARAMS}"))}
    for key, value, _ in configs.leaves(params):
        if key.startswith(FIXED) and value != old[key]:
            raise ValueError(
                f"{directory} was started with {key}={old[key]!r}, now it is {value!r}: choose "
                "another --model_dir, or go on with the old value"
            )
    recorded = read_fingerprint(directory)
    for name, got, wanted in differences(data.vocab, data.fingerprint, recorded):
        raise ValueError(
            f"{directory} was started with another {name} ({wanted}) than that of {data.folder} "
            f"({got}): choose another --model_dir, or the data that it was started with"
        )
