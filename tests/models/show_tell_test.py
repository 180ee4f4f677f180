"""Show and Tell against a literal rendering; its size and dropout sites."""

import numpy as np
from helpers import golden, literal, systems

SITES = {
    "word_dropout": ("word_dropout", 0.3),
    "region_dropout": ("region_dropout", 0.3),
    "head_dropout": ("head_dropout", 0.3),
}


def test_logits_equal_a_literal_rendering():
    def logits(w, regions, tokens):
        empty, out = np.zeros(12), []
        h, c = w.lstm("lstm", w.linear("region_embed", regions.mean(0)), empty, empty)
        for word in w["embed_tokens/embeddings"][tokens]:
            h, c = w.lstm("lstm", word, h, c)
            out.append(w.linear("head", h))
        return np.array(out)

    literal.compare(systems.make("show_tell", width=12), systems.padded_batch(), logits)


def test_the_released_code_of_self_critical_training_gives_the_same_numbers():
    golden.check("show_tell", "self_critical")


def test_dropout_layers_and_rates():
    systems.check_dropout("show_tell", SITES, width=12)


def test_the_full_size_model_has_the_papers_number_of_weights(monkeypatch):
    """Word, head, image and LSTM of the paper's 512, added by hand."""
    total = 9488 * 512 + 513 * 9488 + 2049 * 512 + 2048 * (512 + 512 + 2)
    assert systems.count(monkeypatch, "show_tell", 9488, 17, 2048) == total == 12_875_536
