"""ExpansionNet: every kind of block against a literal rendering, and its options.

The released numbers of the final model are compared in `expansionnet_parity_test`.
"""

import numpy as np
import pytest
import tensorflow as tf
from helpers import literal, systems
from helpers.literal import glu, relu

from tfcap import models

# Keras doubts a softmax over one key; the first word has only itself to look at.
pytestmark = pytest.mark.filterwarnings("ignore:You are using a softmax")

SIZES = dict(
    width=16,
    heads=2,
    encoder_layers=2,
    decoder_layers=2,
    inner_width=24,
    encoder_vectors=8,
    decoder_vectors=8,
)
ONE_LAYER = dict(encoder_layers=1, decoder_layers=1)
AOA = dict(encoder_block="aoa", decoder_block="aoa")
VARIANTS = {
    "without_reduce": dict(reduce=False),
    "dynamic_encoder": dict(encoder_block="dynamic", encoder_vectors=1) | ONE_LAYER,
    "base": dict(encoder_block="attention", decoder_block="attention") | ONE_LAYER,
    "aoa": AOA | ONE_LAYER,
}


def attention(w, name, x, keys, may, heads=2):
    """Attention of positions [T, D]; on attention, where the weights for that exist."""
    out = []
    for t, query in enumerate(x):
        calls = w.heads(name, query, keys[may[t] > 0], heads)
        if f"{name}/aoa/kernel" in w:
            out.append(glu(w.linear(f"{name}/aoa", np.concatenate([calls, query]))))
        else:
            out.append(w.linear(f"{name}/output_map", calls))
    return np.array(out)


def block(w, name, x, may):
    if f"{name}/self_mha/query/kernel" in w:
        return attention(w, f"{name}/self_mha", x, x, may)
    if f"{name}/expansion/cond_embed/kernel" in w:
        return w.dynamic(f"{name}/expansion", x, may)
    return w.static(f"{name}/expansion", x)


def feed_forward(w, name, norm, x):
    if f"{name}/ff/fc1/kernel" not in w:
        return x
    inner = relu(w.linear(f"{name}/ff/fc1", w.norm(f"{name}/{norm}", x, 1e-5)))
    return x + w.linear(f"{name}/ff/fc2", inner)


def reduced(w, stack, every):
    x = every[-1]
    if f"{stack}_proj/kernel" in w:
        x = x + w.linear(f"{stack}_proj", np.concatenate(every, -1))
    return w.norm(f"{stack}_norm", x)


def logits_of(w, regions, tokens):
    """Logits [L, V] of one caption of an image whose `regions` [R, F] are all real."""
    x, every, i = w.linear("region_embed", regions), [], 0
    while f"encoder/{i}/norm_1/gamma" in w:
        name = f"encoder/{i}"
        x = x + block(w, name, w.norm(f"{name}/norm_1", x), np.ones((len(x), len(x))))
        x = feed_forward(w, name, "norm_2", x)
        every.append(x)
        i += 1
    encoded = reduced(w, "encoder", every)
    words = w["embed_tokens/embeddings"][tokens]
    y = words * words.shape[-1] ** 0.5 + w["embed_positions/embeddings"][: len(tokens)]
    every, i = [], 0
    causal, free = np.tril(np.ones((len(y), len(y)))), np.ones((len(y), len(encoded)))
    while f"decoder/{i}/norm_1/gamma" in w:
        name = f"decoder/{i}"
        y = y + block(w, name, w.norm(f"{name}/norm_1", y), causal)
        y = y + attention(w, f"{name}/mha", w.norm(f"{name}/norm_2", y), encoded, free)
        y = feed_forward(w, name, "norm_3", y)
        every.append(y)
        i += 1
    return w.linear("head", reduced(w, "decoder", every))


@pytest.fixture(scope="module")
def final():
    return systems.make("expansionnet", **SIZES)


def test_logits_equal_a_literal_rendering(final):
    literal.compare(final, systems.padded_batch(), logits_of)


@pytest.mark.slow
@pytest.mark.parametrize("variant", VARIANTS)
def test_logits_of_every_variant_equal_a_literal_rendering(variant):
    model = systems.make("expansionnet", **(SIZES | VARIANTS[variant]))
    literal.compare(model, systems.padded_batch(), logits_of)


def test_words_drop_before_they_are_scaled(final):
    """A word is zero or 1 / 0.7 times sqrt(D) = 4 of it, its position is whole."""
    tokens, positions = tf.constant([[1, 5, 7]]), tf.range(3)
    words = final.words(tokens, positions, True) - final.embed_positions(positions)
    words = words / final.embed_tokens(tokens) / 4
    assert sorted(set(np.round(words.numpy().ravel(), 2))) == pytest.approx([0, 1.43])


def test_wrong_options_are_refused():
    with pytest.raises(ValueError, match="`encoder_block` must be one of static"):
        models.build("expansionnet", 13, 6, 6, **(SIZES | dict(encoder_block="causal")))


@pytest.mark.parametrize("positions, rows", [(5, 6), (9, 9)])
def test_every_word_of_the_longest_caption_has_a_position(positions, rows):
    model = models.build("expansionnet", 13, 6, 6, **(SIZES | dict(positions=positions)))
    model.embed_positions.build(())
    assert model.embed_positions.embeddings.shape[0] == rows
