"""RFNet and its released code give the same numbers; what counts as a feature set."""

import re

import numpy as np
import pytest
import tensorflow as tf
from helpers import parity, searches, systems

from tfcap import models
from tfcap.objectives import losses

UNLIKELY = -100.0  # logit of PAD and BOS, which the released code does not have
# Parts of the released names and of ours.
NAMES = (
    (r"fc2h\.", "init_maps/"),
    (r"review_steps_individual\.(\d+)\.lstm\.(\d+)\.att_model\.", r"stage1/\1/\2/attentions/0/"),
    (r"review_steps_individual\.(\d+)\.lstm\.(\d+)\.", r"stage1/\1/\2/"),
    (r"review_steps\.(\d+)\.att_model\.(\d+)\.", r"stage2/\1/attentions/\2/"),
    (r"review_steps\.(\d+)\.", r"stage2/\1/"),
    (r"reason_linear_individual\.", "score_maps/"),
    (r"reason_linear\.", "score_maps/2/"),
    (r"decoder\.(att_|h_2)", r"lstm/attentions/0/\1"),
    (r"decoder\.", "lstm/"),
    (r"att_2_att_h", "key"),
    (r"h_2_att_h", "query"),
    (r"att_h_2_out", "alpha"),
    (r"i2h", "word_map"),
    (r"[hH]2h", "input_map"),
    (r"z_2_h\.", "set_maps/"),
    (r"z2h", "set_maps/0"),
    (r"logit", "head"),
    (r"embed\.weight", "embed_tokens/embeddings"),
    (r"\.?weight", "/kernel"),
    (r"\.bias", "/bias"),
    (r"\.", "/"),
    (r"//", "/"),
)


def ours(name):
    """Our name of a released weight."""
    for pattern, text in NAMES:
        name = re.sub(pattern, text, name)
    return name


@pytest.fixture(scope="module")
def arrays():
    return parity.read("rfnet")


@pytest.fixture(scope="module")
def vocabulary(arrays):
    return parity.Vocabulary(len(arrays["w/embed.weight"]))


@pytest.fixture(scope="module")
def model(arrays, vocabulary):
    sizes = dict(width=16, attention_width=6, stage1_steps=2, stage2_steps=3, top_words=8)
    words = len(vocabulary.released)
    model = models.build("rfnet", words, 6, 8, set_widths="7 5", decoder_dropout=0.0, **sizes)
    weights = model.checkpoint_items["weights"]
    left = set(weights)
    for released, value in parity.weights_of(arrays).items():
        name = ours(released)
        value = value[vocabulary.released] if released.startswith(("embed", "logit")) else value
        weights[name].assign(value if "embeddings" in name else value.T)
        left.remove(name)
    assert not left
    weights["head/kernel"][:, :2].assign(tf.zeros((16, 2)))
    weights["head/bias"][:2].assign([UNLIKELY] * 2)
    return model


def rows(sets):
    """The features [B, R, F] of several sets [B, R, X], as `prepare` writes them."""
    widest = max(x.shape[-1] for x in sets)
    padded = [np.pad(x, ((0, 0), (0, 0), (0, widest - x.shape[-1]))) for x in sets]
    numbered = [
        np.pad(x, ((0, 0), (0, 0), (0, 1)), constant_values=m) for m, x in enumerate(padded)
    ]
    return np.concatenate(numbered, 1)


@pytest.fixture(scope="module")
def context(model, arrays):
    features = rows([arrays["in/features0"], arrays["in/features1"]])
    return model.encode({"features": tf.constant(features), "mask": tf.ones((3, 7), tf.bool)})


def distance(result, expected):
    return np.abs(np.asarray(result) - np.asarray(expected)).max()


