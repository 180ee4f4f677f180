"""Show and Tell against a literal rendering."""

import numpy as np
from helpers import literal, systems


def test_logits_equal_a_literal_rendering():
    def logits(w, regions, tokens):
        empty, out = np.zeros(12), []
        h, c = w.lstm("lstm", w.linear("region_embed", regions.mean(0)), empty, empty)
        for word in w["embed_tokens/embeddings"][tokens]:
            h, c = w.lstm("lstm", word, h, c)
            out.append(w.linear("head", h))
        return np.array(out)

    literal.compare(systems.make("show_tell", width=12), systems.padded_batch(), logits)
