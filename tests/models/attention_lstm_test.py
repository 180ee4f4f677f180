"""The attention LSTM against a literal rendering."""

import numpy as np
import pytest
from helpers import literal, systems

ACTIVATIONS = {"relu": literal.relu, "celu": literal.celu, "none": lambda x: x}


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_logits_equal_a_literal_rendering(name):
    """The query of the attention is the state before the word."""
    act = ACTIVATIONS[name]

    def logits(w, regions, tokens):
        x, out = act(w.linear("region_embed", regions)), []
        h = c = np.zeros(12)
        for word in act(w["embed_tokens/embeddings"][tokens]):
            calls = w.additive("attention", h, x, x)
            h, c = w.lstm("lstm", np.concatenate([word, calls]), h, c)
            out.append(w.linear("head", h))
        return np.array(out)

    model = systems.make("attention_lstm", width=12, attention_width=7, embed_activation=name)
    literal.compare(model, systems.padded_batch(), logits)
