"""Systems and options found from the tensors of released checkpoints."""

import numpy as np
import pytest

from tfcap import models
from tfcap.layers.positions import sinusoids
from tfcap.released import systems, weights

V, F, D = 9, 5, 16


def affine(state, name, outputs, inputs, bias=True):
    state[f"{name}.weight"] = np.full((outputs, inputs), 0.5, np.float32)
    if bias:
        state[f"{name}.bias"] = np.full(outputs, 0.25, np.float32)


def norm(state, name):
    state[f"{name}.weight"], state[f"{name}.bias"] = np.ones(D, "f4"), np.zeros(D, "f4")


def lstm(state, name, inputs):
    for part, shape in dict(ih=(4 * D, inputs), hh=(4 * D, D)).items():
        state[f"{name}.weight_{part}"] = np.full(shape, 0.1, np.float32)
        state[f"{name}.bias_{part}"] = np.zeros(4 * D, np.float32)


def xmodaler(system):
    """Returns a state dict with the names of docs/systems.md 4.2 to 4.5 and width 16."""
    state = {"token_embed.embeddings.weight": np.ones((V, D), np.float32)}
    affine(state, "visual_embed.embeddings", D, F)
    affine(state, "predictor.logits", V, D)
    if system in ("updown", "attention_lstm"):
        affine(state, "decoder.p_att_feats", 7, D)
        affine(state, "decoder.att.w_h", 7, D, bias=False)
        affine(state, "decoder.att.w_alpha", 1, 7, bias=False)
        if system == "updown":
            lstm(state, "decoder.lstm1", 3 * D)
            lstm(state, "decoder.lstm2", 2 * D)
        else:
            lstm(state, "decoder.lstm", 2 * D)
    if system == "transformer":
        norm(state, "token_embed.embeddings_norm")
        norm(state, "visual_embed.embeddings_norm")
        state["token_embed.embeddings_pos.pe"] = sinusoids(50, D)[None]
        blocks = {"encoder.layers.0": ("attention",)}
        blocks |= {f"decoder.g_layers.{i}": ("self_attn", "x_att") for i in range(2)}
        for layer, parts in blocks.items():
            for part in parts:
                for name in ("query", "key", "value"):
                    affine(state, f"{layer}.{part}.self.{name}", D, D)
                affine(state, f"{layer}.{part}.output.dense", D, D)
                norm(state, f"{layer}.{part}.output.LayerNorm")
            affine(state, f"{layer}.intermediate.dense", 24, D)
            affine(state, f"{layer}.output.dense", D, 24)
            norm(state, f"{layer}.output.LayerNorm")
    if system == "xlan":
        lstm(state, "decoder.att_lstm", 2 * D)
        affine(state, "decoder.att2ctx.0", 2 * D, 2 * D)
        for stack in ("encoder", "decoder.attention"):
            for name in ("q", "k", "v1", "v2"):
                part = f"{stack}.layers.0.encoder_attn.in_proj_{name}"
                affine(state, f"{part}.0", D, D)
                norm(state, f"{part}.2")
            part = f"{stack}.layers.0.encoder_attn.attn_net.attention"
            affine(state, f"{part}_basic.0", 3, 4)
            affine(state, f"{part}_last", 1, 3)
            affine(state, f"{part}_last2", 4, 3)
            affine(state, f"{stack}.proj", D, 2 * D)
            norm(state, f"{stack}.layer_norm")
        affine(state, "encoder.bifeat_emb.0.0", D, 2 * D)
        norm(state, "encoder.layer_norms.0")
    return state


@pytest.mark.slow
@pytest.mark.parametrize(
    ("system", "options"),
    [
        ("updown", dict(width=D, attention_width=7, embed_regions=True)),
        ("attention_lstm", dict(width=D, attention_width=7)),
        ("transformer", dict(width=D, encoder_layers=1, decoder_layers=2, inner_width=24)),
        (
            "xlan",
            dict(
                **dict(width=D, heads=4, middle_width=3, encoder_layers=1, decoder_layers=1),
                embed_activation="relu",
            ),
        ),
    ],
)
def test_systems_of_xmodaler_are_recognised(system, options):
    """Every tensor is assigned to a model with the options that are found."""
    found = systems.recognize("xmodaler", xmodaler(system))
    assert (found.system, found.options) == (system, options)
    assert (found.feature_dim, found.rows) == (F, V)
    model = models.build(system, V + 2, 6, F, **options)
    ids = np.array([0, 0, 0, V - 1, *range(1, V - 1)])
    weights.assign(model, found.tensors, ids)
    assert float(model.checkpoint_items["weights"]["region_embed/bias"][0]) == 0.25


@pytest.mark.parametrize(
    ("family", "content"),
    [("xlan", xmodaler("xlan")), ("xmodaler", {"word_embed.0.weight": np.ones((2, 2), "f4")})],
)
def test_a_checkpoint_of_another_family_is_refused(family, content):
    with pytest.raises(ValueError, match=f"no checkpoint of --from={family}"):
        systems.recognize(family, content)


def in_float32(positions, width):
    """Returns sinusoids [positions, width] computed in float32, as the released code does."""
    one = np.float32
    rates = np.exp(np.arange(0, width, 2, dtype=one) * one(-np.log(2.0 * positions) / width))
    angles = np.arange(positions, dtype=one)[:, None] * rates
    codes = np.zeros((positions, width), one)
    codes[:, 0::2], codes[:, 1::2] = np.sin(angles), np.cos(angles)
    return codes


def with_positions(table):
    state = xmodaler("transformer") | {"token_embed.embeddings_pos.pe": table}
    return systems.recognize("xmodaler", state)


def test_the_tolerance_of_positions_is_that_of_float32():
    """5,000 rows of width 768 are sinusoids; with one channel 2e-5 off they are not."""
    released = in_float32(5000, 768)
    assert 1e-4 < np.abs(released - sinusoids(5000, 768)).max() < 6e-4
    checkpoint = with_positions(in_float32(5000, D)[None])
    checkpoint.positions = ("pe", released)
    assert checkpoint.has_sinusoids(20) and checkpoint.has_sinusoids(5000)
    released[15, 400] += 2e-5
    assert checkpoint.has_sinusoids(15) and not checkpoint.has_sinusoids(16)


def test_other_positions_become_a_weight():
    table = in_float32(30, D)
    table[3, 5] += 1e-3
    checkpoint = with_positions(table)
    checkpoint.store_positions(20)
    assert checkpoint.options["stored_positions"] is True
    np.testing.assert_array_equal(checkpoint.tensors["position_codes/table"], table[:20])
    assert checkpoint.names["position_codes/table"] == "token_embed.embeddings_pos.pe"


def test_a_part_of_a_larger_module_is_recognized():
    state = xmodaler("updown")
    names = systems.recognize("xmodaler", state).names
    for part in ("net.", "model.net."):
        larger = {part + name: value for name, value in state.items()}
        larger |= {"criterion.weight": np.ones(V), "val_acc.total": np.zeros(())}
        found = systems.recognize("xmodaler", larger)
        assert found.system == "updown" and found.names == names


def test_an_empty_tensor_is_refused():
    """Its other axis may have any length, and the model would take the memory for it."""
    state = xmodaler("updown")
    state["visual_embed.embeddings.weight"] = np.zeros((0, 1 << 26), np.float32)
    with pytest.raises(ValueError, match="visual_embed.embeddings.weight is empty"):
        systems.recognize("xmodaler", state)
