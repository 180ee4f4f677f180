"""m-RNN: each variant against a literal rendering, its paths, size and dropout."""

import contextlib

import keras
import numpy as np
import pytest
import tensorflow as tf
from helpers import contract, literal, seeds, systems

from tfcap import models
from tfcap.models.mrnn import VARIANTS

E, D, M = 7, 8, 9
WORDS = 4  # of a caption
SIZES = dict(embed_width=E, width=D, multimodal_width=M)
IN_RNN = ("vis_in_rnn", "vis_in_rnn_both", "vis_in_rnn_both_shared")
IMAGE_AT_ONCE = ("base", "no_emb_input", "one_layer_emb", "emb_one_input", "vis_in_rnn_both")


@pytest.fixture(scope="module")
def batch(batch):
    """Captions of four words: what changes the second is seen in two more."""
    return batch | {"tokens": batch["tokens"][..., :WORDS]}


@pytest.fixture(scope="module", params=sorted(VARIANTS))
def variant(request):
    return request.param


@pytest.fixture(scope="module")
def model(variant):
    """Returns a model that all tests share; a test must restore the weights it changes."""
    return systems.make("mrnn", variant=variant, **SIZES)


def rendering(variant):
    """Logits of one caption, as the paper writes them (docs/systems.md 6.1 and 6.2)."""

    def logits(w, regions, tokens):
        image, r, out = regions.mean(0), np.zeros(D), []
        for token in tokens:
            e = w["embed_tokens/embeddings"][token]
            word = e if variant == "one_layer_emb" else w.linear("embed_second", e)
            if variant in IN_RNN:
                word = word + image @ w["image_in_words/kernel"]
            r = np.maximum(r @ w["recurrence/kernel"] + word, 0)
            m = r @ w["multimodal/recurrent/kernel"] + w["multimodal/bias"]
            if variant == "emb_one_input":
                m = m + e @ w["multimodal/word/kernel"]
            elif variant != "no_emb_input":
                m = m + word @ w["multimodal/word/kernel"]
            if variant in IMAGE_AT_ONCE:
                m = m + image @ w["multimodal/image/kernel"]
            if variant == "vis_in_rnn_both_shared":
                m = m + image @ w["image_in_words/kernel"] @ w["multimodal/image/kernel"]
            out.append(w.linear("head", 1.7159 * np.tanh(2 / 3 * m)))
        return np.array(out)

    return logits


def test_logits_equal_a_literal_rendering(variant, model):
    """The rendering gets no padding, so the model must hide it."""
    literal.compare(model, systems.padded_batch(), rendering(variant))


def test_no_two_variants_are_the_same(batch):
    """With equal weights wherever two variants have them."""
    every = [systems.make("mrnn", variant=variant, **SIZES) for variant in VARIANTS]
    source = {}
    for model in every:
        for name, value in model.checkpoint_items["weights"].items():
            value.assign(source.setdefault((name, tuple(value.shape)), value.numpy()))
    found = [model(batch).numpy() for model in every]
    for i, one in enumerate(found):
        for other in found[:i]:
            contract.differ(one, other)


@contextlib.contextmanager
def zeroed(model, *names):
    """Sets weights of the model to zero inside the block; unknown names are ignored."""
    weights = model.checkpoint_items["weights"]
    before = {name: weights[name].numpy() for name in names if name in weights}
    for name, value in before.items():
        weights[name].assign(np.zeros_like(value))
    yield model
    for name, value in before.items():
        weights[name].assign(value)


def reaction(model, batch, key, change):
    """How far logits [B, S, T', V] move at each position if `change` is made to the batch."""
    moved = np.abs(model(contract.changed(batch, key, change)) - model(batch))
    return moved.max((0, 1, 3))


def other_image(features):
    features += 1


def other_word(tokens):
    tokens[..., 1] = 2 + (tokens[..., 1] - 1) % 11


