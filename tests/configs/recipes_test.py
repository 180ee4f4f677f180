"""Every recipe: its command, what it resolves to, and a step of training with some of them."""

import functools
import json

import numpy as np
import pytest
import tensorflow as tf
from helpers import recipes
from helpers.recipes import RECIPES, SELF_CRITICAL, VOCABULARY, header, named, resolve

from tfcap import configs, decoding, models
from tfcap.data.document_frequency import document_frequencies
from tfcap.objectives import rewards
from tfcap.training import optim, self_critical
from tfcap.training.task import CaptionTask

EACH = pytest.mark.parametrize("recipe", RECIPES, ids=recipes.short)
# Keys that a schedule does not read.
UNREAD = {"noam": ("decay_steps",), "constant": ("warmup_steps", "decay_steps")}
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
TRAINING_IMAGES = 113287  # of COCO in Karpathy's split
# Images per step and epochs of each row (docs/systems.md 7.1 to 7.4).
TABLE = {
    "coco/xlan_scst": (20, 35),
    "coco/xlan_paper_scst": (40, 35),
    "coco/xlan_xmodaler_scst": (20, 35),
    "coco/xtransformer_scst": (32, 60),
    "coco/xtransformer_paper_scst": (40, 35),
    "coco/transformer_scst": (64, 30),
    "coco/updown_scst": (64, 30),
    "coco/attention_lstm_scst": (64, 30),
    "coco/show_tell_scst": (64, 30),
    "coco/aoanet_scst": (10, 15),
    "coco/att2in_scst": (10, 20),
    "coco/att2all_scst": (10, 20),
    "coco/fc_scst": (10, 20),
    "coco/lstm_a_scst": (16, 30),
    "coco/gcn_lstm_scst": (144, 60),
    "coco/expansionnet_scst": (64, 35),
    "coco/expansionnet_batch32_scst": (32, 35),
    "coco/expansionnet_standard_scst": (10, 30),
    "coco/expansionnet_base_scst": (64, 35),
    "coco/expansionnet_base_aoa_scst": (64, 35),
    "coco/expansionnet_static64_dyn1_scst": (64, 35),
    "coco/expansionnet_static64_dyn16_scst": (64, 35),
}


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
    """The values of a registered experiment, by dotted key."""
    return configs.values(configs.resolve(experiment))


@functools.cache
def default_values(system):
    """The values of a configuration with nothing set, by dotted key."""
    task = configs.Task(model=configs.Model(type=system))
    return configs.values(configs.Experiment(task=task))


@EACH
def test_a_recipe_sets_every_value_that_the_small_experiment_changes(recipe):
    """No value for the built-in shapes, which no paper has, is left in a recipe."""
    [experiment], system = header(recipe).flags["experiment"], header(recipe).system
    params = resolve(recipe)
    assert params.task.model.type == system in configs.SYSTEMS
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


@pytest.mark.parametrize("system", FULL)
def test_defaults_of_a_system_are_the_sizes_of_its_paper(system):
    """The registered experiments are smaller."""
    model = resolve(named(FULL[system])).task.model
    assert model.get().as_dict() == configs.Model(type=system).get().as_dict()


@pytest.mark.parametrize("recipe", SELF_CRITICAL, ids=recipes.short)
def test_self_critical_training_starts_from_cross_entropy_of_the_same_model_and_data(recipe):
    """Data and vocabulary are the same; the models differ only in dropout."""
    [start] = recipes.trained_by(resolve(recipe).task.init_checkpoint)
    assert start in recipes.CROSS_ENTROPY
    new, old = resolve(recipe).task, resolve(start).task
    for key in ("data_dir", "validation_data", "metrics"):
        assert getattr(new, key) == getattr(old, key), key
    assert new.train_data.max_regions == old.train_data.max_regions
    assert (new.model.type, new.max_length) == (old.model.type, old.max_length) or (
        "/expansionnet_" in recipe and (new.max_length, old.max_length) == (20, 53)
    )
    differs = {
        key
        for key, value in new.model.get().as_dict().items()
        if value != old.model.get().as_dict()[key]
    }
    assert all(key.endswith("_dropout") for key in differs)


