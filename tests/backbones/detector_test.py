"""The bottom-up detector against a literal port of the released code, rule by rule.

The networks are narrow and random. Each test of a rule was seen to fail when the rule is broken.
"""

import dataclasses
import functools

import numpy as np
import pytest
import tensorflow as tf

from tests.helpers import literal_detector as literal
from tests.helpers import picture_bytes
from tfcap.backbones import detector
from tfcap.backbones.boxes import (
    ANCHORS,
    anchors,
    choose,
    confidences,
    decoded,
    roi_pool,
    running_maxima,
    suppressed,
)
from tfcap.backbones.detector import Detector, Sizes
from tfcap.data import pictures

NARROW = literal.NARROW
F = np.float32
HEAD, RPN = "roi_heads.box_predictor", "proposal_generator.rpn_head"


@functools.cache
def weights():
    return literal.random_weights()


def narrow(changes=None, **sizes):
    """A narrow detector with some weights replaced, and some sizes."""
    sizes = dataclasses.replace(NARROW, **sizes)
    return Detector({**weights(), **(changes or {})}, literal.card_of(sizes))


def detect(network, image):
    """The regions of a picture uint8 [H, W, 3], without the padding, through the public door."""
    result = network.regions(network.resize(tf.constant(image))[None])
    count = int(result.count[0])
    rows = {key: value[0].numpy() for key, value in result._asdict().items()}
    assert not any(value[count:].any() for key, value in rows.items() if key != "count")
    return {key: value if key == "count" else value[:count] for key, value in rows.items()}


SIZES = [(60, 90), (90, 60), (61, 93), (75, 75), (131, 77), (97, 300), (200, 300), (199, 281)]


@pytest.mark.parametrize(("height", "width"), SIZES)
@pytest.mark.parametrize("form", ["caffe", "milvlg"])
def test_regions_are_those_of_the_literal_port(form, height, width):
    image = literal.photograph(height, width, seed=height)
    sizes = dataclasses.replace(NARROW, form=form)
    expected = literal.detect(image, weights(), sizes)
    network = narrow(form=form)
    result = network.detect(*resized(image))
    count = int(result.count)
    assert count == len(expected["boxes"]) >= 10
    np.testing.assert_allclose(result.boxes[:count], expected["boxes"], atol=1e-3)  # pixels
    largest = np.abs(expected["features"]).max()
    np.testing.assert_allclose(result.features[:count], expected["features"], atol=1e-5 * largest)
    for key in ("classes", "attributes"):
        assert result._asdict()[key][:count].numpy().tolist() == expected[key].tolist()
    for key in ("class_scores", "attribute_scores"):
        np.testing.assert_allclose(result._asdict()[key][:count], expected[key], atol=1e-3)


def resized(image, short=NARROW.short, long=NARROW.long):
    pixels, scale = detector.resized(tf.constant(image), short, long)
    return pixels, tf.cast(scale, tf.float32)


def test_the_padded_pictures_of_a_batch_give_the_regions_of_each_picture():
    network, images = narrow(), [literal.photograph(60, 90), literal.photograph(130, 77, 1)]
    batch = tf.stack([network.resize(tf.constant(image)) for image in images])
    together = tf.function(network.regions, autograph=False)(batch)
    for row, image in enumerate(images):
        alone = network.detect(*resized(image))
        np.testing.assert_allclose(together.boxes[row], alone.boxes, atol=1e-3)
        halves = alone.features.numpy().astype(np.float16)
        np.testing.assert_allclose(together.features[row], halves, atol=0.01)
        assert together.count[row] == alone.count


def test_weights_written_and_loaded_are_the_same(tmp_path):
    detector.write(tmp_path / "a", weights(), literal.card_of())
    network = detector.load(tmp_path / "a")
    network.save(tmp_path / "b")
    for name in (detector.WEIGHTS, detector.CARD):
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()
    assert network.sizes == NARROW
    wrong = {**weights(), f"{HEAD}.cls_score.bias": np.zeros(11)}
    with pytest.raises(
        ValueError, match=r"cls_score.bias has the shape \(11,\), but must have \(10,\)"
    ):
        detector.write(tmp_path / "c", wrong, literal.card_of())


def test_the_table_of_shapes_has_the_sizes_of_the_released_weights():
    shapes = detector.shapes(Sizes())
    assert len(shapes) == 2 * (1 + 4 + 3 * (3 + 4 + 23 + 3) + 3 + 1 + 2) + 1
    assert shapes["backbone.res4.22.conv3.weight"] == (1, 1, 256, 1024)
    assert shapes["backbone.res3.0.shortcut.weight"] == (1, 1, 256, 512)
    assert shapes["roi_heads.res5.2.conv2.weight"] == (3, 3, 512, 512)
    assert shapes[f"{RPN}.anchor_deltas.bias"] == (48,)
    assert shapes[f"{HEAD}.attr_linear1.weight"] == (2304, 512)
    assert shapes[f"{HEAD}.cls_embed.weight"] == (1601, 256)


