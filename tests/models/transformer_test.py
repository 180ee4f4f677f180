"""The Transformer baseline against a literal rendering."""

import numpy as np
import pytest
from helpers import literal, systems

# Keras doubts a softmax over one key; the first word has only itself to look at.
pytestmark = pytest.mark.filterwarnings("ignore:You are using a softmax")

SIZES = dict(width=12, heads=3, encoder_layers=2, decoder_layers=2, inner_width=20)


def rendering(w, regions, tokens):
    """Logits of one caption, position by position. Layers have the epsilon of BERT."""
    epsilon = 1e-12

    def attend(name, x, keys):
        calls = w.heads(f"{name}/attend", x, keys, 3)
        return w.norm(f"{name}/norm", x + w.linear(f"{name}/attend/output_map", calls), epsilon)

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
@pytest.mark.parametrize("scale", [1.0, 0.01])  # an epsilon of 1e-5 would change small numbers
def test_logits_equal_a_literal_rendering(scale):
    model = systems.make("transformer", **SIZES)
    for name, weight in model.checkpoint_items["weights"].items():
        if "norm" in name or "output_map" in name or "fc2" in name:
            weight.assign(weight * scale)
    literal.compare(model, systems.padded_batch(), rendering)
