"""The confidence of a run on disk: confidence.json and confidence.npz in its directory."""

import os

import numpy as np

from tfcap import files
from tfcap.decoding.confidence import ARRAYS, Confidence

CONFIDENCE = "confidence.json"
ARRAYS_FILE = "confidence.npz"
_REMEDY = "Calibrate the run again with tfcap.calibrate, or remove the file."


def write_confidence(directory: str, confidence: Confidence) -> None:
    """Writes a confidence into the directory of a run.

    Args:
      directory: the directory.
      confidence: the confidence; its arrays are stored as float16.
    """
    arrays = {name: array.numpy() for name, array in confidence.expectation.arrays.items()}
    half = {name: array.astype(np.float16) for name, array in arrays.items()}
    files.write_npz(os.path.join(directory, ARRAYS_FILE), **half)
    files.write_json(os.path.join(directory, CONFIDENCE), dict(confidence.calibration))


def read_confidence(directory: str, checkpoint: str) -> Confidence | None:
    """Reads the confidence of a run; None if the run is not calibrated.

    Args:
      directory: the directory of the run.
      checkpoint: path of the checkpoint that was loaded. For another checkpoint than that which was
        calibrated there is no confidence.

    Raises:
      ValueError: a file cannot be read.
    """
    path = os.path.join(directory, CONFIDENCE)
    if not files.exists(path):
        return None
    calibration = files.read_json(path, _REMEDY)
    if not isinstance(calibration, dict) or {"signals", "bias"} - calibration.keys():
        raise ValueError(f"{path} is no calibration. {_REMEDY}")
    if calibration.get("checkpoint") != os.path.basename(checkpoint):
        return None
    arrays = files.load_npz(os.path.join(directory, ARRAYS_FILE), ARRAYS, _REMEDY)
    return Confidence(arrays, calibration)
