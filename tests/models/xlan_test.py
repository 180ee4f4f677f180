"""X-LAN and the rows of its ablation against a literal rendering; sizes, dropout sites, names."""

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


@pytest.mark.slow
@pytest.mark.parametrize("name, half", [("paper", "mixed_bfloat16"), ("row 1", "mixed_float16")])
def test_contract_of_variants(name, half, batch):
    """`paper` does not normalise, so features of a thousand overflow float16."""
    options = SIZES | dict(encoder_layers=1, decoder_layers=1) | VARIANTS[name]
    systems.check_contract(batch, "xlan", half, invariant=("spatial/bias",), **options)


SITES = {
    "word_dropout": ("word_dropout", 0.5),
    "region_dropout": ("region_dropout", 0.5),
    "context_dropout": ("context_dropout", 0.5),
    "attention_dropout": ("decoder_dropout", 0.5),
    "head_dropout": ("head_dropout", 0.5),
    "encoder/0/attn_dropout": ("encoder_dropout", 0.5),
    "encoder/0/bifeat_dropout": ("bifeat_dropout", 0.3),
    "encoder/0/encoder_attn/dropout": ("middle_dropout", 0.1),
    "attention/0/dropout": ("middle_dropout", 0.1),
}


def test_dropout_layers_and_rates():
    """Rates of cross-entropy training (docs/systems.md 2.5)."""
    sizes = SIZES | dict(encoder_layers=1, decoder_layers=1)
    systems.check_dropout("xlan", SITES, **sizes)


@pytest.mark.slow
def test_the_full_size_model_has_the_released_number_of_weights(monkeypatch):
    """4 encoder layers have 75,189,781 numbers, none has 45.70 million (docs/systems.md 4.6).

    Both count a vocabulary of V = 9,488 rows, see `xtransformer_test`.
    """
    assert systems.count(monkeypatch, "xlan", 9488, 17, 2048) == 75_189_781
    shallow = dict(encoder_layers=0, activation="relu")
    assert round(systems.count(monkeypatch, "xlan", 9488, 17, 2048, **shallow) / 1e6, 2) == 45.70


@pytest.mark.slow
def test_released_names_map_to_every_weight():
    pairs = {
        "embed_tokens/embeddings": "token_embed.embeddings.weight",
        "lstm/kernel": "decoder.att_lstm.weight_ih",
        "lstm/recurrent_kernel": "decoder.att_lstm.weight_hh",
        "lstm/bias": "decoder.att_lstm.bias_ih",
        "lstm/recurrent_bias": "decoder.att_lstm.bias_hh",
    }
    maps = {
        "region_embed": "visual_embed.embeddings",
        "head": "predictor.logits",
        "encoder_proj": "encoder.proj",
        "attention_proj": "decoder.attention.proj",
        "att2ctx": "decoder.att2ctx.0",
    }
    norms = {
        "encoder_norm": "encoder.layer_norm",
        "attention_norm": "decoder.attention.layer_norm",
    }
    for i in range(2):
        maps[f"encoder/{i}/bifeat_emb"] = f"encoder.bifeat_emb.{i}.0"
        norms[f"encoder/{i}/layer_norm"] = f"encoder.layer_norms.{i}"
        blocks = {f"encoder/{i}/encoder_attn": "encoder", f"attention/{i}": "decoder.attention"}
        for ours, theirs in blocks.items():
            theirs = f"{theirs}.layers.{i}.encoder_attn"
            for part in ("q", "k", "v1", "v2"):
                maps[f"{ours}/in_proj_{part}/linear"] = f"{theirs}.in_proj_{part}.0"
                norms[f"{ours}/in_proj_{part}/norm"] = f"{theirs}.in_proj_{part}.2"
            maps[f"{ours}/joint"] = f"{theirs}.attn_net.attention_basic.0"
            maps[f"{ours}/spatial"] = f"{theirs}.attn_net.attention_last"
            maps[f"{ours}/channel"] = f"{theirs}.attn_net.attention_last2"
    for found, leaves in ((maps, ("kernel", "bias")), (norms, ("gamma", "beta"))):
        for ours, theirs in found.items():
            pairs |= {f"{ours}/{leaves[0]}": f"{theirs}.weight"}
            pairs |= {f"{ours}/{leaves[1]}": f"{theirs}.bias"}
    systems.check_names(systems.make("xlan", **SIZES), "xmodaler_xlan", pairs)
