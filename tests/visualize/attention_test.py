"""Recorded attention and contributions of regions are right for every system."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from helpers import small_models
from helpers.sizes import IMAGES, LENGTH, REGIONS
from helpers.small_models import make

from tfcap import models
from tfcap.backbones.backbone import _adaptive_cells
from tfcap.data.tokens import Vocab
from tfcap.layers.recording import recording
from tfcap.layers.trees import named_layers
from tfcap.visualize import figures
from tfcap.visualize.attention import attend

VOCAB = Vocab(["<pad>", "<bos>", "<eos>", "<unk>", *"abcdefghi"])
CAPTIONS = ["a b c d", "", "i <unk> a"]
COUNTS = (5, 3, 1)
# Whether a system has attention to regions. Two of them have attention to words before it; that of
# RFNet reads what the stages before it have made of the regions.
ATTENDS = {
    "attention_lstm": True,
    "updown": True,
    "xlan": True,
    "xtransformer": True,
    "transformer": True,
    "ort": True,
    "m2": True,
    "expansionnet": True,
    "mrnn": False,
    "lbpf": True,
    "rfnet": False,
    "ensemble": True,
}


@pytest.fixture(scope="module", params=small_models.params(ATTENDS))
def name(request):
    return request.param


@pytest.fixture(scope="module")
def model(name):
    return make(name, seed=1)


@pytest.fixture(scope="module")
def inputs(batch):
    return {"features": batch["features"], "mask": batch["mask"]}


@pytest.fixture(scope="module")
def boxes():
    corners = np.sort(np.random.default_rng(1).random((IMAGES, REGIONS, 2, 2)), 2)
    return corners.reshape(IMAGES, REGIONS, 4).astype("float32")


@pytest.fixture(scope="module")
def found(model, inputs, boxes):
    """What the model looks at for each word of the captions."""
    return attend(model, VOCAB, inputs, boxes, CAPTIONS)


def check_attended(found, boxes, kind):
    assert [calls.words for calls in found] == [caption.split() for caption in CAPTIONS]
    for calls, own, count in zip(found, boxes, COUNTS, strict=True):
        assert calls.kind == kind and calls.weights.dtype == calls.boxes.dtype == np.float32
        assert calls.weights.shape == (len(calls.words), count)
        np.testing.assert_array_equal(calls.boxes, own[:count])
        assert (calls.weights >= 0).all()


def test_attention_is_a_distribution_over_an_images_own_regions(name, found, boxes):
    """Models without attention give contributions."""
    check_attended(found, boxes, "attention" if ATTENDS[name] else "contribution")
    for calls in found if ATTENDS[name] else ():
        np.testing.assert_allclose(calls.weights.sum(-1), 1, atol=1e-5)
    assert np.ptp(found[0].weights) > 1e-3


@pytest.mark.slow
def test_contributions_equal_finite_differences(model, name, inputs, boxes):
    """Finite differences along each region's features give x_r . d log p / d x_r."""
    result = attend(model, VOCAB, inputs, boxes, CAPTIONS, "contribution")
    check_attended(result, boxes, "contribution")
    step, targets = 1e-2, VOCAB.ids("abcd")
    scales = np.concatenate([1 + step * np.eye(REGIONS), 1 - step * np.eye(REGIONS)])
    features = inputs["features"][:1] * tf.constant(scales, tf.float32)[..., None]
    mask = tf.repeat(inputs["mask"][:1], len(scales), 0)
    tokens = tf.constant([[1, *targets[:3]]] * len(scales))
    logits = model.decode(model.encode({"features": features, "mask": mask}), tokens)
    logps = np.float64(tf.nn.log_softmax(logits))[:, np.arange(4), targets]  # [2 R, T']
    slopes = (logps[:REGIONS] - logps[REGIONS:]).T / (2 * step)
    positive = np.maximum(slopes, 0)
    big = positive.sum(-1) > 0.02 * np.abs(slopes).max()  # smaller sums are only rounding errors
    assert big.any()
    expected = positive[big] / positive[big].sum(-1, keepdims=True)
    np.testing.assert_allclose(result[0].weights[big], expected, atol=0.05)


