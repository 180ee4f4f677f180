"""Recall curves are drawn as a PNG with a line for each direction."""

import numpy as np
from PIL import Image

from tfcap.metrics.retrieval import Summary
from tfcap.visualize import recall


def test_a_better_curve_is_drawn_above_a_worse_one(tmp_path):
    path = tmp_path / "curves.png"
    summaries = {
        name: Summary({1: 0.0, 5: 0.0, 10: 0.0}, 1.0, np.full(101, height), 3)
        for name, height in (("image to text", 80.0), ("text to image", 30.0))
    }
    recall.write(str(path), summaries)
    with Image.open(path) as opened:
        pixels = np.asarray(opened.convert("RGB")).astype(int)
    column = pixels[: pixels.shape[0] * 3 // 4, 200]  # left of the legend, above the axis
    blue = np.flatnonzero((column[:, 2] > 150) & (column[:, 0] < 80))
    orange = np.flatnonzero((column[:, 0] > 200) & (column[:, 2] < 80))
    assert len(blue) and len(orange) and blue.max() < orange.min()
