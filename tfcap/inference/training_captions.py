"""The captions that a model was trained on, to find captions that are novel."""

import contextlib
import logging
from collections.abc import Mapping
from typing import Any

from tfcap.data.prepared import PreparedData, stored_captions
from tfcap.runs import Run

_log = logging.getLogger(__name__)


def training_captions(run: Run | None, data: PreparedData | None) -> list[str]:
    """Returns the captions that a model was trained on; an empty list if they cannot be found.

    Args:
      run: the model, which names its training data. If it names none (a converted run), or if `run`
        is None (the captions come from a file), the training captions of `data` are returned.
      data: the prepared data on which the model is evaluated. It need not be the training data.
    """
    trained_on = _digest(run.fingerprint) if run else None  # a converted run has none
    if run and data and trained_on and trained_on != _digest(data.fingerprint):
        with contextlib.suppress(ValueError):
            data = PreparedData.load(run.data_dir)
        if _digest(data.fingerprint) != trained_on:
            _log.info(
                "note: no share of novel captions, because the data that the model was trained "
                f"on is not in {run.data_dir}"
            )
            return []
    if data is None or "train" not in data.fingerprint["splits"]:
        return []
    return [text for captions in stored_captions(data, "train").values() for text in captions]


def _digest(fingerprint: Mapping[str, Any]) -> str | None:
    """Returns the digest of the training captions in a fingerprint."""
    return fingerprint.get("splits", {}).get("train", {}).get("references_sha256")