@pytest.mark.parametrize(
    "path",
    ["xlan attention/0"] + [f"{name} decoder/0/cross_att/attend" for name in ("transformer", "m2")],
)
def test_the_last_attention_to_regions_is_shown(path, inputs, boxes):
    """It is the mean over the heads, and over the layers of the encoder that it reads in turn.

    The last layer of a decoder reads regions, not words.
    """
    system, path = path.split()
    model = make(system, seed=1)
    layer = dict(named_layers(model))[f"{path}/"]
    result = attend(model, VOCAB, inputs, boxes, CAPTIONS)
    tokens = tf.constant([[1, *VOCAB.ids("abc")]] * IMAGES)
    with recording() as records:
        model.decode(model.encode(inputs), tokens)
    weights = [r.weights[0].mean(0) for r in records if r.layer is layer]
    expected = np.mean(weights, 0) if system == "m2" else np.concatenate(weights)
    np.testing.assert_allclose(result[0].weights, expected, atol=1e-6)


def test_recording_does_not_change_logits(model, batch):
    tokens = tf.reshape(batch["tokens"], (-1, batch["tokens"].shape[-1]))
    context = model.encode(batch)
    expected = model.decode(context, tokens)
    with recording():
        recorded = model.encode(batch)
        result = model.decode(recorded, tokens)
    tf.nest.map_structure(np.testing.assert_array_equal, recorded, context)
    np.testing.assert_array_equal(result, expected)


@pytest.mark.slow
def test_attention_of_an_ensemble_is_the_mean_of_its_members(inputs, boxes):
    members = [make(member, seed=1) for member in ("xlan", "updown", "m2")]
    blind = [make(member, seed=1) for member in ("mrnn", "rfnet")]
    result = attend(models.Ensemble([*members, *blind]), VOCAB, inputs, boxes, CAPTIONS)
    each = [attend(member, VOCAB, inputs, boxes, CAPTIONS) for member in members]
    for one, *parts in zip(result, *each, strict=True):
        expected = np.mean([part.weights for part in parts], 0)
        np.testing.assert_allclose(one.weights, expected, atol=1e-6)
        assert one.kind == "attention"


def test_attention_sums_to_1_in_mixed_precision(inputs, boxes):
    try:
        keras.mixed_precision.set_global_policy("mixed_bfloat16")
        low = {name: make(name, seed=1) for name in ("updown", "mrnn")}
    finally:
        keras.mixed_precision.set_global_policy("float32")
    for name, model in low.items():
        result = attend(model, VOCAB, inputs, boxes, CAPTIONS)
        check_attended(result, boxes, "attention" if ATTENDS[name] else "contribution")
        np.testing.assert_allclose(result[0].weights.sum(-1), 1, atol=1e-4)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"boxes": np.zeros((IMAGES, REGIONS, 4))}, "with boxes"),
        ({"captions": ["a " * LENGTH + "b", "", ""]}, f"at most {LENGTH} words"),
    ],
)
def test_bad_arguments_are_refused(change, message, tiny, inputs, boxes):
    arguments = {"boxes": boxes, "captions": CAPTIONS, "kind": "attention"} | change
    with pytest.raises(ValueError, match=message):
        attend(tiny, VOCAB, inputs, **arguments)


@pytest.mark.parametrize("cells, side", [(6, 6), (7, 7), (7, 4), (14, 6), (1, 1)])
def test_boxes_of_a_backbone_are_a_grid(cells, side):
    """Cells of a pooled grid may overlap. Changed boxes are not a grid."""
    boxes = _adaptive_cells(cells, side)[1]
    assert figures.grid(boxes) == (side, side)
    if side > 1:
        assert figures.grid(boxes[:-1]) is None  # cut
        assert figures.grid(boxes[::-1]) is None  # in another order
        moved = boxes.copy()
        moved[3] += 0.02
        assert figures.grid(moved) is None
        assert figures.grid(boxes * 0.5) is None  # not the whole picture