def test_where_the_image_enters(variant, model, batch):
    """The image enters through its own term, the words, both, or not at all."""
    image, words = "multimodal/image/kernel", "image_in_words/kernel"
    through_both = reaction(model, batch, "features", other_image)
    with zeroed(model, image):
        without_term = reaction(model, batch, "features", other_image)
    with zeroed(model, words):
        without_words = reaction(model, batch, "features", other_image)
    assert (through_both > 1e-3).all() == (variant != "rnn_base")
    assert (without_term > 1e-3).all() == (variant in IN_RNN)
    assert (without_words > 1e-3).all() == (variant in IMAGE_AT_ONCE)
    for moved in (through_both, without_term, without_words):
        assert (moved > 1e-3).all() or not moved.any()
    context = model.encode(batch)
    tokens, cache = batch["tokens"][:, 0, 0], model.init_cache(context, 6)
    _, cache = model.step(context, cache, tokens, tf.constant(0))
    # The first word is the same for all images: only an image in the recurrence tells them apart.
    assert (np.abs(np.ptp(cache["r"], axis=0)).max() > 1e-3) == (variant in IN_RNN)


@pytest.mark.parametrize("name", IN_RNN)
def test_vis_in_rnn_reads_the_image_in_words_and_history(name, batch):
    """The changed w_t feeds the recurrence, and through V_w the multimodal layer."""
    term, word, recurrent = (f"multimodal/{path}/kernel" for path in ("image", "word", "recurrent"))
    model = systems.make("mrnn", variant=name, **SIZES)
    for gone in (word, recurrent):
        with zeroed(model, term, gone):
            assert (reaction(model, batch, "features", other_image) > 1e-3).all(), gone
    with zeroed(model, term, word, recurrent):
        assert not reaction(model, batch, "features", other_image).any()


def test_rnn_base_reads_no_image(batch):
    model = systems.make("mrnn", variant="rnn_base", **SIZES)
    blind = batch | {"features": tf.fill(batch["features"].shape, np.nan)}
    np.testing.assert_array_equal(model(blind), model(batch))
    nothing = batch | {"mask": tf.zeros_like(batch["mask"])}
    np.testing.assert_array_equal(model(nothing), model(batch))
    assert [tuple(leaf.shape) for leaf in tf.nest.flatten(model.encode(batch))] == [(3, 0)]


def test_where_the_word_enters(variant, model, batch):
    """A word acts at once through V_w, and later only through the recurrence."""
    recurrent = "multimodal/recurrent/kernel"
    now = (np.arange(WORDS) == 1).tolist()
    with zeroed(model, recurrent):
        moved = reaction(model, batch, "tokens", other_word)
    assert (moved > 1e-3).tolist() == ([False] * WORDS if variant == "no_emb_input" else now)
    moved = reaction(model, batch, "tokens", other_word)
    assert (moved > 1e-4).tolist() == (np.arange(WORDS) >= 1).tolist()
    # V_w reads w_t, which is computed by W2, or e_t, which is not.
    with zeroed(model, recurrent, "embed_second/kernel"):
        moved = reaction(model, batch, "tokens", other_word)
    at_once = variant in ("one_layer_emb", "emb_one_input")
    assert (moved > 1e-3).tolist() == (now if at_once else [False] * WORDS)


def test_the_mean_of_the_regions_is_the_image(model, batch):
    """An image with one region has this region as its vector."""
    alone = {
        "features": tf.stack(
            [
                tf.reduce_mean(x[m], 0, keepdims=True)
                for x, m in zip(batch["features"], batch["mask"], strict=True)
            ]
        ),
        "mask": tf.ones((3, 1), tf.bool),
    }
    contract.same(model(batch | alone), model(batch), 1e-5)


@pytest.mark.slow
@pytest.mark.parametrize(
    "variant",
    ["one_layer_emb", "rnn_base", "vis_in_rnn_both_shared"],
    indirect=True,
    scope="module",
)
def test_variants_keep_the_contract(variant, model, batch):
    """`base` keeps it in `contract_test`, and the literal rendering has the logits of all."""
    logits = model(batch)
    contract.check_gradients(model, batch)
    contract.check_rows_share_an_image(model, batch, logits)
    contract.check_step_equals_decode(model, batch)
    contract.check_rows_can_be_permuted(model, batch)
    contract.check_causal(model, batch, logits)
    contract.check_finite(model, batch, logits)
    contract.check_padding_rows(model, batch, logits)
    contract.check_no_new_variables(model, batch)
    if variant != "rnn_base":
        contract.check_region_padding(model, batch, logits)
        contract.check_images_apart(model, batch, logits)


