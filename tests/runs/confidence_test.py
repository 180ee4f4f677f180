"""The files of a confidence, and the checkpoint to which they belong."""

import os

import numpy as np

from tfcap.decoding.confidence import ARRAYS, Confidence
from tfcap.runs.confidence import read_confidence, write_confidence


def test_files_keep_the_mean_exactly_and_belong_to_one_checkpoint(tmp_path):
    """Features of about 1000 that differ by little would all be equal after float16."""
    rng = np.random.default_rng(0)
    shapes = {"hidden": (4, 3), "words": (8, 3), "mean": (4,), "hidden_bias": (3,)}
    arrays = {name: rng.normal(size=shapes.get(name, (8,))).astype(np.float32) for name in ARRAYS}
    arrays["mean"] += 1000
    calibration = {"signals": {"log_prob": 1.0, "support": 2.0}, "bias": 0.5, "level": 50.0}
    calibration |= {"checkpoint": "ckpt-3", "references_sha256": "1", "images": [], "decoding": {}}
    write_confidence(str(tmp_path), Confidence(arrays, calibration))
    found = read_confidence(str(tmp_path), str(tmp_path / "best_ckpt" / "ckpt-3"))
    assert dict(found.calibration) == calibration
    for name, array in found.expectation.arrays.items():
        np.testing.assert_allclose(array, arrays[name], rtol=1e-3 * (len(array.shape) > 1))
    for other in ("ckpt-4", os.path.join(os.pardir, "other", "ckpt-3")):
        assert read_confidence(str(tmp_path), str(tmp_path / other)) is None