def test_logits_loss_and_gradients_are_those_of_the_released_code(model, arrays, vocabulary):
    features = rows([arrays["in/features0"], arrays["in/features1"]])
    inputs = {"features": tf.constant(features), "mask": tf.ones((3, 7), tf.bool)}
    labels = arrays["in/labels"]
    tokens = vocabulary.inputs(labels[:, :-1]).reshape(3, 2, -1)
    targets = tf.constant(vocabulary.sentences(labels[:, 1:]).reshape(3, 2, -1))
    names = {ours(key[5:]): key for key in arrays if key.startswith("grad/")}
    weights = {name: model.checkpoint_items["weights"][name] for name in names}
    with tf.GradientTape() as tape:
        context = model.encode(inputs)
        logits = model.decode_captions(context, tf.constant(tokens))
        nll = losses.cross_entropy(logits, targets)[0]
        loss = (nll + model.extra_loss(context, logits, targets)) / len(labels)
    result = vocabulary.logits(logits.numpy()).reshape(arrays["out/logits"].shape)
    assert distance(result, arrays["out/logits"]) < 1e-5
    assert float(loss) == pytest.approx(float(arrays["out/loss"]), rel=1e-6)
    assert float(nll) / len(labels) < float(loss) - 0.1
    for name, gradient in tape.gradient(loss, weights).items():
        expected = arrays[names[name]].T
        assert distance(gradient, expected) < 1e-5 < np.abs(expected).max()


def test_searches_are_those_of_the_released_code(model, context, arrays, vocabulary):
    tokens, logps = searches.sample(model, context, 6)[:2]
    expected = vocabulary.sentences(arrays["out/greedy"])
    np.testing.assert_array_equal(tokens, expected)
    assert distance(logps[expected > 0], arrays["out/greedy_logp"][expected > 0]) < 1e-4
    tokens, scores = searches.beam_search(model, context, 3, 6, finished="retire")[:2]
    expected = vocabulary.sentences(arrays["out/beam3"])
    np.testing.assert_array_equal(tokens[:, 0], expected)
    logps = np.where(expected > 0, arrays["out/beam3_logp"], 0)
    assert distance(scores[:, 0], logps.sum(1)) < 1e-4


def test_rows_may_have_any_order_and_sets_any_number_of_rows(model, arrays):
    """Hidden rows are not read, and the zeros behind a narrow row are not, either."""
    sets = [arrays["in/features0"][:, :2], arrays["in/features1"]]
    features = rows(sets)[:, [3, 0, 2, 4, 1]]
    features[..., 5:7] += 9.0 * features[..., 7:]  # set 1 is 5 wide
    hidden = np.full((3, 2, 8), 50.0)
    inputs = {
        "features": tf.constant(np.concatenate([features, hidden], 1), tf.float32),
        "mask": tf.constant([[True] * 5 + [False] * 2] * 3),
    }
    plain = {"features": tf.constant(rows(sets)), "mask": tf.ones((3, 5), tf.bool)}
    tokens = tf.ones((3, 4), tf.int32)
    result = model.decode(model.encode(inputs), tokens)
    assert distance(result, model.decode(model.encode(plain), tokens)) < 1e-5
    every = {"features": tf.constant(rows([arrays["in/features0"], arrays["in/features1"]]))}
    every["mask"] = tf.ones((3, 7), tf.bool)
    assert distance(result, model.decode(model.encode(every), tokens)) > 1e-3


def test_one_set_needs_no_number():
    """All six numbers of a row are features, the last one, too."""
    model = systems.make("rfnet", width=8, attention_width=4, stage1_steps=1, stage2_steps=1)
    assert model.set_widths == [6]
    inputs = systems.padded_batch()
    changed = inputs["features"] + tf.one_hot(5, 6)
    assert distance(model(inputs), model(inputs | {"features": changed})) > 1e-3


@pytest.mark.parametrize(
    "options, message",
    [
        (dict(set_widths="6 4"), "`set_widths` is '6 4', but a row of the features has 6 numbers"),
        (dict(set_widths="6, 4"), "positive numbers with spaces between them"),
        (dict(stage2_steps=0), "must be at least 1"),
    ],
)
def test_wrong_options_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        models.MODELS["rfnet"](13, 6, 6, **options)
