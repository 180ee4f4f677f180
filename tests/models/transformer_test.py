"""The Transformer baseline against a literal rendering; its size, dropout sites and names."""

import functools

import numpy as np
import pytest
from helpers import literal, systems

# Keras doubts a softmax over one key; the first word has only itself to look at.
pytestmark = pytest.mark.filterwarnings("ignore:You are using a softmax")

SIZES = dict(width=12, heads=3, encoder_layers=2, decoder_layers=2, inner_width=20)
SHALLOW = SIZES | dict(encoder_layers=1, decoder_layers=1)
BLOCKS = ("self_att/dropout", "ff_layer/inner_dropout", "ff_layer/dropout")
SITES = {
    "word_dropout": ("word_dropout", 0.1),
    "region_dropout": ("region_dropout", 0.5),
    "head_dropout": ("head_dropout", 0.5),
    "encoder/0/self_att/attend/weight_dropout": ("weight_dropout", 0.1),
    "decoder/0/self_att/attend/weight_dropout": ("weight_dropout", 0.1),
    "decoder/0/cross_att/attend/weight_dropout": ("weight_dropout", 0.1),
    "decoder/0/cross_att/dropout": ("block_dropout", 0.1),
    **{f"encoder/0/{site}": ("block_dropout", 0.1) for site in BLOCKS},
    **{f"decoder/0/{site}": ("block_dropout", 0.1) for site in BLOCKS},
}


def rendering(w, regions, tokens, epsilon=1e-12):
    """Logits of one caption, position by position."""

    def attend(name, x, keys):
        seen = w.heads(f"{name}/attend", x, keys, 3)
        return w.norm(f"{name}/norm", x + w.linear(f"{name}/attend/output_map", seen), epsilon)

    def feed(name, x):
        inner = literal.relu(w.linear(f"{name}/fc1", x))
        return w.norm(f"{name}/layer_norms", x + w.linear(f"{name}/fc2", inner), epsilon)

    x = w.norm("region_norm", literal.relu(w.linear("region_embed", regions)))
    for i in range(2):
        x = np.array([attend(f"encoder/{i}/self_att", one, x) for one in x])
        x = feed(f"encoder/{i}/ff_layer", x)
    angles = np.arange(len(tokens))[:, None] / 10000 ** (np.arange(0, 12, 2) / 12)
    codes = np.stack([np.sin(angles), np.cos(angles)], -1).reshape(len(tokens), 12)
    y = w.norm("word_norm", w["embed_tokens/embeddings"][tokens] + codes)
    for i in range(2):
        y = np.array([attend(f"decoder/{i}/self_att", y[t], y[: t + 1]) for t in range(len(y))])
        y = np.array([attend(f"decoder/{i}/cross_att", one, x) for one in y])
        y = feed(f"decoder/{i}/ff_layer", y)
    return w.linear("head", y)


@pytest.mark.slow
def test_logits_equal_a_literal_rendering():
    literal.compare(systems.make("transformer", **SIZES), systems.padded_batch(), rendering)


@pytest.mark.slow
def test_layers_have_the_epsilon_of_bert():
    """With small numbers, an epsilon of 1e-5 would change the result."""
    model = systems.make("transformer", **SIZES)
    for name, weight in model.checkpoint_items["weights"].items():
        if "norm" in name or "output_map" in name or "fc2" in name:
            weight.assign(weight * 0.01)
    literal.compare(model, systems.padded_batch(), rendering)
    with pytest.raises(AssertionError):
        other = functools.partial(rendering, epsilon=1e-5)
        literal.compare(model, systems.padded_batch(), other, tolerance=1e-4)


def test_dropout_layers_and_rates():
    systems.check_dropout("transformer", SITES, **SHALLOW)


@pytest.mark.slow
def test_the_full_size_model_has_the_released_number_of_weights(monkeypatch):
    """55,644,632 numbers at V = 10,200, exactly as many as in xmodaler (docs/systems.md 4.4).

    Positions are computed on both sides and are not among them.
    """
    assert systems.count(monkeypatch, "transformer", 10200, 20, 2048) == 55_644_632


@pytest.mark.slow
def test_released_names_map_to_every_weight():
    pairs = {
        "embed_tokens/embeddings": "token_embed.embeddings.weight",
        "region_embed/kernel": "visual_embed.embeddings.weight",
        "region_embed/bias": "visual_embed.embeddings.bias",
        "head/kernel": "predictor.logits.weight",
        "head/bias": "predictor.logits.bias",
    }
    norms = {"word_norm": "token_embed.embeddings_norm"}
    norms["region_norm"] = "visual_embed.embeddings_norm"
    maps = {}

    def block(ours, theirs):
        for part in ("query", "key", "value"):
            maps[f"{ours}/attend/{part}"] = f"{theirs}.self.{part}"
        maps[f"{ours}/attend/output_map"] = f"{theirs}.output.dense"
        norms[f"{ours}/norm"] = f"{theirs}.output.LayerNorm"

    for i in range(2):
        block(f"encoder/{i}/self_att", f"encoder.layers.{i}.attention")
        block(f"decoder/{i}/self_att", f"decoder.g_layers.{i}.self_attn")
        block(f"decoder/{i}/cross_att", f"decoder.g_layers.{i}.x_att")
        layers = {f"encoder/{i}": f"encoder.layers.{i}", f"decoder/{i}": f"decoder.g_layers.{i}"}
        for ours, theirs in layers.items():
            maps[f"{ours}/ff_layer/fc1"] = f"{theirs}.intermediate.dense"
            maps[f"{ours}/ff_layer/fc2"] = f"{theirs}.output.dense"
            norms[f"{ours}/ff_layer/layer_norms"] = f"{theirs}.output.LayerNorm"
    for found, leaves in ((maps, ("kernel", "bias")), (norms, ("gamma", "beta"))):
        for ours, theirs in found.items():
            pairs |= {f"{ours}/{leaves[0]}": f"{theirs}.weight"}
            pairs |= {f"{ours}/{leaves[1]}": f"{theirs}.bias"}
    systems.check_names(systems.make("transformer", **SIZES), "xmodaler_transformer", pairs)
