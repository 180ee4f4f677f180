"""Up-Down against a literal rendering; its sizes, dropout sites and released names."""

import numpy as np
import pytest
from helpers import golden, literal, systems

SIZES = dict(width=12, attention_width=7)
RAW = dict(embed_regions=False, embed_activation="none")  # the class of X-LAN's own code
SITES = {
    "word_dropout": ("word_dropout", 0.5),
    "region_dropout": ("region_dropout", 0.5),
    "head_dropout": ("head_dropout", 0.5),
}


@pytest.mark.parametrize("options", [{}, dict(embed_activation="celu"), RAW], ids=str)
def test_logits_equal_a_literal_rendering(options):
    """The rendering gets no padding, so the model must hide it."""
    act = {"celu": literal.celu, "none": lambda x: x}.get(
        options.get("embed_activation"), literal.relu
    )

    def logits(w, regions, tokens):
        x = regions if options == RAW else act(w.linear("region_embed", regions))
        h1 = c1 = h2 = c2 = np.zeros(12)
        out = []
        for word in act(w["embed_tokens/embeddings"][tokens]):
            h1, c1 = w.lstm("lstm1", np.concatenate([h2, x.mean(0), word]), h1, c1)
            seen = w.additive("attention", h1, x, x)
            h2, c2 = w.lstm("lstm2", np.concatenate([seen, h1]), h2, c2)
            out.append(w.linear("head", h2))
        return np.array(out)

    literal.compare(systems.make("updown", **SIZES, **options), systems.padded_batch(), logits)


def test_the_code_with_an_embedded_mean_gives_the_same_numbers():
    golden.check("updown_mean", "self_critical")


@pytest.mark.slow
def test_contract_of_raw_regions(batch):
    systems.check_contract(batch, "updown", "mixed_float16", **SIZES, **RAW)


def test_dropout_layers_and_rates():
    systems.check_dropout("updown", SITES, **SIZES)
    mean = {"mean_dropout": ("region_dropout", 0.5)}
    systems.check_dropout("updown", SITES | mean, **SIZES, embed_mean=True)


def test_the_full_size_model_has_the_released_number_of_weights(monkeypatch):
    """56,947,088 numbers, exactly as many as in X-LAN's own code (docs/systems.md 4.1).

    Both count a vocabulary of V rows; that one has V = 9,488 with a single id for start, end and
    padding, so that the same words make a model with two rows more here.
    """
    sizes = dict(width=1000, attention_width=512, **RAW)
    assert systems.count(monkeypatch, "updown", 9488, 17, 2048, **sizes) == 56_947_088


def test_released_names_map_to_every_weight():
    pairs = {
        "embed_tokens/embeddings": "token_embed.embeddings.weight",
        "region_embed/kernel": "visual_embed.embeddings.weight",
        "region_embed/bias": "visual_embed.embeddings.bias",
        "attention/key/kernel": "decoder.p_att_feats.weight",
        "attention/key/bias": "decoder.p_att_feats.bias",
        "attention/query/kernel": "decoder.att.w_h.weight",
        "attention/alpha/kernel": "decoder.att.w_alpha.weight",
        "head/kernel": "predictor.logits.weight",
        "head/bias": "predictor.logits.bias",
    }
    for lstm in ("lstm1", "lstm2"):
        pairs[f"{lstm}/kernel"] = f"decoder.{lstm}.weight_ih"
        pairs[f"{lstm}/recurrent_kernel"] = f"decoder.{lstm}.weight_hh"
        pairs[f"{lstm}/bias"] = f"decoder.{lstm}.bias_ih"
        pairs[f"{lstm}/recurrent_bias"] = f"decoder.{lstm}.bias_hh"
    systems.check_names(systems.make("updown", **SIZES), "xmodaler_updown", pairs)
