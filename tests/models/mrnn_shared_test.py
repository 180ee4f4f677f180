"""m-RNN with a shared table: each variant against a literal rendering."""

import numpy as np
import pytest
from helpers import literal, systems
from helpers.literal import relu, sigmoid

E, D, M = 7, 8, 9
SIZES = dict(embed_width=E, width=D, multimodal_width=M)
VARIANTS = ("multimodal", "init", "child")


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
