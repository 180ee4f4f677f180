"""m-RNN with a shared table: each variant against a literal rendering, its size and dropout."""

import numpy as np
import pytest
from helpers import literal, seeds, systems
from helpers.literal import relu, sigmoid

from tfcap import models

E, D, M = 7, 8, 9
SIZES = dict(embed_width=E, width=D, multimodal_width=M)
VARIANTS = ("multimodal", "init", "child")
SITES = {
    "word_dropout": ("word_dropout", 0.5),
    "recurrent_dropout": ("recurrent_dropout", 0.5),
    "head_dropout": ("head_dropout", 0.5),
}


def gru(w, x, h):
    """A GRU step; r multiplies h before the matrix product (docs/systems.md 6.5)."""
    kernel, recurrent = w["cell/kernel"], w["cell/recurrent_kernel"]
    gates = sigmoid(x @ kernel[:, : 2 * D] + h @ recurrent[:, : 2 * D] + w["cell/gate_bias"])
    r, u = gates[:D], gates[D:]
    n = np.tanh(x @ kernel[:, 2 * D :] + (r * h) @ recurrent[:, 2 * D :] + w["cell/bias"])
    return u * h + (1 - u) * n


def g2(x):
    return 1.7159 * np.tanh(2 * x / 3)


def rendering(variant):
    """Logits of one caption (docs/systems.md 6.5 and 6.6)."""

    def logits(w, regions, tokens):
        image, table, out = regions.mean(0), w["embed_tokens/embeddings"], []
        h = c = np.zeros(D)
        if variant == "init":
            h = relu(w.linear("image", image))
        for token in tokens:
            if variant == "child":
                h, c = w.lstm("cell", table[token], h, c)
                total = table[token] @ w["multimodal/word/kernel"] + w["multimodal/bias"]
                total += h @ w["multimodal/recurrent/kernel"]
                total += image @ w["multimodal/image/kernel"]
                z = g2(w.linear("to_word", g2(total)))
            else:
                h = m = gru(w, table[token], h)
                if variant == "multimodal":
                    m = relu(w.linear("recurrent", h)) + relu(w.linear("image", image))
                z = relu(w.linear("to_word", m))
            out.append(table @ z + w["head/bias"])
        return np.array(out)

    return logits


@pytest.mark.parametrize("variant", VARIANTS)
def test_logits_equal_a_literal_rendering(variant):
    """The rendering gets no padding, so the model must hide it."""
    model = systems.make("mrnn_shared", variant=variant, **SIZES)
    literal.compare(model, systems.padded_batch(), rendering(variant))


@pytest.mark.slow
@pytest.mark.parametrize(
    "variant, half",
    [
        ("multimodal", "mixed_bfloat16"),
        ("init", "mixed_float16"),
        ("child", "mixed_bfloat16"),
    ],
)
def test_every_variant_keeps_the_contract(variant, half, batch):
    systems.check_contract(batch, "mrnn_shared", half, variant=variant, **SIZES)


def test_the_table_is_the_output_matrix(batch):
    """One weight with an entry for every word besides the bias, found by its name."""
    model = systems.make("mrnn_shared", **SIZES)
    weights = model.checkpoint_items["weights"]
    axes = {n: list(v.shape).index(13) for n, v in weights.items() if 13 in v.shape}
    assert axes == model.vocabulary_axes == {"embed_tokens/embeddings": 0, "head/bias": 0}
    before = model(batch)
    table = weights["embed_tokens/embeddings"]
    unseen = sorted(set(range(13)) - set(batch["tokens"].numpy().ravel()))
    assert unseen
    row = table.numpy()
    row[unseen[0]] += 1
    table.assign(row)
    moved = np.abs(model(batch) - before).max((0, 1, 2))
    assert (moved > 1e-3).tolist() == [i == unseen[0] for i in range(13)]


@pytest.mark.parametrize(
    "variant, sites",
    [
        ("multimodal", SITES),
        ("child", SITES),
        ("init", {site: SITES[site] for site in ("word_dropout", "recurrent_dropout")}),
    ],
)
def test_dropout_layers_and_rates(variant, sites):
    systems.check_dropout("mrnn_shared", sites, variant=variant, **SIZES)


def test_the_full_size_model_has_the_released_number_of_weights(monkeypatch):
    """43,404,667 numbers in the released model with the features of Inception."""
    assert systems.count(monkeypatch, "mrnn_shared", 13691, 30, 2048) == 43_404_667


@pytest.mark.parametrize("variant", VARIANTS)
def test_weights_start_as_documented(variant):
    """Weights start in U(-0.05, 0.05), except cells and the bias of g2 (docs/systems.md 6.5)."""
    seeds.set_seed(1)
    sizes = dict(embed_width=40, width=40, multimodal_width=40)
    model = models.build("mrnn_shared", 60, 6, 40, variant=variant, **sizes)
    weights = model.checkpoint_items["weights"]
    uniform = [n for n in weights if not n.startswith("cell/") and n != "multimodal/bias"]
    for name in uniform:
        value = np.abs(weights[name].numpy())
        assert 0.04 < value.max() <= 0.05 and 0.015 < value.mean() < 0.035, name
    square = [weights[n].numpy() for n in uniform if weights[n].shape == (40, 40)]
    assert len(square) == {"multimodal": 3, "init": 2, "child": 4}[variant]
    for i, one in enumerate(square):
        assert all(np.abs(one - other).max() > 0.01 for other in square[:i])
