"""Every recipe: its command, what it resolves to; a step of training by cross-entropy.

`scst_recipes_test` has more on the recipes of self-critical training.
"""

import functools
import json

import pytest
from helpers import recipes
from helpers.recipes import RECIPES, header, named, resolve

from tfcap import configs, models, runs
from tfcap.configs.systems import SYSTEMS
from tfcap.training import optim, schedules
from tfcap.training.task import CaptionTask

EACH = pytest.mark.parametrize("recipe", RECIPES, ids=recipes.short)
# Keys that a schedule does not read.
UNREAD = {"noam": ("decay_steps",), "constant": ("warmup_steps", "decay_steps")}


def expansion(encoder, decoder, **options):
    """The model of a row of ExpansionNet's tables 2 and 3: (block, vectors) of both stacks."""

    def block(side, kind, vectors):
        chosen = {f"{side}_block": kind}
        return chosen | ({f"{side}_vectors": vectors} if vectors else {})

    sizes = dict(width=512, inner_width=2048, reduce=False, heads=8)
    sizes |= dict(encoder_layers=3, decoder_layers=3) | options
    return sizes | block("encoder", *encoder) | block("decoder", *decoder)


# The model of the rows of ablation tables (docs/systems.md 4.6, 5.7).
ABLATIONS = {
    "coco/xlan_row1_xe": dict(encoder_layers=0, attention="additive"),
    "coco/xlan_row2_xe": dict(encoder_layers=0, activation="relu"),
    "coco/xlan_row3_xe": dict(encoder_layers=1, activation="relu"),
    "coco/xlan_row4_xe": dict(encoder_layers=2, activation="relu"),
    "coco/xlan_row5_xe": dict(encoder_layers=3, activation="relu"),
    "coco/xlan_row6_xe": dict(encoder_layers=4, activation="relu"),
    "coco/xlan_xe": dict(encoder_layers=4, activation="celu"),
    "coco/xlan_xmodaler_xe": dict(embed_activation="relu"),
    "coco/expansionnet_base_xe": expansion(
        ("attention", 0), ("attention", 0), encoder_layers=6, decoder_layers=6
    ),
    "coco/expansionnet_base_aoa_xe": expansion(("aoa", 0), ("aoa", 0)),
    "coco/expansionnet_static64_base_xe": expansion(("static", 64), ("attention", 0)),
    "coco/expansionnet_dyn1_base_xe": expansion(("dynamic", 1), ("attention", 0)),
    "coco/expansionnet_dyn8_base_xe": expansion(("dynamic", 8), ("attention", 0)),
    "coco/expansionnet_dyn16_base_xe": expansion(("dynamic", 16), ("attention", 0)),
    "coco/expansionnet_static64_dyn1_xe": expansion(("static", 64), ("dynamic", 1)),
    "coco/expansionnet_static64_dyn8_xe": expansion(("static", 64), ("dynamic", 8)),
    "coco/expansionnet_static64_dyn16_xe": expansion(("static", 64), ("dynamic", 16)),
}
# The recipe of each system that has all arguments as the class has them.
FULL = {
    "xlan": "coco/xlan_xe",
    "xtransformer": "coco/xtransformer_xe",
    "updown": "coco/updown_xe",
    "attention_lstm": "coco/attention_lstm_xe",
    "aoanet": "coco/aoanet_xe",
    "att2in": "coco/att2in_xe",
    "lstm_a": "coco/lstm_a_xe",
    "gcn_lstm": "coco/gcn_lstm_xe",
    "show_tell": "coco/show_tell_xe",
    "transformer": "coco/transformer_xe",
    "expansionnet": "coco/expansionnet_xe",
    "mrnn": "flickr30k/mrnn_xe",
    "mrnn_shared": "coco/mrnn_tensorflow_xe",
}
# The variants of m-RNN (docs/systems.md 6.2).
VARIANTS = (
    *("base", "no_emb_input", "one_layer_emb", "emb_one_input"),
    *("vis_in_rnn", "vis_in_rnn_both", "vis_in_rnn_both_shared"),
)


# ---- headers ------------------------------------------------------------------------------------


@EACH
def test_the_command_of_a_header_trains_that_very_recipe(recipe):
    flags = header(recipe).flags
    assert len(flags["experiment"]) == len(flags["model_dir"]) == 1
    assert flags["config_file"][-1] == recipe and set(flags["config_file"]) <= set(RECIPES)


def test_no_two_recipes_train_in_the_same_directory():
    places = [place for recipe in RECIPES for place in header(recipe).flags["model_dir"]]
    assert len(set(places)) == len(places) == len(RECIPES)


