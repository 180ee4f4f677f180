"""X-LAN and the rows of its ablation against a literal rendering."""

import numpy as np
import pytest
from helpers import literal, systems

D = 12
SIZES = dict(width=D, heads=3, encoder_layers=2, decoder_layers=2, attention_width=7)
ACTIVATIONS = {"relu": literal.relu, "celu": literal.celu}
# Every choice of the constructor, and the first rows of table 3 (docs/systems.md 4.6).
VARIANTS = {
    "released": {},
    "paper": dict(flavour="paper"),
    "paper, additive": dict(encoder_layers=1, flavour="paper", attention="additive"),
    "row 1": dict(encoder_layers=0, attention="additive"),
    "row 2": dict(encoder_layers=0, decoder_layers=1, activation="relu"),
    "xmodaler": dict(encoder_layers=1, decoder_layers=1, embed_activation="relu"),
    "middle width": dict(encoder_layers=1, decoder_layers=1, middle_width=5),
}


def rendering(options):
    """`logits_of` for these arguments of the constructor."""
    options = SIZES | dict(activation="celu", embed_activation="celu") | options
    act, embed = ACTIVATIONS[options["activation"]], ACTIVATIONS[options["embed_activation"]]
    paper = options.get("flavour") == "paper"
    additive = options.get("attention") == "additive"
    heads = 1 if paper else options["heads"]

    def encode(w, regions):
        keys = values = embed(w.linear("region_embed", regions))
        g = keys.mean(0)
        every = [g]
        for i in range(options["encoder_layers"]):
            path = f"encoder/{i}"
            g = w.xlinear(f"{path}/encoder_attn", g, keys, values, heads, act)
            every.append(g)

            def update(emb, norm, x, g=g, path=path):
                both = np.array([np.concatenate([g, one]) for one in x])
                return w.norm(f"{path}/{norm}", x + literal.relu(w.linear(f"{path}/{emb}", both)))

            last = i == options["encoder_layers"] - 1
            if not (paper and last):  # equation 8; nothing reads the paper's last keys
                keys = update("bifeat_emb", "layer_norm", keys)
            values = update("value_emb", "value_norm", values) if paper else keys
        g = w.linear("encoder_proj", np.concatenate(every))
        # The decoder attends to the last values alone: sections 3.3.2 and 3.3.3.
        return (g if paper else w.norm("encoder_norm", g)), values

    def attend(w, h, values):
        if additive:
            return w.additive("attention", h, values, values)
        every = [h]
        for i in range(options["decoder_layers"]):
            every.append(w.xlinear(f"attention/{i}", every[-1], values, values, heads, act))
        if paper:
            return every[-1]
        return w.norm("attention_norm", w.linear("attention_proj", np.concatenate(every)))

    def logits(w, regions, tokens):
        g, values = encode(w, regions)
        h = c = context = np.zeros(D)
        out = []
        for word in embed(w["embed_tokens/embeddings"][tokens]):
            rest = [g, context] if paper else [g + context]
            h, c = w.lstm("lstm", np.concatenate([word, *rest]), h, c)
            both = np.concatenate([attend(w, h, values), h])
            context = literal.glu(w.linear("att2ctx", both))
            out.append(w.linear("head", context))
        return np.array(out)

    return logits


@pytest.mark.slow
@pytest.mark.parametrize("name", VARIANTS)
def test_logits_equal_a_literal_rendering(name):
    options = VARIANTS[name]
    model = systems.make("xlan", **SIZES | options)
    literal.compare(model, systems.padded_batch(), rendering(options))
