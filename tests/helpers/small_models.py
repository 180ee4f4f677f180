"""A small model of every system."""

import pytest

from helpers import seeds
from helpers.sizes import FEATURES, LENGTH, VOCABULARY
from tfcap import models

# Small sizes of each system, also in the goldens. `test_all_models_are_here` fails without one.
SIZES = {
    "aoanet": dict(width=16, heads=2, refiner_layers=1),
    "att2in": dict(width=8, attention_width=6),
    "attention_lstm": dict(width=8, attention_width=6),
    "expansionnet": dict(
        width=16,
        heads=2,
        encoder_layers=1,
        decoder_layers=1,
        inner_width=24,
        encoder_vectors=4,
        decoder_vectors=3,
        positions=LENGTH,
    ),
    "expansionnet_v2": dict(
        width=16,
        heads=2,
        encoder_layers=1,
        decoder_layers=1,
        inner_width=24,
        encoder_groups="1 3",
        decoder_vectors=3,
        positions=LENGTH,
    ),
    "gcn_lstm": dict(width=8, attention_width=6, regions=3, labels=4),
    "hip": dict(width=8, attention_width=6, regions=1, labels=3),
    "lbpf": dict(width=8, attention_width=6),
    "lstm_a": dict(width=8, attributes=2),
    "m2": dict(width=16, heads=2, encoder_layers=2, decoder_layers=1, inner_width=24, slots=3),
    "mrnn": dict(embed_width=9, width=8, multimodal_width=12, word_dropout=0.2, head_dropout=0.2),
    "mrnn_shared": dict(embed_width=9, width=8, multimodal_width=12),
    "rfnet": dict(
        set_widths="3 5", width=8, attention_width=6, stage1_steps=2, stage2_steps=2, top_words=5
    ),
    "sgae": dict(width=8, attention_width=6, dictionary=7),
    "ort": dict(width=16, heads=2, encoder_layers=1, decoder_layers=1, inner_width=24),
    "show_tell": dict(width=8),
    "transformer": dict(width=16, heads=2, encoder_layers=1, decoder_layers=1, inner_width=24),
    "updown": dict(width=8, attention_width=6),
    "xlan": dict(width=16, heads=2, encoder_layers=1, middle_width=5),
    # The last decoder layer has no layers that nothing would read, so one layer shows too little.
    "xtransformer": dict(
        width=16, heads=2, encoder_layers=1, decoder_layers=2, inner_width=24, middle_width=5
    ),
}
MEMBERS = ("attention_lstm", "updown")  # of the ensemble that keeps the contract, too

# Released initial weights of U(-0.05, 0.05) leave next to nothing of an input at these widths.
GAIN = {"mrnn_shared": 10, "rfnet": 5, "sgae": 10}


def make(name, seed, **options):
    seeds.set_seed(seed)
    if name == "ensemble":
        return models.Ensemble([make(member, seed) for member in MEMBERS])
    model = models.build(name, VOCABULARY, LENGTH, FEATURES, **(SIZES[name] | options))
    for weight in (v for v in model.trainable_variables if len(v.shape) == 2 and name in GAIN):
        weight.assign(weight * GAIN[name])
    return model


# Systems of few layers. The deep ones take up to ten times as long to build and to trace.
_QUICK = {
    "aoanet",
    "attention_lstm",
    "mrnn",
    "mrnn_shared",
    "show_tell",
    "updown",
    "xlan_relu0",
}


def params(names) -> list:
    """Parameters of a fixture, in alphabetical order; those of deep systems are marked slow."""
    return [
        pytest.param(name, marks=() if name in _QUICK else pytest.mark.slow)
        for name in sorted(names)
    ]
