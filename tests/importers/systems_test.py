"""Systems and options found from the tensors of released checkpoints."""

import json
import pathlib

import numpy as np
import pytest
from helpers.released_files import float32_positions

from tfcap import models
from tfcap.importers import systems, weights
from tfcap.layers.positions import sinusoids

V, F, D = 9, 5, 16
# Our name and the shape of each tensor of xmodaler (docs/systems.md 4.2 to 4.5), by system.
NAMES = json.loads(pathlib.Path(__file__).parents[1].joinpath("goldens/xmodaler.json").read_text())


def xmodaler(system):
    """A state dict of width 16 with random numbers."""
    rng = np.random.default_rng(1)
    return {name: rng.normal(size=shape).astype("f4") for name, (_, shape) in NAMES[system].items()}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("system", "options"),
    [
        ("updown", dict(width=D, attention_width=7, embed_regions=True)),
        ("attention_lstm", dict(width=D, attention_width=7)),
        ("transformer", dict(width=D, encoder_layers=1, decoder_layers=2, inner_width=24)),
        (
            "xlan",
            dict(
                **dict(width=D, heads=4, middle_width=3, encoder_layers=1, decoder_layers=1),
                embed_activation="relu",
            ),
        ),
    ],
)
def test_systems_of_xmodaler_are_recognised(system, options):
    """Every tensor is the right weight of a model with the options that are found."""
    state = xmodaler(system)
    result = systems.recognize("xmodaler", dict(state))
    assert (result.system, result.options) == (system, options)
    assert (result.feature_dim, result.rows) == (F, V)
    model = models.build(system, V + 2, 6, F, **options)
    weights.assign(model, result.tensors, np.array([0, 0, 0, V - 1, *range(1, V - 1)]))
    for name, (ours, _) in NAMES[system].items():
        expected = state[name].T if "kernel" in ours else state[name]
        np.testing.assert_array_equal(result.tensors[ours], expected, err_msg=name)


@pytest.mark.parametrize(
    ("family", "content"),
    [("xlan", xmodaler("xlan")), ("xmodaler", {"word_embed.0.weight": np.ones((2, 2), "f4")})],
)
def test_a_checkpoint_of_another_family_is_refused(family, content):
    with pytest.raises(ValueError, match=f"no checkpoint of {family}"):
        systems.recognize(family, content)


def with_positions(table):
    state = xmodaler("transformer") | {"token_embed.embeddings_pos.pe": table}
    return systems.recognize("xmodaler", state)


def test_the_tolerance_of_positions_is_that_of_float32():
    """5,000 rows of width 768 are sinusoids; with one channel 2e-5 off they are not."""
    released = float32_positions(5000, 768)
    assert 1e-4 < np.abs(released - sinusoids(5000, 768)).max() < 6e-4
    checkpoint = with_positions(float32_positions(5000, D)[None])
    checkpoint.positions = ("pe", released)
    assert checkpoint.has_sinusoids(20) and checkpoint.has_sinusoids(5000)
    released[15, 400] += 2e-5
    assert checkpoint.has_sinusoids(15) and not checkpoint.has_sinusoids(16)


def test_a_part_of_a_larger_module_is_recognized():
    state = xmodaler("updown")
    names = systems.recognize("xmodaler", state).names
    for part in ("net.", "model.net."):
        larger = {part + name: value for name, value in state.items()}
        larger |= {"criterion.weight": np.ones(V), "val_acc.total": np.zeros(())}
        result = systems.recognize("xmodaler", larger)
        assert result.system == "updown" and result.names == names


def test_an_empty_tensor_is_refused():
    """Its other axis may have any length, and the model would take the memory for it."""
    state = xmodaler("updown")
    state["visual_embed.embeddings.weight"] = np.zeros((0, 1 << 26), np.float32)
    with pytest.raises(ValueError, match="visual_embed.embeddings.weight is empty"):
        systems.recognize("xmodaler", state)
