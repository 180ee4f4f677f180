"""LBPF against a literal rendering: logits, both losses, gradients, greedy and beam captions."""

import numpy as np
import pytest
import tensorflow as tf
from helpers import literal, searches, systems
from helpers.sizes import LENGTH, VOCABULARY

from tfcap import configs
from tfcap.backbones.backbone import Backbone
from tfcap.ids import BOS, EOS, PAD
from tfcap.models.end_to_end import EndToEnd
from tfcap.objectives import losses
from tfcap.training import optim
from tfcap.training.task import CaptionTask

WEIGHT = 0.7
NEVER = (PAD, BOS)  # words that searches do not choose


def log_softmax(x):
    x = x - x.max(-1, keepdims=True)
    return x - np.log(np.exp(x).sum(-1, keepdims=True))


def both(w, regions, tokens):
    """Log-probabilities p and q [T, V] of step 0, 1, ..., for the next word and the one after."""
    x = literal.relu(w.linear("region_embed", regions))
    h1 = c1 = h2 = c2 = h3 = c3 = seen = np.zeros(12)
    now, later = [], []
    for word in literal.relu(w["embed_tokens/embeddings"][tokens]):
        h1, c1 = w.lstm("lstm1", np.concatenate([h2, x.mean(0), word]), h1, c1)
        seen = w.additive("attention", np.concatenate([h1, seen]), x, x)
        h2, c2 = w.lstm("lstm2", np.concatenate([seen, h1]), h2, c2)
        h3, c3 = w.lstm("lstm3", np.concatenate([seen, h2]), h3, c3)
        now.append(log_softmax(w.linear("head", h2)))
        later.append(log_softmax(w.linear("forward_head", h3)))
    return np.array(now), np.array(later)


def logits(w, regions, tokens):
    now, later = both(w, regions, tokens)
    now[1:] += WEIGHT * later[:-1]
    return now


def two_losses(w, batch):
    """The sum over all captions of -log p and -w log q of their words."""
    total = 0.0
    arrays = (np.asarray(batch[name]) for name in ("features", "mask", "tokens"))
    for features, mask, captions in zip(*arrays, strict=True):
        for caption in captions:
            words = caption[: np.count_nonzero(caption)]
            now, later = both(w, np.float64(features[mask]), words[:-1])
            total -= sum(now[t, word] for t, word in enumerate(words[1:]))
            total -= WEIGHT * sum(later[t, word] for t, word in enumerate(words[2:]))
    return total


@pytest.fixture(scope="module")
def model():
    return systems.make("lbpf", width=12, attention_width=7, forward_weight=WEIGHT)


@pytest.fixture(scope="module")
def batch():
    return systems.padded_batch()


def loss_of(model, batch):
    context = model.encode(batch)
    targets = batch["tokens"][..., 1:]
    result = model.decode_captions(context, batch["tokens"][..., :-1])
    return losses.cross_entropy(result, targets)[0] + model.extra_loss(context, result, targets)


def test_logits_equal_a_literal_rendering(model, batch):
    literal.compare(model, batch, logits)


def test_the_loss_is_the_sum_of_those_of_both_words(model, batch):
    """With gradients of two weights, by differences of the rendering."""
    weights = literal.Weights(model)
    names = ("attention/query/kernel", "lstm3/recurrent_kernel")
    watched = {name: model.checkpoint_items["weights"][name] for name in names}
    with tf.GradientTape() as tape:
        loss = loss_of(model, batch)
    assert float(loss) == pytest.approx(two_losses(weights, batch), rel=1e-6)
    for name, gradient in tape.gradient(loss, watched).items():
        for place in ((0, 0), (3, 5), (-1, -1)):  # of the query: h1 first, the seen regions last
            values = []
            for change in (1e-5, -1e-5):
                weights.values[name][place] += change
                values.append(two_losses(weights, batch))
                weights.values[name][place] -= change
            slope = (values[0] - values[1]) / 2e-5
            assert float(gradient[place]) == pytest.approx(slope, abs=1e-7)


def test_searches_equal_those_of_a_literal_rendering(model, batch):
    """Beams of 1 and 3 over the product of both probabilities, divided by its sum."""
    weights, context = literal.Weights(model), model.encode(batch)
    greedy = searches.sample(model, context, LENGTH)[0].numpy()
    beams, scores, *_ = searches.beam_search(model, context, 3, LENGTH)
    for image, (features, mask) in enumerate(zip(batch["features"], batch["mask"], strict=True)):
        regions = np.float64(features.numpy()[mask.numpy()])
        (_, first), *_ = literal_beams(weights, regions, 1)
        np.testing.assert_array_equal(greedy[image], first)
        expected = literal_beams(weights, regions, 3)
        np.testing.assert_allclose(scores[image], [score for score, _ in expected], rtol=1e-5)
        np.testing.assert_array_equal(beams[image], [tokens for _, tokens in expected])


def literal_beams(weights, regions, beam):
    """The best captions [T] with their scores; an ended one keeps its place among the beams."""
    kept = [(0.0, [BOS])]
    for _ in range(LENGTH):
        found = []
        for score, tokens in kept:
            if tokens[-1] in (EOS, PAD):
                found.append((score, [*tokens, PAD]))
                continue
            last = logits(weights, regions, np.array(tokens))[-1]
            last[list(NEVER)] = -np.inf
            last = log_softmax(last)
            words = set(range(VOCABULARY)) - set(NEVER)
            found += [(score + last[word], [*tokens, word]) for word in words]
        kept = sorted(found, key=lambda pair: -pair[0])[:beam]
    return [(score, np.array(tokens[1:])) for score, tokens in kept]


def test_a_negative_weight_is_refused():
    with pytest.raises(ValueError, match="`forward_weight` must be at least 0, not -1"):
        systems.make("lbpf", width=8, forward_weight=-1)


def test_a_step_of_training_has_both_losses(batch):
    """The model is the whole of a captioner and its backbone, too."""
    rates = dict.fromkeys(("word_dropout", "region_dropout", "head_dropout"), 0.0)
    sizes = dict(width=12, attention_width=7, forward_weight=WEIGHT)
    model = systems.make("lbpf", **sizes, **rates)
    expected = two_losses(literal.Weights(model), batch) / np.count_nonzero(
        batch["tokens"][..., 1:]
    )
    config = configs.Task(max_length=LENGTH, label_smoothing=0.0)
    task = CaptionTask(config, None, configs.Optimizer())
    optimizer = optim.optimizer(configs.Optimizer(), 0.1)
    optimizer.build(model.trainable_variables)
    assert float(task.train_step(batch, model, optimizer)["loss"]) == pytest.approx(
        expected, rel=1e-6
    )

    whole = EndToEnd(model, Backbone("small_cnn", image_size=32))
    logits, targets = tf.ones((1, 2, 3, VOCABULARY)), tf.ones((1, 2, 3), tf.int32)
    assert whole.extra_loss(None, logits, targets) == model.extra_loss(None, logits, targets) < 0
