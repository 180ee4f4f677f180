"""HIP against a literal rendering, and the trees that it reads and makes."""

import numpy as np
import pytest
import tensorflow as tf
from helpers import literal, searches, seeds
from helpers.literal import relu, sigmoid
from helpers.sizes import LENGTH, VOCABULARY

from tfcap import models, private_api
from tfcap.models import hip

X, L, M = 4, 5, 3  # features of a region, columns of labels, labels
# Two regions are parts of the first, one is part of a part.
PARENTS = ([-1, 0, 1, -1, 0], [-1, 0, 0], [-1])


def make(regions, width=12):
    """A model of which no weight is zero, as biases start."""
    seeds.set_seed(1)
    options = dict(width=width, attention_width=7, regions=regions, labels=M)
    model = models.build("hip", VOCABULARY, LENGTH, 2 * X + 1 + regions, **options)
    rng = np.random.default_rng(1)
    for variable in model.trainable_variables:
        variable.assign_add(0.3 * rng.normal(size=variable.shape))
    return model


@pytest.fixture
def batch():
    """Images of 5, 3 and 1 regions with two captions each; padding shows."""
    rng = np.random.default_rng(2)
    features = rng.normal(size=(3, 5, 2 * X + 1 + L)).astype(np.float32)
    features[..., 2 * X + 1 :] = rng.integers(0, M, (3, 5, L))
    features[..., 2 * X] = 0  # padding would be children of the first region
    for image, parents in zip(features, PARENTS, strict=True):
        image[: len(parents), 2 * X] = parents
    tokens = rng.integers(2, VOCABULARY, (3, 2, LENGTH))
    tokens[..., 0] = 1
    return {
        "features": tf.constant(features),
        "mask": tf.sequence_mask([5, 3, 1], 5),
        "tokens": tf.constant(tokens, tf.int32),
    }


def nodes(w, regions):
    """The outputs of the image, of its regions and of their instances, from equations 2 to 8."""
    own, instances = regions[:, :X], regions[:, X : 2 * X]
    parents = regions[:, 2 * X].astype(int)

    def state(x, children):
        """h and c of a node, from its input and from h and c of its children."""
        i, o, u, f = np.split(w.linear("tree/input_map", x), 4)
        total = sum((h for h, _ in children), np.zeros(len(f)))
        add = np.split(w.linear("tree/state_map", total), 3)
        c = sigmoid(i + add[0]) * np.tanh(u + add[2])
        for h_child, c_child in children:
            c = c + sigmoid(f + w.linear("tree/forget_map", h_child)) * c_child
        return sigmoid(o + add[1]) * np.tanh(c), c

    leaves = [state(x, []) for x in instances]

    def region(index):
        below = [region(child) for child in np.flatnonzero(parents == index)]
        return state(own[index], [leaves[index], *below])

    top = [region(child) for child in np.flatnonzero(parents == -1)]
    inner = np.array([region(index)[0] for index in range(len(own))])
    return state(own.mean(0), top)[0], inner, np.array([h for h, _ in leaves])


def related(w, name, x, labels):
    """The equation of `RelationGraph`, region by region."""
    rows = []
    for i, v in enumerate(x):
        y = v + sigmoid(w.linear(f"{name}/loop_gate", v)) * w.linear(f"{name}/loop", v)
        for j, other in enumerate(x):
            for kind, part in ((labels[i, j], "sub"), (labels[j, i], "obj")):
                gate = sigmoid(
                    w.linear(f"{name}/{part}_gate", other) + w[f"{name}/gate_bias"][kind]
                )
                y = y + (kind > 0) * gate * (
                    w.linear(f"{name}/{part}", other) + w[f"{name}/bias"][kind]
                )
        rows.append(relu(y))
    return np.array(rows)


def logits(w, regions, tokens):
    image, *levels = nodes(w, regions)
    labels = regions[:, 2 * X + 1 :][:, : len(regions)].astype(int)
    if labels.size:
        levels = [related(w, f"graphs/{n}", x, labels) for n, x in enumerate(levels)]
    x = np.concatenate(levels, 1)
    h1 = c1 = h2 = c2 = np.zeros(len(image))
    out = []
    for word in relu(w["embed_tokens/embeddings"][tokens]):
        h1, c1 = w.lstm("lstm1", np.concatenate([h2, image, word]), h1, c1)
        read = w.additive("attention", h1, x, x)
        h2, c2 = w.lstm("lstm2", np.concatenate([read, h1]), h2, c2)
        out.append(w.linear("head", h2))
    return np.array(out)


@pytest.mark.parametrize("regions", [0, L])
def test_logits_equal_a_literal_rendering(regions, batch):
    """On Up-Down, and on GCN-LSTM."""
    batch["features"] = batch["features"][..., : 2 * X + 1 + regions]
    literal.compare(make(regions), batch, logits)