# ---- rules of the picture -----------------------------------------------------------------------


def test_channels_are_blue_green_red_minus_their_mean_undivided():
    red = np.broadcast_to(np.array([255, 10, 0], np.uint8), (60, 90, 3))
    expected = np.float32([-102.9801, 10 - 115.9465, 255 - 122.7717])
    np.testing.assert_allclose(resized(red)[0][7, 5], expected, atol=1e-4)


@pytest.mark.parametrize(
    ("size", "scale", "target"),
    [
        ((427, 640), 600 / 427, (600, 899)),
        ((400, 401), 1.5, (600, 602)),  # 601.5 to even
        ((400, 403), 1.5, (600, 604)),  # 604.5 to even
        ((333, 600), 1000 / 600, (555, 1000)),
        ((3, 30), 1000 / 30, (100, 1000)),
        ((600, 1000), 1.0, (600, 1000)),
        ((1200, 2001), 0.5, (600, 1000)),  # 1000.5 to even is not above 1000
        ((1, 2000), 0.5, (3, 1000)),  # 0 rows would have no map; 3 are the fewest
    ],
)
def test_the_scale_and_both_sizes_are_those_of_opencv(size, scale, target):
    image = np.zeros((*size, 3), np.uint8)
    pixels, result = detector.resized(tf.constant(image), 600, 1000)
    assert float(result) == scale
    assert tuple(pixels.shape[:2]) == target


@pytest.mark.parametrize("size", [(43, 64), (61, 93), (90, 61)])
def test_resized_pixels_follow_the_scale_and_not_the_ratio_of_sizes(size):
    image = np.random.default_rng(3).integers(0, 256, (*size, 3), np.uint8)
    pixels, _ = detector.resized(tf.constant(image), 59, 97)
    expected, _ = literal.resize(image, 59, 97)
    np.testing.assert_allclose(pixels, expected, atol=1e-4)


# ---- rules of the trunk -------------------------------------------------------------------------


@pytest.mark.parametrize("size", [(33, 46), (34, 47), (35, 48), (36, 49), (3, 50)])
def test_the_trunk_has_caffes_padding_for_odd_and_even_sizes(size):
    pixels = np.random.default_rng(0).normal(0, 60, (*size, 3)).astype(F)
    result = narrow()._trunk(tf.constant(pixels[None]))[0]
    expected = literal.trunk(pixels, weights(), NARROW.blocks)
    np.testing.assert_allclose(result, expected, atol=1e-4)


def test_the_stride_is_in_the_first_convolution_of_a_block():
    name = "backbone.res3.0"
    x = np.random.default_rng(0).normal(size=(1, 9, 9, 8)).astype(F)
    changed = x.copy()
    changed[:, 1::2] += 1.0  # rows that a 1 x 1 convolution of stride 2 does not read
    result = [narrow()._block(name, tf.constant(each), 2, 1) for each in (x, changed)]
    np.testing.assert_array_equal(*result)


def test_folding_is_the_batch_normalisation_also_of_a_channel_without_statistics():
    rng = np.random.default_rng(0)
    kernel, x = rng.normal(size=(1, 1, 5, 4)), rng.normal(size=5)
    mean, var, gamma, beta = (rng.random(4) + 0.1 for _ in range(4))
    mean[0] = var[0] = 0.0  # Caffe's factor is 0
    folded, bias = detector.fold(kernel, mean, var, gamma, beta)
    y = x @ kernel[0, 0]
    expected = (y - mean) / np.sqrt(var + 1e-5) * gamma + beta
    np.testing.assert_allclose(x @ folded[0, 0] + bias, expected, rtol=1e-4)


@pytest.mark.parametrize("block", range(3))
def test_every_block_of_res5_is_dilated_and_none_has_a_stride(block):
    name, rng = f"roi_heads.res5.{block}", np.random.default_rng(block)
    cells = rng.random((12, 13, 24)).astype(F)
    rois = np.float32([[3, 5, 150, 170], [40, 8, 190, 60]])
    network = narrow(proposals=2, boxes=(1, 2))
    # A kernel that reads one corner shows how far from the middle that corner is.
    kernel = np.zeros_like(weights()[f"{name}.conv2.weight"])
    kernel[0, 0] = weights()[f"{name}.conv2.weight"][1, 1]
    network.weights[f"{name}.conv2.weight"].assign(kernel)
    result = network._features(tf.constant(cells[None]), tf.constant(rois), 2)
    values = {key: variable.numpy() for key, variable in network.weights.items()}
    expected = literal.features(cells, rois, values, 3)
    np.testing.assert_allclose(result, expected, atol=1e-5)


