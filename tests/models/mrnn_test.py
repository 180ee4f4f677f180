"""m-RNN: each variant against a literal rendering, its paths, size and dropout."""

import numpy as np
import pytest
from helpers import literal, seeds, systems

from tfcap import models
from tfcap.models.mrnn import VARIANTS

E, D, M = 7, 8, 9
SIZES = dict(embed_width=E, width=D, multimodal_width=M)
IN_RNN = ("vis_in_rnn", "vis_in_rnn_both", "vis_in_rnn_both_shared")
IMAGE_AT_ONCE = ("base", "no_emb_input", "one_layer_emb", "emb_one_input", "vis_in_rnn_both")


@pytest.fixture(scope="module", params=sorted(VARIANTS))
def variant(request):
    return request.param


@pytest.fixture(scope="module")
def model(variant):
    """Returns a model that all tests share; a test must restore the weights it changes."""
    return systems.make("mrnn", variant=variant, **SIZES)


def rendering(variant):
    """Logits of one caption, as the paper writes them (docs/systems.md 6.1 and 6.2)."""

    def logits(w, regions, tokens):
        image, r, out = regions.mean(0), np.zeros(D), []
        for token in tokens:
            e = w["embed_tokens/embeddings"][token]
            word = e if variant == "one_layer_emb" else w.linear("embed_second", e)
            if variant in IN_RNN:
                word = word + image @ w["image_in_words/kernel"]
            r = np.maximum(r @ w["recurrence/kernel"] + word, 0)
            m = r @ w["multimodal/recurrent/kernel"] + w["multimodal/bias"]
            if variant == "emb_one_input":
                m = m + e @ w["multimodal/word/kernel"]
            elif variant != "no_emb_input":
                m = m + word @ w["multimodal/word/kernel"]
            if variant in IMAGE_AT_ONCE:
                m = m + image @ w["multimodal/image/kernel"]
            if variant == "vis_in_rnn_both_shared":
                m = m + image @ w["image_in_words/kernel"] @ w["multimodal/image/kernel"]
            out.append(w.linear("head", 1.7159 * np.tanh(2 / 3 * m)))
        return np.array(out)

    return logits


def test_logits_equal_a_literal_rendering(variant, model):
    """The rendering gets no padding, so the model must hide it."""
    literal.compare(model, systems.padded_batch(), rendering(variant))


@pytest.mark.slow
@pytest.mark.parametrize(
    "name, half",
    [
        ("base", "mixed_float16"),
        ("vis_in_rnn_both_shared", "mixed_bfloat16"),
    ],
)
def test_mixed_precision(name, half, batch):
    systems.check_contract(batch, "mrnn", half, variant=name, **SIZES)


def test_the_full_size_model_has_the_papers_number_of_weights(monkeypatch):
    """E1, W2, U_r, V_w, V_r, V_I, V_y and the biases (docs/systems.md 6.1), added by hand."""
    v, f, e, d, m = 2539, 4096, 128, 256, 512
    total = v * e + (d * e + d) + d * d + m * d + m * d + m * f + m + (v * m + v)
    assert systems.count(monkeypatch, "mrnn", v, 20, f) == total


def test_weights_start_as_documented():
    """The recurrence starts as the identity, so it starts by adding words."""
    seeds.set_seed(1)
    model = models.build("mrnn", 13, 6, 6, **SIZES)
    weights = model.checkpoint_items["weights"]
    np.testing.assert_array_equal(weights["recurrence/kernel"], np.eye(D))
    assert {n for n, v in weights.items() if not v.numpy().any()} == {
        n for n in weights if n.endswith("bias")
    }


def test_dropout_layers_and_rates():
    sites = ("word_dropout", "region_dropout", "head_dropout")
    for site in sites:  # a rate of 0 has no random generator
        model = systems.make("mrnn", **SIZES, **{site: 0.3})
        assert set(model.checkpoint_items["seeds"]) == {f"{site}/seed_generator_state"}
    blind = systems.make("mrnn", variant="rnn_base", **SIZES, **dict.fromkeys(sites, 0.3))
    assert blind.region_dropout is None


def test_an_unknown_variant_is_refused():
    with pytest.raises(ValueError, match="variant must be one of base, .*not 'mine'"):
        models.build("mrnn", 13, 6, 6, variant="mine")