@pytest.mark.parametrize("name", ["tree/forget_map/kernel", "graphs/1/sub/kernel"])
def test_gradients_equal_differences_of_a_literal_rendering(name, batch):
    """In a training step, whose loop has a gradient of its own; along a random direction."""
    model, rng = make(L), np.random.default_rng(3)
    for dropout in (layer for layer in private_api.all_layers(model) if hasattr(layer, "rate")):
        dropout.rate = 0.0
    noise = rng.normal(size=(3, 2, LENGTH, VOCABULARY)).astype(np.float32)
    features, mask, tokens = (batch[key].numpy() for key in ("features", "mask", "tokens"))
    weights = literal.Weights(model)
    direction = rng.normal(size=weights[name].shape)

    def loss(step):
        weights.values[name] = weights.values[name] + step * direction
        return sum(
            np.sum(noise[image, caption] * logits(weights, np.float64(regions[seen]), words))
            for image, (regions, seen) in enumerate(zip(features, mask, strict=True))
            for caption, words in enumerate(tokens[image])
        )

    expected = -(loss(-1e-5) - loss(2e-5)) / 2e-5
    weight = model.checkpoint_items["weights"][name]
    with tf.GradientTape() as tape:
        total = tf.reduce_sum(model(batch, training=True) * noise)
    [variable] = [v for v in model.trainable_variables if v.value is weight]
    result = np.sum(tape.gradient(total, variable) * direction)
    np.testing.assert_allclose(result, expected, rtol=1e-4)


def test_captions_equal_those_of_a_literal_rendering(batch):
    """Greedy search, and of a beam search that keeps all captions the best one and its score."""
    model, length = make(L), 2
    context = model.encode(batch)
    greedy, _ = searches.sample(model, context, LENGTH)[:2]
    best, scores = searches.beam_search(model, context, VOCABULARY, length)[:2]
    weights = literal.Weights(model)
    for image, (regions, seen) in enumerate(zip(batch["features"], batch["mask"], strict=True)):
        regions = np.float64(regions.numpy()[seen.numpy()])

        def log_probs(words, regions=regions):
            values = logits(weights, regions, np.array([1, *words]))[-1]
            values[:2] = -np.inf  # padding and the start are never chosen
            return values - np.log(np.sum(np.exp(values)))

        words: list[int] = []
        while len(words) < LENGTH and words[-1:] != [2]:
            words.append(int(log_probs(words).argmax()))
        np.testing.assert_array_equal(greedy[image], words + [0] * (LENGTH - len(words)))
        first = log_probs([])
        pairs = {(2, 0): first[2]}
        for word in range(3, VOCABULARY):
            second = first[word] + log_probs([word])
            pairs |= {(word, other): second[other] for other in range(2, VOCABULARY)}
        expected = max(pairs, key=lambda pair: pairs[pair])
        assert tuple(best[image, 0].numpy()) == expected
        np.testing.assert_allclose(scores[image, 0], pairs[expected], rtol=1e-5)


def test_a_parent_stands_before_its_child_and_is_visible():
    model = make(0)
    column = tf.constant([[-1.0, 0.0, 1.0, 3.0, 2.0], [0.0, -1.0, 1.4, 1e9, 1.0]])
    mask = tf.constant([[True, True, False, True, True], [True, True, True, True, False]])
    expected = [[-1, 0, 1, -1, 0, 0], [-1, 0, 0, 2, 0, -1]]
    np.testing.assert_array_equal(model._parents(column, mask), expected)


def test_a_hierarchy_of_boxes():
    """The largest first; each in the one before it that it overlaps most, if enough."""
    boxes = [[0, 0, 2, 2], [0, 0, 10, 10], [0, 0, 6, 6], [8, 0, 14, 6], [9, 9, 12, 12]]
    order, parents = hip.hierarchy(boxes)
    assert order.tolist() == [1, 2, 3, 4, 0]
    # 36 / 100; 12 / 124 is too little, and 1 / 108; 4 / 36 is more than 4 / 100.
    assert parents.tolist() == [-1, 0, -1, -1, 1]
    assert hip.hierarchy(boxes, threshold=0.09)[1].tolist() == [-1, 0, 0, -1, 1]


def test_rows_that_cannot_be_cut_in_half_are_refused():
    with pytest.raises(ValueError, match="20 numbers.* and 6 labels .* 13 are left"):
        models.build("hip", VOCABULARY, LENGTH, 20, regions=6)
    with pytest.raises(ValueError, match="Set regions to the number of labels"):
        models.build("hip", VOCABULARY, LENGTH, 2, regions=1)
