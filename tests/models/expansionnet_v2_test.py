"""ExpansionNet v2 against the released PyTorch code, and its options.

The fixture has a vocabulary of 40 words, PAD and SOS among them. As in `expansionnet_parity_test`
our vocabulary has two ids more, 0 and 1, which cannot be predicted.
"""

import json

import numpy as np
import pytest
import tensorflow as tf
from helpers import parity, searches, swins

from tfcap import models
from tfcap.backbones import swin
from tfcap.backbones.backbone import Backbone
from tfcap.decoding.scores import word_log_probs
from tfcap.importers import weights
from tfcap.models.end_to_end import EndToEnd

EOS, SOS, WORDS = 4, 6, 40
# Our id -> released id: pad is any, bos is SOS, eos is EOS, then all the others.
RELEASED = np.array([0, SOS, EOS, *(word for word in range(WORDS) if word != EOS)])
OURS = np.array([2 + list(RELEASED[2:]).index(word) for word in range(WORDS)])
LENGTH = 11  # words of the released search for 12 tokens, SOS being one
SIZES = dict(
    width=24,
    heads=4,
    encoder_layers=2,
    decoder_layers=2,
    inner_width=48,
    encoder_groups="2 3 5",
    decoder_vectors=3,
    positions=14,
)


@pytest.fixture(scope="module")
def arrays():
    return parity.read("expansion_v2")


@pytest.fixture(scope="module")
def cfg(arrays):
    return json.loads(str(arrays["cfg"]))


def member(arrays, prefix="w/", **options):
    """A captioner with the released weights under `prefix`, which reads features."""
    model = models.build("expansionnet_v2", WORDS + 2, LENGTH, 32, **(SIZES | options))
    state = {k.removeprefix(prefix): v for k, v in arrays.items() if k.startswith(prefix)}
    state = {k: v for k, v in state.items() if not k.startswith("swin_transf.")}
    names = weights.NAMES["expansionnet_v2"]
    tensors = dict(weights.translate(key, value, names) for key, value in state.items())
    weights.assign(model, tensors, RELEASED)
    return model


@pytest.fixture(scope="module")
def model(arrays):
    return member(arrays)


@pytest.fixture(scope="module")
def inputs(arrays):
    features = tf.constant(arrays["out/swin"])
    return {"features": features, "mask": tf.ones(features.shape[:2], bool)}


@pytest.fixture(scope="module")
def context(model, inputs):
    return model.encode(inputs)


def distance(a, b):
    return np.abs(np.asarray(a) - np.asarray(b)).max()


def test_the_encoder_equals_the_released_one(arrays, model, inputs, context):
    x, mask = model.region_embed(inputs["features"]), inputs["mask"][:, None]
    for number, layer in enumerate(model.encoder):
        static = layer.expansion(layer.norm_1(x), mask)
        assert distance(static, arrays[f"out/static{number}"]) < 1e-5
        x = layer(x, mask)
        assert distance(x, arrays[f"out/encoder{number}"]) < 1e-5
    assert distance(context["encoded"], arrays["out/encoded"]) < 1e-5


@pytest.mark.parametrize("groups", ["5 3 2", "10"])
def test_the_groups_and_their_order_matter(arrays, inputs, groups):
    other = member(arrays, encoder_groups=groups).encode(inputs)["encoded"]
    assert distance(other, arrays["out/encoded"]) > 0.5


def test_logits_of_teacher_forcing_equal_the_released_ones(arrays, model, context):
    words = arrays["in/dec_x"]
    real = np.arange(words.shape[1]) < words.shape[1] - arrays["in/ypad"][:, None]
    logits = model.decode(context, tf.constant(OURS[words], tf.int32)).numpy()
    assert distance(logits[..., OURS][real], arrays["out/logits"][real]) < 1e-5


