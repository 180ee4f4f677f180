"""Up-Down against a literal rendering."""

import numpy as np
import pytest
from helpers import literal, systems

RAW = dict(embed_regions=False, embed_activation="none")  # the class of X-LAN's own code


@pytest.mark.parametrize("options", [{}, dict(embed_activation="celu"), RAW], ids=str)
def test_logits_equal_a_literal_rendering(options):
    """The rendering gets no padding, so the model must hide it."""
    act = {"celu": literal.celu, "none": lambda x: x}.get(
        options.get("embed_activation"), literal.relu
    )

    def logits(w, regions, tokens):
        x = regions if options == RAW else act(w.linear("region_embed", regions))
        h1 = c1 = h2 = c2 = np.zeros(12)
        out = []
        for word in act(w["embed_tokens/embeddings"][tokens]):
            h1, c1 = w.lstm("lstm1", np.concatenate([h2, x.mean(0), word]), h1, c1)
            calls = w.additive("attention", h1, x, x)
            h2, c2 = w.lstm("lstm2", np.concatenate([calls, h1]), h2, c2)
            out.append(w.linear("head", h2))
        return np.array(out)

    model = systems.make("updown", width=12, attention_width=7, **options)
    literal.compare(model, systems.padded_batch(), logits)