@pytest.mark.parametrize("name", TABLE)
def test_batch_length_and_reward_are_the_published_ones(name):
    images, epochs = TABLE[name]
    params = resolve(named(name))
    assert params.task.train_data.global_batch_size == images
    steps = TRAINING_IMAGES // images
    assert params.trainer.train_steps == epochs * steps
    assert params.trainer.validation_interval == params.trainer.checkpoint_interval == steps
    scst = params.task.self_critical
    jdai = scst.baseline == "greedy"
    assert jdai == ("expansionnet" not in name)
    assert scst.gradient == "sampling"  # through the loop, as the released code does
    assert scst.samples == 5 and scst.reward.cider == 1 and scst.reward.count_eos
    assert scst.reduction == ("words" if jdai else "sequences")
    assert scst.reward.convention == ("jdai" if jdai else "expansionnet")
    assert params.task.micro_batches == (1 if jdai else max(1, images // 16))


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
        ("coco/xlan_scst", {1: 1e-5, 198240: 1e-5}),
        ("coco/xtransformer_scst", {1: 1e-5, 212400: 1e-5}),
        ("coco/transformer_scst", {1: 1e-5, 53100: 1e-5}),
        ("coco/updown_scst", {1: 5e-5, 53100: 5e-5}),
        ("coco/gcn_lstm_scst", {23580: 5e-5, 23581: 4e-5, 47160: 4e-5}),
        ("coco/aoanet_scst", {1: 2e-5, 169920: 2e-5}),
        ("coco/attention_lstm_scst", {1: 5e-5, 17700: 5e-5, 17701: 4e-5, 53100: 3.2e-5}),
        ("coco/xlan_xmodaler_scst", {1: 1e-5, 56640: 1e-5, 56641: 8e-6, 198240: 5.12e-6}),
        ("coco/xlan_paper_scst", {1: 1e-5, 99120: 1e-5}),
        ("coco/xtransformer_paper_scst", {1: 1e-5, 99120: 1e-5}),
        ("coco/show_tell_scst", {1: 5e-5, 53100: 5e-5}),
        ("coco/expansionnet_scst", {1: 1e-4, 3540: 1e-4, 3541: 8e-5, 61950: 1e-4 * 0.8**17}),
        ("coco/expansionnet_batch32_scst", {7080: 1e-4, 7081: 8e-5, 123900: 1e-4 * 0.8**17}),
    ],
)
def test_learning_rates_are_the_published_ones(name, rates):
    """The rates by step follow docs/systems.md 6.5, 7.1, 7.3 and 7.4."""
    recipes.check_rates(named(name), rates)


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
        decoding.Options(**params.task.decoding.as_dict())
        config = params.trainer.optimizer_config
        optim.optimizer(config, optim.schedule(config.schedule, 64))
    assert len(built) > 20


# Cells, scheduled sampling and Adam; SGD. The next test has expansions and RAdam.
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


@pytest.fixture(scope="module")
def references():
    """References of random words [B, C, T], and the table of their n-grams."""
    rng = np.random.default_rng(5)
    tokens = rng.integers(3, VOCABULARY, (2, 3, 3))
    tokens[..., -1] = 2
    return tokens, document_frequencies(tokens[..., :-1].tolist())


# Both baselines, both conventions of the reward, with and without micro-batches.
@pytest.mark.slow
@pytest.mark.parametrize("name", ["coco/updown_scst", "coco/expansionnet_static64_dyn1_scst"])
def test_the_last_step_of_self_critical_training_changes_the_weights(name, references):
    """The last step of training and the configured search, at reduced width."""
    recipe = named(name)
    parts = min(resolve(recipe).task.micro_batches, 2)
    params = recipes.reduced(recipe, max_length=3, micro_batches=parts)
    model = recipes.small_model(params)
    tokens, table = references
    config = params.task.self_critical
    reward = rewards.Reward(table, VOCABULARY, **config.reward.as_dict())
    task = self_critical.SelfCriticalTask(
        params.task, None, params.trainer.optimizer_config, reward=reward
    )
    inputs = recipes.batch(images=2, captions=2)
    inputs |= {"references": reward.references(tf.constant(tokens, tf.int32))}
    metrics = task.build_metrics()
    logs = recipes.check_step(task, model, inputs, params.trainer.train_steps, metrics)
    assert np.isfinite(logs[task.loss])
    values = {metric.name: float(metric.result()) for metric in metrics}
    assert 0 < values["reward"] < 10 and values["advantage_spread"] > 0
    assert 0 < values["entropy"] < 2 * np.log(VOCABULARY) and 0 < values["length"] <= 3
    recipes.check_beam_search(params, model, inputs)
