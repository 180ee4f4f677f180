"""The recipes of self-critical training: their start, their values, and one training step."""

import numpy as np
import pytest
import tensorflow as tf
from helpers import recipes
from helpers.recipes import SELF_CRITICAL, VOCABULARY, header, named, resolve

from tfcap.data.document_frequency import document_frequencies
from tfcap.objectives import rewards
from tfcap.training import self_critical

EACH = pytest.mark.parametrize("recipe", SELF_CRITICAL, ids=recipes.short)
TRAINING_IMAGES = 113287  # of COCO in Karpathy's split
IMAGES, REFERENCES, LENGTH = 2, 3, 3

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
PLATEAU = {"coco/xlan_scst": 0.8, "coco/xtransformer_scst": 0.8, "coco/aoanet_scst": 0.5}


def options(recipe):
    """The arguments of the model of a recipe."""
    return resolve(recipe).task.model.get().as_dict()


def test_every_recipe_on_coco_has_its_batch_and_its_epochs():
    assert {recipe for recipe in SELF_CRITICAL if "/coco/" in recipe} == set(map(named, TABLE))


@EACH
def test_training_starts_from_cross_entropy_of_the_same_model_and_data(recipe):
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
    differs = {key for key, value in options(recipe).items() if value != options(start)[key]}
    assert all(key.endswith("_dropout") for key in differs)
    files = header(recipe).flags["config_file"]
    trained = header(start).flags["config_file"]
    assert start.endswith("_stage2_xe.yaml") or set(trained) < set(files)


def test_the_faster_way_of_a_header_takes_the_gradient_from_a_second_pass():
    found = False
    for recipe in SELF_CRITICAL:
        faster = header(recipe).fields.get("Faster", "")
        _, _, override = faster.partition("--params_override=")
        if override:
            other = resolve(recipe, override.partition(":")[0]).task.self_critical.gradient
            assert other == "rescoring"
            found = True
    assert found


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
    """By step, docs/systems.md 7.1, 7.3 and 7.4; X-LAN and X-Transformer also have a plateau."""
    recipes.check_rates(named(name), rates)
    schedule = resolve(named(name)).trainer.optimizer_config.schedule
    assert schedule.plateau_patience == (3 if name in PLATEAU else 0)
    assert schedule.plateau_factor == PLATEAU.get(name, schedule.plateau_factor)


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("coco/xlan_scst", ("adam", 0.999, 1e-8, "value")),
        ("coco/xlan_xmodaler_scst", ("adam", 0.999, 1e-8, "value")),
        ("coco/xtransformer_scst", ("radam", 0.999, 1e-8, "value")),
        ("coco/xlan_paper_scst", ("adam", 0.999, 1e-8, "value")),
        ("coco/xtransformer_paper_scst", ("adam", 0.999, 1e-8, "value")),
        ("coco/transformer_scst", ("adam", 0.999, 1e-8, "value")),
        ("coco/expansionnet_scst", ("radam", 0.98, 1e-9, "none")),
    ],
)
def test_optimizers_are_the_released_ones(name, values):
    found = resolve(named(name)).trainer.optimizer_config
    assert (found.name, found.beta_2, found.epsilon, found.clip) == values
    assert found.beta_1 == 0.9 and found.clip_threshold == 0.1
    assert found.early_steps == ("none" if "expansionnet" in name else "momentum")


def test_dropout_is_the_released_one():
    """The values that differ from cross-entropy (docs/systems.md 2.5 and 7.3)."""
    for name, changed in {
        "coco/xlan": dict(middle_dropout=0, head_dropout=0),
        "coco/xtransformer": dict(decoder_dropout=0.1, bifeat_dropout=0.1, head_dropout=0),
        "coco/xlan_xmodaler": {},
        "coco/transformer": {},
        "coco/expansionnet": dict.fromkeys(
            ("region_dropout", "word_dropout", "block_dropout", "reduce_dropout"), 0.1
        ),
    }.items():
        assert options(named(f"{name}_scst")) == options(named(f"{name}_xe")) | changed, name


def test_expansionnet_searches_with_five_beams_and_others_as_after_cross_entropy():
    for recipe in SELF_CRITICAL:
        [start] = recipes.trained_by(resolve(recipe).task.init_checkpoint)
        beam = 5 if "expansionnet" in recipe else resolve(start).task.decoding.beam
        old, new = resolve(start).task.decoding, resolve(recipe).task.decoding
        assert new.as_dict() == old.as_dict() | {"beam": beam}


# ---- a step of two ------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def references():
    """References of random words [B, C, T], and the table of their n-grams."""
    rng = np.random.default_rng(5)
    tokens = rng.integers(3, VOCABULARY, (IMAGES, REFERENCES, LENGTH))
    tokens[..., -1] = 2
    return tokens, document_frequencies(tokens[..., :-1].tolist())


# Both baselines, both conventions of the reward, with and without micro-batches.
@pytest.mark.slow
@pytest.mark.parametrize("name", ["coco/updown_scst", "coco/expansionnet_static64_dyn1_scst"])
def test_the_last_step_of_training_changes_the_weights_and_captions_follow(name, references):
    """The last step of training and the configured search, at reduced width."""
    recipe = named(name)
    parts = min(resolve(recipe).task.micro_batches, IMAGES)
    params = recipes.reduced(recipe, max_length=LENGTH, micro_batches=parts)
    model = recipes.small_model(params)
    tokens, table = references
    config = params.task.self_critical
    reward = rewards.Reward(table, VOCABULARY, **config.reward.as_dict())
    task = self_critical.SelfCriticalTask(
        params.task, None, params.trainer.optimizer_config, reward=reward
    )
    inputs = recipes.batch(IMAGES, captions=2)
    inputs |= {"references": reward.references(tf.constant(tokens, tf.int32))}
    metrics = task.build_metrics()
    logs = recipes.check_step(task, model, inputs, params.trainer.train_steps, metrics)
    assert np.isfinite(logs[task.loss])
    values = {metric.name: float(metric.result()) for metric in metrics}
    assert 0 < values["reward"] < 10 and values["advantage_spread"] > 0
    assert 0 < values["entropy"] < 2 * np.log(VOCABULARY) and 0 < values["length"] <= LENGTH
    recipes.check_beam_search(params, model, inputs)