# ---- rules of the proposals ---------------------------------------------------------------------


def test_anchors_are_those_of_generate_anchors_in_the_order_of_rows_columns_anchors():
    np.testing.assert_array_equal(ANCHORS, literal.make_anchors())
    result = anchors(tf.zeros([1, 3, 5, 1])).numpy()
    assert result.shape == (180, 4)
    np.testing.assert_array_equal(result[12 * (2 * 5 + 4) + 7], ANCHORS[7] + [64, 32, 64, 32])


def test_a_decoded_box_counts_its_last_pixel_once():
    box, still = F([[-38, -16, 53, 31]]), np.zeros([1, 4], F)
    assert decoded(box, still, None).numpy().tolist() == [[-38, -16, 54, 32]]
    moved = decoded(box, F([[0.5, 0, np.log(2), 9]]), np.log(1000 / 16)).numpy()[0]
    np.testing.assert_allclose(moved[[0, 2]], [8 + 46 - 92, 8 + 46 + 92], atol=1e-4)
    assert moved[3] - moved[1] == pytest.approx(48 * 1000 / 16, rel=1e-6)


def proposals(network, scale=1.0, size=(640, 640)):
    cells = tf.zeros([1, *(side // 16 for side in size), NARROW.widths[2]])
    rois, number = network._proposals(cells, tf.constant(size), tf.constant(scale, tf.float32))
    return rois.numpy()[: int(number)]


def one_anchor(anchor, move=(0, 0, 0, 0), **sizes):
    """A detector whose proposals are anchors of this kind first, all moved in the same way."""
    score = f"{RPN}.objectness_logits"
    changes = {name: np.zeros_like(weights()[name]) for name in weights() if RPN in name}
    changes[f"{score}.bias"][anchor], changes[f"{score}.bias"][anchor + 12] = -3, 3
    changes[f"{RPN}.anchor_deltas.bias"][4 * anchor : 4 * anchor + 4] = move
    return narrow(changes, **sizes)


@pytest.mark.parametrize(
    ("anchor", "first"), [(0, [0, 0, 54, 32]), (8, [0, 0, 30, 52]), (11, [0, 0, 184, 360])]
)
def test_the_scores_of_an_anchor_are_twelve_channels_apart(anchor, first):
    assert proposals(one_anchor(anchor))[0].tolist() == first  # cut at the edges of the picture


@pytest.mark.parametrize(
    ("form", "least", "kept"),
    [
        ("caffe", 45.0, True),  # a box of 44 pixels has the side 45
        ("caffe", np.nextafter(F(45), F(46)), False),
        ("milvlg", 45.0, False),
        ("milvlg", np.nextafter(F(45), F(44)), True),
    ],
)
def test_the_smallest_side_of_a_proposal(form, least, kept):
    boxes = proposals(one_anchor(8, form=form, candidates=9000, proposals=900), F(least) / 16)
    narrowest = (boxes[:, 2:] - boxes[:, :2]).min()
    assert (narrowest == 44) == kept


@pytest.mark.parametrize(("form", "whole"), [("caffe", True), ("milvlg", False)])
def test_only_milvlg_limits_how_much_a_side_grows(form, whole):
    """The middle is far beyond the picture, and only a side of 44 e^9 pixels reaches back."""
    first = proposals(one_anchor(8, (100, 0, 9, 0), form=form))[0]
    assert (first.tolist() == [0, 0, 639, 52]) == whole


def test_candidates_are_the_first_of_equal_scores():
    boxes = proposals(one_anchor(8, candidates=3), size=(640, 640))
    # Those at the left edge are cut; the first two of the first row overlap by less than 0.7.
    np.testing.assert_array_equal(boxes[0], [0, 0, 30, 52])
    np.testing.assert_array_equal(boxes[1], [2, 0, 46, 52])


def test_suppression_at_exactly_seven_tenths():
    """The overlap is 70 / 100 pixels: survives in Caffe, is suppressed by MILVLG's float32."""
    boxes = F([[0, 0, 9, 9], [0, 0, 9, 6]])  # areas 100 and 70
    scores = F([0.9, 0.8])
    for milvlg, expected in ((False, 2), (True, 1)):
        kept, number = suppressed(boxes, scores, 2, milvlg)
        assert int(number) == expected
        assert kept.shape == (2,)
    larger = F([[0, 0, 9, 9], [0, 0, 9, 7]])
    assert int(suppressed(larger, scores, 2)[1]) == 1


# ---- rules of the bins --------------------------------------------------------------------------


def test_the_bins_are_those_of_the_loops_bit_for_bit():
    rng = np.random.default_rng(0)
    cells = rng.random((38, 63, 5)).astype(F)
    corners = rng.random((40, 4)) * [999, 599, 999, 599]
    rois = np.concatenate([np.minimum(corners[:, :2], corners[:, 2:]), corners[:, 2:]], 1)
    rois = np.concatenate([rois, [[0, 0, 999, 599], [0, 0, 8, 8], [998, 598, 999, 599]]]).astype(F)
    compare_bins(cells, rois)


def compare_bins(cells, rois, long=1000):
    maxima = running_maxima(tf.constant(cells))
    result = roi_pool(maxima, tf.constant(cells.shape[:2]), tf.constant(rois), long)
    expected = [literal.roi_pool(cells, roi) for roi in rois]
    np.testing.assert_array_equal(result, expected)


def test_corners_round_as_c_does():
    """8 / 16 is a half, 7.9999995 / 16 just below, and 40 / 16 would be even."""
    cells = np.arange(20 * 20, dtype=F).reshape(20, 20, 1)
    rois = F([[8, 8, 200, 200], [7.9999995, 8, 200, 200], [40, 40, 168, 200], [24, 72, 104, 136]])
    compare_bins(cells, rois)


@pytest.mark.parametrize("width", [27, 57, 62, 63])
def test_bins_are_float32_products(width):
    """In whole numbers the bins of 57 and 62 cells differ."""
    cells = np.random.default_rng(width).random((3, 63, 4)).astype(F)
    compare_bins(cells, F([[0, 0, 16 * (width - 1), 32]]))


def test_a_bin_beyond_the_map_is_zero():
    """The map of 602 pixels has 38 cells, and 601 / 16 rounds to the 38th, which counts from 0."""
    cells = 1 + np.random.default_rng(0).random((38, 38, 2)).astype(F)
    compare_bins(cells, F([[601, 0, 609, 609], [590, 590, 609, 609]]))


# ---- rules of the heads and of the selection ----------------------------------------------------


def test_the_background_is_class_0_and_counts_in_the_vector_of_the_attributes():
    """All proposals are background; its vector alone makes attribute 4 (5 with the background)."""
    linear1, linear2 = f"{HEAD}.attr_linear1", f"{HEAD}.attr_linear2"
    embed, score = f"{HEAD}.cls_embed.weight", f"{HEAD}.cls_score"
    changes = {
        name: np.zeros_like(weights()[name])
        for name in weights()
        if name.startswith((embed, linear1, linear2, score))
    }
    changes[f"{score}.bias"][:3] = 9, 5, 7
    changes[embed][0, 0] = 1
    changes[f"{linear1}.weight"][NARROW.widths[3], 0] = 1
    changes[f"{linear2}.weight"][0, 5] = 8
    result = detect(narrow(changes), literal.photograph(60, 90))
    assert result["count"] == 10  # no class is sure
    assert set(result["classes"]) == {1}
    assert set(result["attributes"]) == {4}
    total = np.exp(9) + np.exp(5) + np.exp(7) + 7
    np.testing.assert_allclose(result["class_scores"], np.exp(7) / total, rtol=1e-5)
    assert result["attribute_scores"].min() > 0.9


def test_boxes_are_the_proposals_divided_by_the_scale_and_not_clipped():
    """A proposal ends at most at W' - 1; W' / f - 1 / f is beyond W - 1 for f above 1."""
    image = literal.photograph(60, 90)
    result = detect(narrow(), image)
    assert result["boxes"][:, 2].max() == F(359) / F(4)
    odd = literal.photograph(61, 93)
    pixels, scale = resized(odd)
    rois = narrow()._proposals(narrow()._trunk(pixels[None]), pixels.shape[:2], scale)[0].numpy()
    quotients = (rois / F(scale)).astype(F)
    boxes = detect(narrow(), odd)["boxes"]
    assert all((quotients == box).all(1).any() for box in boxes)


def test_each_class_suppresses_alone_and_at_exactly_three_tenths():
    boxes = F([[0, 0, 9, 9], [0, 0, 9, 2], [0, 7, 9, 9], [50, 50, 60, 60]])  # overlaps 0.3, 0.3, 0
    scores = F([[0.9, 0.1], [0.8, 0.7], [0.3, 0.05], [0.4, 0.6]])
    result = confidences(tf.constant(boxes), tf.constant(scores), tf.constant(4))
    # The first box suppresses both others in class 1; in class 2 the second suppresses the first,
    # and the third, which touches only the first, stays.
    np.testing.assert_array_equal(result, F([0.9, 0.7, 0.05, 0.6]))
    padded = confidences(tf.constant(boxes), tf.constant(scores), tf.constant(2))
    np.testing.assert_array_equal(padded, F([0.9, 0.7, -1, -1]))


def test_confidences_are_those_of_the_loops():
    rng = np.random.default_rng(5)
    low = rng.random((60, 2)) * 200
    boxes = np.concatenate([low, low + 20 + rng.random((60, 2)) * 150], 1).astype(F)
    classes = literal.softmax(rng.normal(0, 2, (60, 9))).astype(F)
    result = confidences(tf.constant(boxes), tf.constant(classes[:, 1:]), tf.constant(60))
    np.testing.assert_array_equal(result, literal.confidences(boxes, classes).astype(F))


def chosen(confidence, least=2, most=4, number=None):
    values = tf.constant(confidence, tf.float32)
    rows, count = choose(values, tf.constant(number or len(confidence)), least, most)
    assert int(count) <= len(rows)
    return rows.numpy()[: int(count)].tolist()


def test_the_selection_keeps_the_order_of_proposals_or_takes_the_best():
    assert chosen([0.1, 0.3, 0.19, 0.5, 0.2]) == [1, 3, 4]  # 0.2 itself is enough
    assert chosen([0.1, 0.15, 0.3, 0.15, 0.1]) == [2, 1]  # too few; the first of equal ones
    assert chosen([0.3, 0.5, 0.4, 0.9, 0.2, 0.8]) == [3, 5, 1, 2]  # too many
    assert chosen([0.0, 0.1, 0.0, 0.3], 3, 3) == [3, 1, 0]  # a fixed number
    assert chosen([0.1, -1.0, -1.0, -1.0], number=1) == [0]  # fewer proposals than regions


# ---- pictures -----------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["grey", "cmyk", "exif"])
def test_grey_cmyk_and_turned_pictures(kind):
    mode = {"grey": "L", "cmyk": "CMYK", "exif": "RGB"}[kind]
    content = picture_bytes.file("JPEG", mode=mode)
    content = literal.turned(content) if kind == "exif" else content
    network = narrow()
    image = pictures.decode(tf.constant(content)).numpy()
    assert image.shape[:2] == ((40, 24) if kind == "exif" else (24, 40))
    result = network.regions(network.decode(tf.constant(content))[None])
    assert int(result.count[0]) >= 1
    expected = literal.detect(image, weights(), NARROW)["boxes"]
    np.testing.assert_allclose(result.boxes[0, : len(expected)], expected, atol=1e-3)


@pytest.mark.parametrize("size", [(20, 20), (17, 900), (400, 18)])
def test_tiny_and_panoramic_pictures(size):
    image = literal.photograph(*size)
    result, expected = detect(narrow(), image), literal.detect(image, weights(), NARROW)
    assert result["count"] == len(expected["boxes"]) >= 1
    np.testing.assert_allclose(result["boxes"], expected["boxes"], atol=2e-3)


def test_a_picture_without_proposals_has_no_region():
    """A proposal has at least 16 pixels of the picture along each side."""
    assert detect(narrow(), literal.photograph(12, 40))["count"] == 0


def test_the_graph_compiles_with_xla_for_a_static_size():
    network, image = narrow(candidates=100, proposals=20), literal.photograph(60, 90)
    pixels, scale = resized(image, 96, 160)
    compiled = tf.function(network.detect, jit_compile=True, autograph=False)(pixels, scale)
    plain = network.detect(pixels, scale)
    np.testing.assert_allclose(compiled.boxes, plain.boxes, atol=1e-2)
    np.testing.assert_allclose(compiled.features, plain.features, rtol=1e-3, atol=1e-3)


def test_bfloat16_keeps_the_proposals_and_nearly_the_features():
    pixels, scale = resized(literal.photograph(60, 90))
    outputs = []
    for dtype in ("float32", "bfloat16"):
        network = narrow(dtype=dtype)
        cells = network._trunk(pixels[None])
        rois, number = network._proposals(cells, tf.shape(pixels)[:2], scale)
        outputs.append((rois, network._features(cells, rois, number)[: int(number)]))
    (rois, plain), (same, rounded) = outputs
    np.testing.assert_array_equal(rois, same)
    assert rounded.dtype == tf.float32
    difference = np.abs(rounded - plain).max() / np.abs(plain).max()
    assert 1e-5 < difference < 0.02