def sentences(arrays, cfg, name):
    """The released search `name`: tokens [B, K, T] as ours would be, and their log-probs."""
    logps = arrays[f"out/{name}_logp"]
    tokens = np.zeros((*logps.shape[:2], LENGTH + 1), np.int32)
    for b, image in enumerate(cfg[name]):
        for k, words in enumerate(image):
            tokens[b, k, : len(words)] = OURS[words]
    return tokens[..., 1:], logps[..., 1:]


@pytest.mark.slow
@pytest.mark.parametrize("beam", [1, 3, 5])
def test_beam_search_finds_the_released_captions(arrays, cfg, model, context, beam):
    """All hypotheses of each image, in the released order; some are empty and some are cut."""
    tokens, scores = searches.traced(
        searches.beam_search, model, context, beam, LENGTH, length_power=1.0
    )[:2]
    expected, logps = sentences(arrays, cfg, f"beam{beam}")
    np.testing.assert_array_equal(tokens, expected)
    assert distance(scores, logps.sum(-1) / ((expected > 0).sum(-1) + 1)) < 1e-5
    rows = tf.reshape(tokens, (-1, LENGTH))
    words = searches.traced(word_log_probs, model, context, rows)
    logps = logps.reshape(len(words), -1)
    assert distance(words[:, : logps.shape[1]], logps) < 1e-5


def test_gradients_reach_the_pixels_side_of_the_backbone(arrays, model, tmp_path, monkeypatch):
    """Of a sum over the logits, through captioner and Swin, which computes the features."""
    swins.add(monkeypatch)
    backbone = Backbone(swins.NAME, weights=swins.write(tmp_path / "swin.pth"))
    whole = EndToEnd(model, backbone)
    variables = {name: layer.weights for layer, name, _ in swin.tensors(backbone.model)}
    table = "layers.0.blocks.1.attn.relative_position_bias_table"
    merging = "layers.1.downsample.reduction"
    first, second = (layer.expansion for layer in model.encoder)
    wanted = {
        "swin_transf.patch_embed.proj.weight": variables["patch_embed.proj"][0],
        f"swin_transf.{table}": variables[table][0],
        "swin_transf.layers.1.downsample.reduction.weight": variables[merging][0],
        "swin_transf.layers.2.blocks.1.attn.qkv.bias": variables["layers.2.blocks.1.attn.qkv"][1],
        "swin_transf.norm.weight": variables["norm"][0],
        "encoders.0.stc_exp.query_exp_vectors.weight": first.query_exp_vectors,
        "encoders.1.stc_exp.bias_exp_vectors.weight": second.bias_exp_vectors,
        "decoders.0.dyn_exp.query_exp_vectors.weight": model.decoder[0].expansion.query_exp_vectors,
        "pos_encoder.weight": model.embed_positions.embeddings,
    }
    pictures = tf.constant(arrays["in/pixels"], tf.float32)
    with tf.GradientTape() as tape:
        context = whole.encode({"pictures": pictures, "mask": tf.ones((3, 16), bool)})
        logits = whole.decode(context, tf.constant(OURS[arrays["in/dec_x"]], tf.int32))
        loss = tf.reduce_sum(tf.gather(logits, OURS, axis=-1) * arrays["in/direction"])
    gradients = tape.gradient(loss, [variable.value for variable in wanted.values()])
    for name, gradient in zip(wanted, gradients, strict=True):
        expected = arrays[f"grad/{name}"]
        gradient = tf.convert_to_tensor(gradient).numpy()
        axes = {4: (3, 2, 0, 1)}.get(expected.ndim, (1, 0) if "reduction" in name else None)
        gradient = gradient if axes is None else gradient.transpose(axes)
        assert distance(gradient, expected) < 2e-5 * np.abs(expected).max(), name


@pytest.mark.parametrize("groups", ["", "8, 16"])
def test_groups_that_are_no_numbers_are_refused(groups):
    with pytest.raises(ValueError, match="`encoder_groups` must be positive numbers"):
        models.build("expansionnet_v2", 40, LENGTH, 32, **(SIZES | {"encoder_groups": groups}))