# ---- what they resolve to -----------------------------------------------------------------------


@functools.cache
def small_values(experiment):
    """The leaves of a registered experiment, by dotted key."""
    return {key: value for key, value, _ in configs.leaves(configs.resolve(experiment))}


@functools.cache
def default_values(system):
    """The leaves of a configuration with nothing set, by dotted key."""
    task = configs.Task(model=configs.Model(type=system))
    plain = configs.Experiment(task=task, trainer=configs.Trainer(), runtime=configs.Runtime())
    return {key: value for key, value, _ in configs.leaves(plain)}


@EACH
def test_a_recipe_sets_every_value_that_the_small_experiment_changes(recipe):
    """No value for the built-in shapes, which no paper has, is left in a recipe."""
    [experiment], system = header(recipe).flags["experiment"], header(recipe).system
    params = resolve(recipe)
    assert params.task.model.type == system in SYSTEMS
    kind = "scst" if experiment.endswith("_scst") else "xe"
    assert params.task.objective == kind and recipe.endswith(f"_{kind}.yaml")
    usual, small = default_values(system), small_values(experiment)
    unread = UNREAD.get(params.trainer.optimizer_config.schedule.name, ())
    left = {key for key in small if key in usual and small[key] != usual[key]}
    left -= recipes.given(recipe)
    assert {key for key in left if key.rpartition(".")[2] not in unread} == set()


@EACH
def test_some_command_makes_the_data_and_the_initial_weights(recipe):
    prepared = {header(name).prepared for name in RECIPES} - {""}
    params, own = resolve(recipe), header(recipe).prepared
    assert params.task.data_dir == own if own else params.task.data_dir in prepared
    start = params.task.init_checkpoint
    assert not start or len(set(recipes.trained_by(start)) - {recipe}) == 1
    assert params.trainer.validation_interval <= params.trainer.train_steps


@pytest.mark.parametrize("name", ABLATIONS)
def test_a_row_of_an_ablation_has_its_model(name):
    model = resolve(named(name)).task.model.get().as_dict()
    assert ABLATIONS[name].items() <= model.items()


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_variant_of_mrnn_has_its_model(variant):
    name = "mrnn" if variant == "base" else f"mrnn_{variant}"
    model = resolve(named(f"flickr30k/{name}_xe")).task.model.mrnn
    assert model.variant == variant and model.width == 256


@pytest.mark.parametrize("system", SYSTEMS)
def test_defaults_of_a_system_are_the_sizes_of_its_paper(system):
    """The registered experiments are smaller."""
    model = resolve(named(FULL[system])).task.model
    assert model.get().as_dict() == getattr(configs.Model(), system).as_dict()
    assert configs.resolve(system).task.model.get().as_dict() != model.get().as_dict()


@pytest.mark.parametrize(
    ("name", "rates"),
    [
        ("coco/xlan_xe", {1: 3.125e-8, 10000: 3.125e-4, 40000: 1.5625e-4}),
        ("coco/xtransformer_xe", {10000: 3.608e-4}),
        ("coco/gcn_lstm_xe", {8490: 5e-4, 8491: 4e-4}),
        ("coco/att2in_xe", {1: 5e-4, 33985: 4e-4}),
        ("coco/aoanet_xe", {1: 2e-4, 33984: 2e-4, 33985: 1.6e-4, 283200: 2e-4 * 0.8**8}),
        ("coco/updown_xe", {1: 5e-4, 10620: 5e-4, 10621: 4e-4, 106200: 5e-4 * 0.8**9}),
        ("coco/transformer_xe", {10000: 4.419e-4}),
        ("coco/expansionnet_xe", {9001: 2e-7, 10000: 2e-4, 23614: 2e-4, 23615: 1.6e-4}),
        ("coco/expansionnet_stage2_xe", {1: 5e-6, 56674: 5e-6}),
        ("coco/expansionnet_base_stage2_xe", {1: 5e-6, 56674: 5e-6}),
        ("coco/expansionnet_standard_xe", {10000: 2e-4, 113348: 2e-4, 113349: 1.6e-4}),
        ("coco/xtransformer_paper_xe", {10000: 3.608e-4}),
        ("coco/mrnn_tensorflow_xe", {1: 1.0, 310000: 1.0, 310001: 0.85, 320001: 0.7225}),
    ],
)
def test_learning_rates_are_the_published_ones(name, rates):
    """The rates by step follow docs/systems.md 6.5, 7.1, 7.3 and 7.4."""
    recipes.check_rates(named(name), rates)