@pytest.mark.slow
@pytest.mark.parametrize(
    "name, half",
    [
        ("base", "mixed_float16"),
        ("vis_in_rnn_both_shared", "mixed_bfloat16"),
    ],
)
def test_mixed_precision(name, half, batch):
    systems.check_contract(batch, "mrnn", half, variant=name, **SIZES)


def paper_size(variant, v, f=4096):
    """Numbers in E1, W2, U_r, V_w, V_r, V_I, V_y and the biases (docs/systems.md 6.1 and 6.2)."""
    e, d, m = 128, 256, 512
    total = v * e + (d * e + d) + d * d + m * d + m * d + m * f + m + (v * m + v)
    return (
        total
        + {
            "base": 0,
            "no_emb_input": -m * d,
            "one_layer_emb": v * (d - e) - (d * e + d),
            "emb_one_input": m * e - m * d,
            "vis_in_rnn": d * f - m * f,
            "vis_in_rnn_both": d * f,
            "vis_in_rnn_both_shared": d * f - m * f + m * d,
            "rnn_base": -m * f,
        }[variant]
    )


def test_the_full_size_model_has_the_papers_number_of_weights(variant, monkeypatch):
    assert systems.count(monkeypatch, "mrnn", 2539, 20, 4096, variant=variant) == paper_size(
        variant, 2539
    )


def test_weights_start_as_documented():
    """The recurrence starts as the identity, so it starts by adding words."""
    seeds.set_seed(1)
    model = models.build("mrnn", 13, 6, 6, **SIZES)
    weights = model.checkpoint_items["weights"]
    np.testing.assert_array_equal(weights["recurrence/kernel"], np.eye(D))
    assert {n for n, v in weights.items() if not v.numpy().any()} == {
        n for n in weights if n.endswith("bias")
    }


def test_dropout_layers_and_rates(batch):
    """The default rates are 0; the sites are words, image and multimodal layer."""
    assert not systems.make("mrnn", **SIZES).checkpoint_items["seeds"]
    for site in ("word_dropout", "region_dropout", "head_dropout"):
        model = systems.make("mrnn", **SIZES, **{site: 0.3})
        assert set(model.checkpoint_items["seeds"]) == {f"{site}/seed_generator_state"}
        assert getattr(model, site).rate == 0.3
        assert np.abs(model(batch, training=True) - model(batch)).max() > 1e-3


def test_without_an_image_none_is_dropped(batch):
    model = systems.make("mrnn", variant="rnn_base", region_dropout=0.9, **SIZES)
    assert not model.checkpoint_items["seeds"]
    contract.same(model(batch, training=True), model(batch), 0)


@pytest.mark.parametrize("name", ["base", "emb_one_input"])
def test_a_dropped_word_is_dropped_everywhere(name, batch):
    """If all of e_t is dropped, only the biases and the image are left."""
    model = systems.make("mrnn", variant=name, word_dropout=0.999999, **SIZES)
    dropped = model(batch, training=True)
    with zeroed(model, "embed_tokens/embeddings"):
        contract.same(model(batch), dropped, 1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["base", "vis_in_rnn_both_shared"])
def test_plain_gradient_descent_learns(name, batch):
    """The paper names no other optimizer."""
    seeds.set_seed(1)
    model = models.build("mrnn", 13, 6, 6, variant=name, **SIZES)
    optimizer = keras.optimizers.SGD(0.3)

    @tf.function
    def step():
        with tf.GradientTape() as tape:
            logits = model(batch | {"tokens": batch["tokens"][..., :-1]}, training=True)
            targets = batch["tokens"][..., 1:]
            nll = tf.nn.sparse_softmax_cross_entropy_with_logits(targets, logits)
            loss = tf.reduce_mean(nll)
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        return loss

    losses = [float(step()) for _ in range(60)]
    assert losses[0] > 2 and losses[-1] < 0.5 * losses[0], losses


def test_an_unknown_variant_is_refused():
    with pytest.raises(ValueError, match="variant must be one of base, .* Received: 'mine'"):
        models.build("mrnn", 13, 6, 6, variant="mine")
