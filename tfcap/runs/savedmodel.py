"""Writes the SavedModel that TF Serving loads, and tries it.

Letters: K captions of an image, T `max_length`.
"""

import os
import tempfile
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from tfcap import files
from tfcap.files import versions
from tfcap.runs.requests import OK
from tfcap.runs.server import CaptionServer

SIGNATURES = ("serving_default", "features")
OUTPUTS = ("captions", "scores", "tokens")  # an export of an earlier version has no `status`


def export(
    served: CaptionServer,
    export_dir: str,
    complete: Callable[[str, dict[str, Any]], None] | None = None,
) -> str:
    """Writes the next version of a SavedModel, so that a server never loads an incomplete one.

    TF Serving loads any directory with an integer name as soon as it appears. Therefore the
    SavedModel is written under another name, loaded and tried, and then renamed.

    Args:
      served: the functions to export.
      export_dir: the directory of all versions.
      complete: gets the directory of the SavedModel and its loaded signatures before the rename,
        and may add files.

    Returns:
      The path `export_dir/<version>`.

    Raises:
      ValueError: if `export_dir` is remote, or the saved model gives scores that are not finite.
      OSError: if the SavedModel cannot be written.
    """
    if files.is_remote(export_dir):
        raise ValueError(
            f"A SavedModel must be written to a disk. Received: {export_dir}. Export to a disk, "
            "and copy the version."
        )
    os.makedirs(export_dir, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".tmp-", dir=export_dir) as folder:
        temporary = os.path.join(folder, "version")  # the other one is for its owner alone
        _save(served, temporary)
        loaded = tf.saved_model.load(temporary)
        call_signatures(loaded)
        if complete is not None:
            complete(temporary, dict(loaded.signatures))
        for place, _, names in os.walk(temporary):
            for name in [*names, "."]:
                _sync(os.path.join(place, name))
        while True:
            target = os.path.join(export_dir, str(_last_version(export_dir) + 1))
            try:
                os.rename(temporary, target)
            except OSError:
                if not os.path.isdir(target):  # else another export has taken this number
                    raise
            else:
                _sync(export_dir)
                return target


def _save(served: CaptionServer, path: str) -> None:
    """Writes the SavedModel; a failed write raises OSError."""
    signatures = served.signatures()
    try:
        tf.saved_model.save(served, path, signatures=signatures)
    except tf.errors.OpError as error:  # TensorFlow raises several types for a full disk
        raise OSError(f"The export could not be written: {error.message}") from error


def _last_version(export_dir: str) -> int:
    """Finds the highest version in `export_dir`; 0 if there is none."""
    return max(versions(export_dir), default=0)


def picture() -> bytes:
    """Draws a red disc on blue ground, 64 x 64, and returns it as a JPEG file."""
    y, x = np.mgrid[:64, :64]
    disc = ((x - 32) ** 2 + (y - 32) ** 2 < 20**2)[..., None]
    pixels = np.where(disc, [220, 40, 40], [40, 60, 200]).astype(np.uint8)
    return tf.io.encode_jpeg(pixels, quality=95).numpy()


def call_signatures(loaded: Any) -> dict[str, dict[str, tf.Tensor]]:
    """Calls each signature of a loaded SavedModel with one image: `picture`, or features of zeros.

    Returns:
      The outputs of each signature, by its name: `captions` string [1, K], `scores` float32 [1, K],
      `tokens` int32 [1, K, T].

    Raises:
      ValueError: if a signature or an output is missing, the image is refused, or a score is not
        finite.
    """
    results = {}
    for name in SIGNATURES:
        if name not in loaded.signatures:
            raise ValueError(
                f"The SavedModel must have the signatures {', '.join(SIGNATURES)}. Received: "
                f"{', '.join(loaded.signatures) or 'none'}. Export the run again."
            )
        function = loaded.signatures[name]
        results[name] = function(**_one_image(name, function.structured_input_signature[1]))
        if missing := [key for key in OUTPUTS if key not in results[name]]:
            raise ValueError(
                f"The signature {name} must give {', '.join(OUTPUTS)}. Received: no {missing[0]}. "
                "Export the run again."
            )
        status = results[name].get("status", tf.constant([OK]))
        if bool(tf.reduce_any(status != OK)):
            raise ValueError(
                f"The exported model must caption a good picture. Received: {status.numpy()} from "
                f"the signature {name}. Check the run with python -m tfcap.doctor --model_dir."
            )
        scores = results[name]["scores"]
        if not bool(tf.reduce_all(tf.math.is_finite(scores))):
            raise ValueError(
                f"The scores of the exported model must be finite. Received: {scores.numpy()} from "
                f"the signature {name}. Check the run with python -m tfcap.doctor --model_dir."
            )
    return results


def _one_image(name: str, specs: dict[str, tf.TensorSpec]) -> dict[str, tf.Tensor]:
    """Makes the inputs of a signature for one image. Raises ValueError for an unknown input."""
    width = specs["features"].shape[-1] if "features" in specs else 0
    values = {
        "image_bytes": tf.constant([picture()]),
        "features": tf.zeros([1, 2, width]),
        "num_regions": tf.constant([2]),
        "seed": tf.constant([1], tf.int64),
    }
    if unknown := sorted(set(specs) - set(values)):
        raise ValueError(
            f"The inputs of the signature {name} must be among {', '.join(values)}. "
            f"Received: {unknown[0]}. Export the run again."
        )
    return {key: values[key] for key in specs}


def _sync(path: str) -> None:
    """Makes the system write a file or a directory to the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
