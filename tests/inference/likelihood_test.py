"""Scores of all pairs of images and captions equal scores of single pairs."""

import numpy as np
import pytest
import tensorflow as tf
from helpers import small_models, systems
from helpers.sizes import FEATURES, IMAGES, LENGTH, VOCABULARY

from tfcap.data.tokens import SPECIALS, Vocab
from tfcap.decoding.scores import word_log_probs
from tfcap.ids import BOS, EOS, PAD, UNK
from tfcap.inference import likelihood
from tfcap.models.ensemble import Ensemble

WORDS = [f"w{n}" for n in range(VOCABULARY - len(SPECIALS))]
SMALL = {
    "mrnn": dict(embed_width=9, width=16, multimodal_width=12, head_dropout=0.2),
    "transformer": dict(width=16, heads=2, encoder_layers=1, decoder_layers=1, inner_width=24),
}


@pytest.fixture(scope="module")
def sentences():
    """Captions of all lengths in random order: one has an unknown word, one is cut, one repeats."""
    rng = np.random.default_rng(4)
    captions = [" ".join(rng.choice(WORDS, n)) for n in (3, 1, 5, 2, 3, 4, 9, 3, 2, 1, 3)]
    captions += ["w1 nobody w2", "w1 w2", "w1 w2 w3 w4", "w1 w2 w3 w5", captions[0]]
    return likelihood.encode_captions(Vocab([*SPECIALS, *WORDS]), captions, LENGTH)


@pytest.fixture(scope="module", params=small_models.params([*SMALL, "ensemble"]))
def model(request):
    if request.param == "ensemble":
        members = [systems.make("mrnn", seed, **SMALL["mrnn"]) for seed in (1, 2)]
        return Ensemble(members, name="ensemble")
    return systems.make(request.param, **SMALL[request.param])


def test_captions_become_token_ids(sentences):
    assert sentences.tokens.shape == (16, LENGTH) and sentences.tokens.dtype == np.int32
    assert sentences.words.tolist() == [4, 2, 6, 3, 4, 5, 6, 4, 3, 2, 4, 4, 3, 5, 5, 4]
    ended = (sentences.tokens == EOS).sum(1)
    assert ended.tolist() == [1] * 6 + [0] + [1] * 9  # the seventh is cut, as in training
    assert sentences.tokens[11].tolist() == [5, UNK, 6, EOS, PAD, PAD]
    assert (sentences.unknown, sentences.cut) == (1, 1)
    assert sentences.note() == (
        "1 of 64 words are outside the vocabulary: nobody; 1 of 16 captions are cut to 6 words"
    )
    vocab = Vocab([*SPECIALS, *WORDS])
    assert likelihood.encode_captions(vocab, ["w1"], LENGTH).note() == ""
    named = likelihood.encode_captions(vocab, ["A Zebra, w1", "zebra a b", *"cdefg"], LENGTH).note()
    assert named == "10 of 18 words are outside the vocabulary: a, zebra, b, c, d"
    with pytest.raises(ValueError, match=r"'\?!' has no word"):
        likelihood.encode_captions(vocab, ["w1", "?!"], LENGTH)


@pytest.mark.slow
def test_a_pair_has_the_same_score_alone_and_in_a_block(model, sentences):
    """A block has images with 5, 3 and 1 regions; single pairs have one image and one caption."""
    batch = systems.padded_batch()
    scorer = likelihood.PairScorer(model, FEATURES, sentences, logits=3 * 2 * 5 * VOCABULARY)
    assert scorer.recurrent == (model.name != "transformer")
    assert len(scorer.blocks(IMAGES)) > 1
    scores = scorer(batch["features"], batch["mask"])
    assert scores.shape == (IMAGES, 16) and scores.dtype == np.float32
    # Several lengths, the cut caption (6) and the unknown word (11).
    for image, regions, positions in ((0, 5, (1, 6)), (1, 3, (11,))):
        calls = {key: batch[key][image : image + 1, :regions] for key in ("features", "mask")}
        context = model.encode(calls)
        for place in positions:
            row = sentences.tokens[place : place + 1, : sentences.words[place]]
            alone = word_log_probs(model, context, tf.constant(row)).numpy().sum()
            assert scores[image, place] == pytest.approx(alone, rel=1e-5, abs=1e-5)
    np.testing.assert_array_equal(scores[:, 0], scores[:, -1])  # the same caption
    assert np.abs(scores[0] - scores[1]).max() > 1e-3


def test_a_diverged_model_is_refused(sentences):
    model, batch = systems.make("mrnn", **SMALL["mrnn"]), systems.padded_batch()
    model.trainable_variables[0].assign_add(tf.fill(model.trainable_variables[0].shape, np.nan))
    scorer = likelihood.PairScorer(model, FEATURES, sentences)
    with pytest.raises(ValueError, match="diverged. Choose another checkpoint"):
        scorer(batch["features"], batch["mask"])


W = range(4, 9)
ROWS = [[W[0], W[1], EOS], [W[0], W[1], W[2], EOS], [W[0], EOS], [W[3], W[1], EOS],
        [W[0], W[1], W[2], W[4], EOS], [W[0], W[1], EOS], list(W) + [W[0]]]  # fmt: skip


@pytest.fixture(scope="module")
def captions():
    """Captions with common prefixes; one occurs twice and one has no end mark."""
    tokens = np.zeros((len(ROWS), LENGTH), np.int32)
    for row, words in zip(tokens, ROWS, strict=True):
        row[: len(words)] = words
    words = np.count_nonzero(tokens, axis=1).astype(np.int32)
    return likelihood.EncodedCaptions(tokens, words, unknown=0, cut=1)


def test_a_tree_holds_each_prefix_once(captions):
    values = likelihood.prefix_tree(captions.tokens)
    for t in range(LENGTH):
        alive = [n for n, length in enumerate(captions.words) if length > t]
        assert values.counts[t] == len({tuple(ROWS[n][:t]) for n in alive})
        for n in alive:
            beginning, place = [], values.index_of[t, n]
            for back in range(t, -1, -1):
                beginning.insert(0, int(values.words[back, place]))
                place = values.parents[back, place]
            assert beginning == [BOS, *ROWS[n][:t]]
    assert values.counts.tolist() == [1, 2, 2, 1, 2, 1]
