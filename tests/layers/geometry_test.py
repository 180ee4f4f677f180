"""The geometry of boxes against its formula in float64, and which boxes an image gets."""

import numpy as np
import pytest

from tfcap.layers import geometry


def boxes_like(shape, seed=0):
    corners = np.random.default_rng(seed).random((*shape, 2, 2))
    return np.concatenate([corners.min(-2), corners.max(-2)], -1).astype(np.float32)


def codes(m, n):
    """The 64 numbers of region m beside region n, one after the other."""
    m, n = m.astype(np.float64), n.astype(np.float64)
    w, h = m[2] - m[0] + 1, m[3] - m[1] + 1
    numbers = [
        np.log(max(abs((m[0] + m[2]) / 2 - (n[0] + n[2]) / 2) / w, 1e-3)),
        np.log(max(abs((m[1] + m[3]) / 2 - (n[1] + n[3]) / 2) / h, 1e-3)),
        np.log(w / (n[2] - n[0] + 1)),
        np.log(h / (n[3] - n[1] + 1)),
    ]
    angles = [100 * number / 1000 ** (k / 8) for number in numbers for k in range(8)]
    return np.concatenate([np.sin(angles), np.cos(angles)])


def test_codes_and_bias_equal_their_formula():
    boxes = boxes_like((2, 3))
    result = geometry.relation_codes(boxes)
    expected = np.array([[[codes(m, n) for n in image] for m in image] for image in boxes])
    np.testing.assert_allclose(result, expected, atol=2e-4)  # angles go up to 700
    layer = geometry.GeometricBias(heads=2)
    result = np.exp(layer(result))  # near 0 the logarithm magnifies what float32 rounds
    kernel, bias = (weight.numpy().astype(np.float64) for weight in layer.weigh.weights)
    weights = np.maximum(expected @ kernel + bias, 1e-6).transpose(0, 3, 1, 2)
    assert (weights == 1e-6).any() and (weights > 0.1).any()
    np.testing.assert_allclose(result, weights, atol=1e-3)


@pytest.mark.parametrize("regions, side", [(1, 1), (2, 2), (4, 2), (5, 3), (49, 7), (196, 14)])
def test_regions_without_boxes_are_cells_of_a_square_grid(regions, side):
    """Row by row, however much padding there is."""
    for padding in (0, 3):
        mask = np.arange(regions + padding)[None] < regions
        result = geometry.boxes_of({"mask": mask}).numpy()[0, :regions] * side
        place = np.arange(regions)
        low = np.stack([place % side, place // side], -1)
        np.testing.assert_allclose(result, np.concatenate([low, low + 1], -1), atol=1e-5)


def test_boxes_are_those_of_the_inputs_but_where_an_image_has_none():
    mask = np.array([[True, True, False], [True, True, True]])
    boxes = boxes_like((2, 3))
    result = geometry.boxes_of({"mask": mask, "boxes": boxes}).numpy()
    np.testing.assert_array_equal(result[mask], boxes[mask])
    cells = geometry.boxes_of({"mask": mask}).numpy()
    boxes[0] = [[0] * 4, [0] * 4, [9] * 4]  # what padding has does not count
    result = geometry.boxes_of({"mask": mask, "boxes": boxes}).numpy()
    np.testing.assert_array_equal(result[0, :2], cells[0, :2])
    np.testing.assert_array_equal(result[1], boxes[1])