# Systems of the X-LAN paper, and what the released configuration has beside that of the text.
TEXT = {"xlan": {}, "xtransformer": {"name": "radam", "beam": 2, "images": 160, "smoothing": 0.1}}


@pytest.mark.parametrize("system", TEXT)
def test_both_forms_of_a_system_of_the_xlan_paper(system):
    """The text: Adam, plain cross-entropy, 40 images, beam 3, 70 epochs (docs/systems.md 7.1)."""
    stated = {"name": "adam", "beam": 3, "images": 40, "smoothing": 0.0, "epochs": 70}
    for form, changed in (("paper_xe", {}), ("xe", TEXT[system])):
        params = resolve(named(f"coco/{system}_{form}"))
        images = params.task.train_data.global_batch_size
        assert {
            "name": params.trainer.optimizer_config.name,
            "beam": params.task.decoding.beam,
            "images": images,
            "smoothing": params.task.label_smoothing,
            "epochs": params.trainer.train_steps / (113287 // images),
        } == stated | changed


ROWS = sorted(name for name in ABLATIONS if "expansionnet" in name)


@pytest.mark.parametrize("name", ROWS)
def test_every_baseline_and_ablation_of_expansionnet_has_the_second_stage(name):
    """One epoch with batch 10 from the first stage; its SCST starts from it (section 4.3)."""
    first, second = resolve(named(name)), resolve(named(name.replace("_xe", "_stage2_xe")))
    assert recipes.trained_by(second.task.init_checkpoint) == [named(name)]
    assert second.task.model.as_dict() == first.task.model.as_dict()
    assert (first.trainer.train_steps, first.trainer.patience) == (12 * 11807, 2)
    assert (second.trainer.train_steps, second.trainer.patience) == (566747 // 10, 0)
    assert second.task.train_data.global_batch_size == 10
    scst = named(name.replace("_xe", "_scst"))
    if scst in RECIPES:
        start = recipes.trained_by(resolve(scst).task.init_checkpoint)
        assert start == [named(name.replace("_xe", "_stage2_xe"))]


def test_the_final_model_of_expansionnet_trains_longer_than_the_ablations():
    """Its second stage is optional, so that its SCST starts from the first."""
    final = resolve(named("coco/expansionnet_xe"))
    assert (final.trainer.train_steps, final.trainer.patience) == (25 * 11807, 2)
    start = resolve(named("coco/expansionnet_scst")).task.init_checkpoint
    assert recipes.trained_by(start) == [named("coco/expansionnet_xe")]


def test_scheduled_sampling_of_xlan_grows_from_epoch_12_to_57():
    """Epochs are counted from 0 (docs/systems.md 7.1)."""
    ramp = resolve(named("coco/xlan_xe")).task.scheduled_sampling
    epochs = {e: float(optim.sampling_probability(ramp, 2832 * e)) for e in (0, 11, 12, 56, 57, 69)}
    assert epochs == pytest.approx({0: 0, 11: 0, 12: 0.05, 56: 0.45, 57: 0.5, 69: 0.5})


# ---- what they build ----------------------------------------------------------------------------


@pytest.mark.slow
def test_models_searches_and_optimizers_accept_the_values_of_every_recipe():
    """Layers are made once each, at full width and without weights."""
    built = set()
    for recipe in RECIPES:
        params = resolve(recipe)
        options = params.task.model.get().as_dict()
        options |= {key: min(options[key], 1) for key in options if key.endswith("_layers")}
        key = (params.task.model.type, params.task.max_length, json.dumps(options))
        if key not in built:
            models.MODELS[params.task.model.type](9488, params.task.max_length, 2048, **options)
            built.add(key)
        runs.decoding_options(params.task.decoding, params.task.max_length)
        config = params.trainer.optimizer_config
        optim.optimizer(config, schedules.schedule(config.schedule, 64))
    assert len(built) > 20


# Cells, scheduled sampling and Adam; SGD. `scst_recipes_test` has expansions and RAdam.
@pytest.mark.parametrize(
    "name", [pytest.param("coco/xlan_xe", marks=pytest.mark.slow), "coco/mrnn_tensorflow_xe"]
)
def test_the_last_step_of_training_changes_the_weights_and_captions_follow(name):
    """The last step, where scheduled sampling draws most, and the configured search."""
    params = recipes.reduced(named(name))
    model = recipes.small_model(params)
    inputs = recipes.batch(images=2, captions=2)
    task = CaptionTask(params.task, None, params.trainer.optimizer_config)
    logs = recipes.check_step(task, model, inputs, params.trainer.train_steps)
    assert 0 < float(logs[task.loss]) < 20
    recipes.check_beam_search(params, model, inputs)
