"""The confidence of a run on disk: confidence.json and confidence.npz in its directory."""

import os

import numpy as np

from tfcap import files
from tfcap.decoding.confidence import ARRAYS, Confidence

CONFIDENCE = "confidence.json"
ARRAYS_FILE = "confidence.npz"
_NEEDED = {"signals", "bias", "level", "checkpoint", "references_sha256", "images", "decoding"}
_REMEDY = f"Remove {CONFIDENCE}; then tfcap.calibrate can fit the confidence again."


def write_confidence(directory: str, confidence: Confidence) -> None:
    """Writes a confidence into the directory of a run.

    Args:
      directory: the directory.
      confidence: the confidence; its matrices are stored as float16, its vectors as float32.
    """
    arrays = {name: array.numpy() for name, array in confidence.expectation.arrays.items()}
    # The mean of features may be far larger than what is left after it is subtracted.
    types = {name: np.float16 if array.ndim == 2 else np.float32 for name, array in arrays.items()}
    stored = {name: array.astype(types[name]) for name, array in arrays.items()}
    files.write_npz(os.path.join(directory, ARRAYS_FILE), **stored)
    files.write_json(os.path.join(directory, CONFIDENCE), dict(confidence.calibration))


def read_confidence(directory: str, checkpoint: str) -> Confidence | None:
    """Reads the confidence of a run; None if the run is not calibrated.

    Args:
      directory: the directory of the run.
      checkpoint: path of the checkpoint that was loaded. For another checkpoint than that which was
        calibrated, such as one of another run, there is no confidence.

    Raises:
      ValueError: a file cannot be read.
    """
    path = os.path.join(directory, CONFIDENCE)
    if not files.exists(path):
        return None
    calibration = files.read_json(path, _REMEDY)
    if not isinstance(calibration, dict) or _NEEDED - calibration.keys():
        raise ValueError(f"{path} is no calibration. {_REMEDY}")
    inside = os.path.relpath(checkpoint, directory)
    if inside.startswith(os.pardir) or os.path.basename(inside) != calibration.get("checkpoint"):
        return None
    arrays = files.load_npz(os.path.join(directory, ARRAYS_FILE), ARRAYS, _REMEDY)
    return Confidence(arrays, calibration)
