"""The attention LSTM against a literal rendering; its size, dropout sites and released names."""

import numpy as np
import pytest
from helpers import literal, systems

SIZES = dict(width=12, attention_width=7)
ACTIVATIONS = {"relu": literal.relu, "celu": literal.celu, "none": lambda x: x}
SITES = {
    "word_dropout": ("word_dropout", 0.5),
    "region_dropout": ("region_dropout", 0.5),
    "head_dropout": ("head_dropout", 0.5),
}


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_logits_equal_a_literal_rendering(name):
    """The query of the attention is the state before the word."""
    act = ACTIVATIONS[name]

    def logits(w, regions, tokens):
        x, out = act(w.linear("region_embed", regions)), []
        h = c = np.zeros(12)
        for word in act(w["embed_tokens/embeddings"][tokens]):
            seen = w.additive("attention", h, x, x)
            h, c = w.lstm("lstm", np.concatenate([word, seen]), h, c)
            out.append(w.linear("head", h))
        return np.array(out)

    model = systems.make("attention_lstm", **SIZES, embed_activation=name)
    literal.compare(model, systems.padded_batch(), logits)


def test_dropout_layers_and_rates():
    systems.check_dropout("attention_lstm", SITES, **SIZES)


def test_the_full_size_model_has_the_released_number_of_weights(monkeypatch):
    """The sum of all parts at the sizes of xmodaler (docs/systems.md 4.3), worked out by hand."""
    word, head = 10200 * 1024, 1025 * 10200
    region, attention = 2049 * 1024, 1025 * 512 + 1024 * 512 + 512
    lstm = 4096 * (2048 + 1024 + 2)
    total = word + head + region + attention + lstm
    assert systems.count(monkeypatch, "attention_lstm", 10200, 20, 2048) == total == 36_638_680
