"""What decoding, training and serving rely on, as functions that fail when it does not hold.

Every check takes any Captioner and a batch of `features`, `mask` and `tokens` [B, S, T'], BOS first
and without padding, whose first image sees all its regions and whose last sees one only. `logits`
are those of the batch.

Letters as in `tfcap.models.captioner`; G = S rows share an image.
"""

import keras
import numpy as np
import tensorflow as tf

from tfcap.layers import precision
from tfcap.layers.trees import repeat, take


def rows_of(batch):
    """Tokens [N, T'] of a batch."""
    return tf.reshape(batch["tokens"], (-1, batch["tokens"].shape[-1]))


def start(model, batch):
    """The context, and a cache with a row for each caption."""
    context = model.encode(batch)
    return context, repeat(model.init_cache(context, model.max_length), batch["tokens"].shape[1])


def unroll(model, context, cache, tokens, first=0):
    """Logits [N, T', V] of steps through `tokens` [N, T'] from position `first`, and the cache."""
    logits = []
    for t in range(tokens.shape[1]):
        out, cache = model.step(context, cache, tokens[:, t], tf.constant(first + t))
        logits.append(out)
    return tf.stack(logits, 1), cache


def same(a, b, tolerance):
    np.testing.assert_allclose(a, b, rtol=0, atol=tolerance)


def differ(a, b):
    assert np.abs(np.asarray(a) - np.asarray(b)).max() > 1e-3, "no difference where one must be"


def changed(batch, key, change):
    """The batch with a NumPy copy of `key` changed in place by `change`."""
    value = batch[key].numpy()
    change(value)
    return batch | {key: tf.constant(value)}


def check_step_equals_decode(model, batch, tolerance=1e-5):
    """Steps give the logits of `decode`; structure, dtypes and shapes of the cache stay.

    Returns:
      the cache before the first step.
    """
    context, cache = start(model, batch)
    tokens = rows_of(batch)
    assert all(len(leaf) == len(batch["tokens"]) for leaf in tf.nest.flatten(context))
    stepped, after = unroll(model, context, cache, tokens)
    tf.nest.assert_same_structure(cache, after)
    for old, new in zip(tf.nest.flatten(cache), tf.nest.flatten(after), strict=True):
        assert len(old) == len(tokens) and old.shape == new.shape and old.dtype == new.dtype
    decoded = model.decode(context, tokens)
    assert stepped.dtype == decoded.dtype == tf.float32
    assert decoded.shape == (*tokens.shape, model.vocab_size)
    same(stepped, decoded, tolerance)
    return cache


def check_rows_can_be_permuted(model, batch, logits):
    """In mid-sentence, rows of an image change places: what follows changes places, no more."""
    context, cache = start(model, batch)
    tokens = rows_of(batch)
    _, cache = unroll(model, context, cache, tokens[:, :2])
    expected, _ = unroll(model, context, cache, tokens[:, 2:4], first=2)
    group = batch["tokens"].shape[1]
    order = np.arange(len(tokens)).reshape(-1, group)[:, ::-1].ravel()
    tokens, cache = tf.gather(tokens, order), take(cache, order)
    result, _ = unroll(model, context, cache, tokens[:, 2:4], first=2)
    same(result, tf.gather(expected, order), 1e-5)
    differ(expected, tf.gather(expected, order))


def check_causal(model, batch, logits):
    """Logits before a changed word stay, those at it change."""

    def change(tokens):
        tokens[..., 3] = 2 + (tokens[..., 3] - 1) % (model.vocab_size - 2)

    result = model(changed(batch, "tokens", change))
    same(result[:, :, :3], logits[:, :, :3], 1e-6)
    for t in range(3, result.shape[2]):
        differ(result[:, :, t], logits[:, :, t])


def check_region_padding(model, batch, logits):
    """Values of hidden regions, and how many there are, have no influence; visible ones have."""
    hidden = ~batch["mask"].numpy()
    assert hidden.any()
    loud = changed(batch, "features", lambda x: x.__setitem__(hidden, 99.0))["features"]
    longer = {
        "features": tf.pad(loud, [[0, 0], [0, 3], [0, 0]], constant_values=-7.0),
        "mask": tf.pad(batch["mask"], [[0, 0], [0, 3]]),
    }
    same(model(batch | longer), logits, 1e-5)
    differ(
        model(changed(batch, "features", lambda x: x.__setitem__((slice(None), 0), 2.0))), logits
    )


