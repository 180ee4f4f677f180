"""X-Transformer: size and dropout sites. Its numbers are compared in `parity_test`."""

import pytest
from helpers import systems

SIZES = dict(width=16, heads=2, encoder_layers=1, decoder_layers=2, inner_width=24)
# Dropout layers and rates of X-Transformer (docs/systems.md 2.5, cross-entropy).
SITES = {
    "region_dropout": ("region_dropout", 0.5),
    "word_dropout": ("word_dropout", 0.1),
    "query_dropout": ("decoder_dropout", 0.5),
    "head_dropout": ("head_dropout", 0.5),
    "encoder/0/attn_dropout": ("encoder_dropout", 0.5),
    "encoder/0/bifeat_dropout": ("bifeat_dropout", 0.3),
    "encoder/0/ff_layer/inner_dropout": ("feed_forward_dropout", 0.5),
    "encoder/0/ff_layer/dropout": ("feed_forward_dropout", 0.5),
    "encoder/0/encoder_attn/dropout": ("middle_dropout", 0.1),
    "decoder/0/bifeat_dropout": ("bifeat_dropout", 0.3),
    "decoder/0/ff_layer/inner_dropout": ("feed_forward_dropout", 0.5),
    "decoder/0/ff_layer/dropout": ("feed_forward_dropout", 0.5),
    **{
        f"decoder/{i}/{n}_dropout": ("decoder_dropout", 0.5)
        for i in (0, 1)
        for n in ("word", "cross")
    },
    **{
        f"decoder/{i}/{n}/dropout": ("middle_dropout", 0.1)
        for i in (0, 1)
        for n in ("word_attn", "cross_att")
    },
}


def test_dropout_layers_and_rates():
    systems.check_dropout("xtransformer", SITES, **SIZES)


@pytest.mark.slow
def test_the_full_size_model_has_the_released_number_of_weights(monkeypatch):
    """137,521,826 trainable numbers, exactly as many as in the released code (docs/systems.md 3).

    Both count a vocabulary of V rows. The released V = 9488 has one id for start, end and
    padding where ours has three, so that the same words make a model with two rows more here.
    """
    assert systems.count(monkeypatch, "xtransformer", 9488, 17, 2048) == 137_521_826


def test_heads_must_divide_width():
    with pytest.raises(ValueError, match="multiple of heads"):
        systems.make("xtransformer", width=20)
