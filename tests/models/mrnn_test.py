"""m-RNN: each variant against a literal rendering."""

import numpy as np
import pytest
from helpers import literal, systems

from tfcap import models
from tfcap.models.mrnn import VARIANTS

E, D, M = 7, 8, 9
SIZES = dict(embed_width=E, width=D, multimodal_width=M)
IN_RNN = ("vis_in_rnn", "vis_in_rnn_both", "vis_in_rnn_both_shared")
IMAGE_AT_ONCE = ("base", "no_emb_input", "one_layer_emb", "emb_one_input", "vis_in_rnn_both")


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


def test_an_unknown_variant_is_refused():
    with pytest.raises(ValueError, match="`variant` must be one of base, .*not 'mine'"):
        models.build("mrnn", 13, 6, 6, variant="mine")
