"""The figure of a calibration has its curves and its bins at their places."""

import xml.etree.ElementTree as ElementTree

import numpy as np

from tfcap.metrics.calibration import calibration
from tfcap.visualize.calibration import figure


def test_curves_and_bins_are_drawn():
    confidence = np.array([0.9, 0.2, 0.6, 0.8])
    scores = np.array([80.0, 10.0, 10.0, 20.0])
    measured = calibration(confidence, scores, 50.0, {"a & b": -confidence}, samples=2)
    root = ElementTree.fromstring(figure(measured))
    left, right = root.findall("g")
    texts = [one.text for one in left.findall("text")]
    assert {"confidence", "a & b", "chance", "coverage"} <= set(texts)
    lines = [one.get("points").split() for one in left.findall("polyline")]
    assert [len(line) for line in lines] == [100, 100, 100]
    # All captions kept: 3 of 4 are not usable. The first caption of one order is usable.
    assert [line[-1] for line in lines] == ["300.0,75.0"] * 3
    assert lines[0][0] == "3.0,300.0" and lines[1][0] == "3.0,0.0"
    dots = [(one.get("cx"), one.get("cy")) for one in right.findall("circle")]
    assert dots == [("60.0", "300.0"), ("180.0", "300.0"), ("240.0", "300.0"), ("270.0", "0.0")]
