"""The options of every registered system: names, order, types and defaults."""

import dataclasses
import typing

import pytest

from tfcap import configs, pretrained
from tfcap.models import registry

# A changed default changes recipes and registered experiments that do not give the key.
DEFAULTS = {
    "xlan": dict(
        width=1024,
        heads=8,
        encoder_layers=4,
        decoder_layers=1,
        middle_width=None,
        attention="xlinear",
        attention_width=512,
        activation="celu",
        embed_activation="celu",
        flavour="released",
        word_dropout=0.5,
        region_dropout=0.5,
        middle_dropout=0.1,
        encoder_dropout=0.5,
        decoder_dropout=0.5,
        bifeat_dropout=0.3,
        context_dropout=0.5,
        head_dropout=0.5,
    ),
    "xtransformer": dict(
        width=768,
        heads=8,
        encoder_layers=6,
        decoder_layers=6,
        inner_width=None,
        middle_width=None,
        activation="celu",
        word_dropout=0.1,
        region_dropout=0.5,
        middle_dropout=0.1,
        encoder_dropout=0.5,
        decoder_dropout=0.5,
        bifeat_dropout=0.3,
        feed_forward_dropout=0.5,
        head_dropout=0.5,
        stored_positions=False,
    ),
    "updown": dict(
        width=1024,
        attention_width=512,
        embed_regions=True,
        embed_activation="relu",
        embed_mean=False,
        word_dropout=0.5,
        region_dropout=0.5,
        head_dropout=0.5,
    ),
    "attention_lstm": dict(
        width=1024,
        attention_width=512,
        embed_activation="relu",
        word_dropout=0.5,
        region_dropout=0.5,
        head_dropout=0.5,
    ),
    "aoanet": dict(
        width=1024,
        heads=8,
        refiner_layers=6,
        word_dropout=0.5,
        region_dropout=0.5,
        weight_dropout=0.1,
        aoa_dropout=0.3,
        block_dropout=0.1,
        context_dropout=0.5,
        head_dropout=0.5,
    ),
    "att2in": dict(
        width=512,
        attention_width=512,
        attend="in",
        word_dropout=0.5,
        region_dropout=0.5,
        head_dropout=0.5,
    ),
    "show_tell": dict(
        **dict(width=512, cell="lstm"),
        **dict(word_dropout=0.3, region_dropout=0.3, head_dropout=0.3),
    ),
    "lstm_a": dict(
        width=1024,
        attributes=1000,
        word_dropout=0.3,
        region_dropout=0.3,
        attribute_dropout=0.3,
        head_dropout=0.5,
    ),
    "gcn_lstm": dict(
        width=1024,
        attention_width=512,
        regions=36,
        labels=21,
        word_dropout=0.5,
        region_dropout=0.5,
        attention_dropout=0.5,
        input_dropout=0.5,
        head_dropout=0.5,
    ),
    "transformer": dict(
        width=512,
        heads=8,
        encoder_layers=6,
        decoder_layers=6,
        inner_width=None,
        word_dropout=0.1,
        region_dropout=0.5,
        weight_dropout=0.1,
        block_dropout=0.1,
        head_dropout=0.5,
        stored_positions=False,
    ),
    "expansionnet": dict(
        width=768,
        heads=8,
        encoder_layers=3,
        decoder_layers=3,
        inner_width=2048,
        encoder_block="static",
        encoder_vectors=64,
        decoder_block="dynamic",
        decoder_vectors=16,
        reduce=True,
        positions=74,
        region_dropout=0.3,
        word_dropout=0.3,
        block_dropout=0.3,
        reduce_dropout=0.3,
    ),
    "mrnn": dict(
        variant="base",
        embed_width=128,
        width=256,
        multimodal_width=512,
        word_dropout=0.0,
        region_dropout=0.0,
        head_dropout=0.0,
    ),
    "mrnn_shared": dict(
        variant="multimodal",
        embed_width=1024,
        width=2048,
        multimodal_width=2048,
        word_dropout=0.5,
        recurrent_dropout=0.5,
        head_dropout=0.5,
    ),
}
for _name in DEFAULTS.keys() - {"gcn_lstm", "lstm_a", "mrnn", "mrnn_shared", "show_tell"}:
    DEFAULTS[_name] |= {"region_positions": "none", "standardize": False}


def test_systems_are_the_keys_of_the_model_group_in_order():
    model = configs.Model()
    names = [field.name for field in dataclasses.fields(model)]
    assert names == ["type", *DEFAULTS] and model.type == "xtransformer"
    assert list(configs.SYSTEMS) == list(DEFAULTS)


@pytest.mark.parametrize("name", DEFAULTS)
def test_a_system_has_the_expected_options_and_defaults(name):
    group = configs.Model(type=name).get()
    assert list(group.as_dict().items()) == list(DEFAULTS[name].items())
    for key, hint in typing.get_type_hints(type(group)).items():
        if key in DEFAULTS[name]:
            value = DEFAULTS[name][key]
            assert hint == (int | None if value is None else type(value)), key


@pytest.mark.parametrize("name", DEFAULTS)
def test_the_registered_experiment_has_the_small_sizes(name):
    found = configs.resolve(name).task.model.get().as_dict()
    changed = {key for key in found if found[key] != DEFAULTS[name][key]}
    rates = {key: value for key, value in found.items() if key.endswith("_dropout")}
    assert changed - set(rates) <= {*registry.SMALL[name], "standardize"}
    assert set(rates.values()) == {0.1} and found.get("standardize", True)
    assert configs.resolve(f"{name}_scst").task.model.get().as_dict() == found


def test_copies_of_the_model_group_are_independent():
    first, second = configs.Model(), configs.Model()
    first.xlan.width = 8
    assert second.xlan.width == 1024
    assert configs.Task(model=first).replace(max_length=9).model.xlan.width == 8


def test_fine_tuning_has_the_model_of_the_packaged_captioner():
    packaged = configs.load(f"{pretrained.directory(pretrained.DEFAULT)}/params.yaml").task
    task = configs.resolve("finetune").task
    for key in ("model", "decoding", "max_length"):
        assert task.as_dict()[key] == packaged.as_dict()[key]
    assert task.init_checkpoint == pretrained.DEFAULT and task.remap_vocab
    assert task.model.updown.width != configs.resolve("updown").task.model.updown.width