def check_images_apart(model, batch, logits):
    """Another first image and other captions of it change nothing for the others."""
    other = changed(batch, "features", lambda x: x.__setitem__(0, x[0] + 1))
    other = changed(other, "tokens", lambda x: x.__setitem__((0, slice(None), slice(1, None)), 3))
    result = model(other)
    same(result[1:], logits[1:], 1e-5)
    differ(result[0], logits[0])
    # And the last alone, which has hidden regions: nothing of it depends on the batch it comes in.
    same(model({k: v[-1:] for k, v in batch.items()}), logits[-1:], 1e-5)


def check_rows_share_an_image(model, batch, logits):
    """N = B G rows over B images are the same as N images, in decode and in step."""
    tokens, group = rows_of(batch), batch["tokens"].shape[1]
    context, cache = start(model, batch)
    repeated = repeat({k: batch[k] for k in ("features", "mask")}, group)
    alone = model.encode(repeated)
    shared = tf.reshape(logits, (*tokens.shape, -1))
    same(shared, model.decode(alone, tokens), 1e-5)
    result, _ = unroll(model, context, cache, tokens[:, :2])
    expected, _ = unroll(model, alone, model.init_cache(alone, model.max_length), tokens[:, :2])
    same(result, expected, 1e-5)


def check_padding_rows(model, batch, logits):
    """Rows of nothing but padding, which fill a last batch, are finite and disturb no other."""
    result = model(changed(batch, "tokens", lambda x: x.__setitem__(1, 0)))
    assert np.isfinite(result).all()
    same(tf.gather(result, [0, 2]), tf.gather(logits, [0, 2]), 1e-5)


def check_checkpoint_items(model):
    """`checkpoint_items` has every variable once; `vocabulary_axes` those with an axis of words."""
    items = model.checkpoint_items
    assert len(tf.nest.flatten(items)) == len(model.variables)
    assert {id(v) for v in tf.nest.flatten(items)} == {id(v.value) for v in model.variables}
    shapes = {name: list(v.shape) for name, v in items["weights"].items()}
    axes = {n: s.index(model.vocab_size) for n, s in shapes.items() if model.vocab_size in s}
    assert axes == model.vocabulary_axes


def check_gradients(model, batch, invariant=()):
    """A gradient step moves every trainable variable except those that no loss depends on.

    `invariant`: ends of the names of those.
    """
    weights = model.checkpoint_items["weights"]
    with tf.GradientTape() as tape:
        logits = model(batch | {"tokens": batch["tokens"][..., :-1]})
        targets = batch["tokens"][..., 1:]
        loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(targets, logits))
    gradients = tape.gradient(loss, weights)
    assert {id(v.value) for v in model.trainable_variables} <= {id(v) for v in weights.values()}
    for name, gradient in gradients.items():
        size = 0.0 if gradient is None else np.abs(tf.convert_to_tensor(gradient)).max()
        if name.endswith(tuple(invariant)):
            assert size < 1e-6, f"{name} should not matter, its gradient is {size}"
        else:
            assert np.isfinite(size) and size > 1e-7, f"the gradient of {name} is {size}"


def check_finite(model, batch, logits):
    """With features of a thousand, as bottom-up features have at times, and in training.

    A call makes no new variable.
    """
    before = [id(v) for v in model.variables]
    loud = batch | {"features": batch["features"] * 1000}
    for result in (logits, model(loud), model(batch, training=True)):
        assert result.dtype == tf.float32 and np.isfinite(result).all()
    assert before == [id(v) for v in model.variables]


def check_keras_file(model, options, batch, folder, logits):
    """`model.save` writes a file from which `keras.saving.load_model` makes the same model.

    `options`: all options of the constructor.
    """
    path = f"{folder}/model.keras"
    model.save(path)
    with precision.using("float64"):  # the precision of the model counts, not this one
        loaded = keras.saving.load_model(path)
    assert type(loaded) is type(model)
    config = loaded.get_config()
    assert config == model.get_config()
    assert {name: config[name] for name in options} == options
    items = model.checkpoint_items
    assert loaded.checkpoint_items.keys() == items.keys()
    for group, result in loaded.checkpoint_items.items():
        assert list(result) == list(items[group]), group
    same(loaded(batch), logits, 0)


CHECKS = [
    check_rows_can_be_permuted,
    check_causal,
    check_region_padding,
    check_images_apart,
    check_rows_share_an_image,
    check_padding_rows,
    check_finite,
]
