"""The recipes of self-critical training: where they start, what they set, a step of each."""

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

# Published CIDEr, images per step and epochs of each row (docs/systems.md 7.1 to 7.4, 14).
TABLE = {
    "coco/xlan_scst": ("132.0", 20, 35),
    "coco/xlan_xmodaler_scst": ("131.0", 20, 35),
    "coco/xtransformer_scst": ("132.8", 32, 60),
    "coco/transformer_scst": ("130.0", 64, 30),
    "coco/updown_scst": ("124.7", 64, 30),
    "coco/attention_lstm_scst": ("123.1", 64, 30),
    "coco/expansionnet_scst": ("131.4", 64, 35),
    "coco/expansionnet_base_scst": ("128.2", 64, 35),
    "coco/expansionnet_base_aoa_scst": ("129.2", 64, 35),
    "coco/expansionnet_static64_dyn1_scst": ("129.3", 64, 35),
    "coco/expansionnet_static64_dyn16_scst": ("130.2", 64, 35),
}


def options(recipe):
    """The arguments of the model of a recipe."""
    return resolve(recipe).task.model.get().as_dict()


def test_every_row_is_in_the_table():
    assert {recipe for recipe in SELF_CRITICAL if "/coco/" in recipe} == set(map(named, TABLE))


@EACH
def test_starts_from_the_cross_entropy_of_the_same_model(recipe):
    """Same data and words, and a model that differs in nothing but dropout."""
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


@EACH
def test_header_names_the_route_of_the_gradient(recipe):
    """The released code's way through the loop, or ours; the header says how to have the other."""
    sampling = resolve(recipe).task.self_critical.gradient == "sampling"
    faster = header(recipe).fields.get("Faster", "")
    assert sampling == bool(faster)
    if recipe in map(named, TABLE):
        assert sampling
        _, _, override = faster.partition("--params_override=")
        if override:
            other = resolve(recipe, override.partition(":")[0]).task.self_critical.gradient
            assert other == "rescoring"
        else:
            assert "as in expansionnet_scst.yaml" in faster


@pytest.mark.parametrize("name", TABLE)
def test_row_of_a_table(name):
    cider, images, epochs = TABLE[name]
    params = resolve(named(name))
    assert f"CIDEr {cider}" in header(named(name)).fields["Expected"]
    assert params.task.train_data.global_batch_size == images
    steps = TRAINING_IMAGES // images
    assert params.trainer.train_steps == epochs * steps
    assert params.trainer.validation_interval == params.trainer.checkpoint_interval == steps
    scst = params.task.self_critical
    jdai = scst.baseline == "greedy"
    assert jdai == ("expansionnet" not in name)
    assert scst.samples == 5 and scst.reward.cider == 1 and scst.reward.count_eos
    assert scst.reduction == ("words" if jdai else "sequences")
    assert scst.reward.convention == ("jdai" if jdai else "expansionnet")
    assert params.task.micro_batches == (1 if jdai else 4)


@pytest.mark.parametrize(
    ("name", "rates"),
    [
        ("coco/xlan_scst", {1: 1e-5, 198240: 1e-5}),
        ("coco/xtransformer_scst", {1: 1e-5, 212400: 1e-5}),
        ("coco/transformer_scst", {1: 1e-5, 53100: 1e-5}),
        ("coco/updown_scst", {1: 5e-5, 53100: 5e-5}),
        ("coco/attention_lstm_scst", {1: 5e-5, 17700: 5e-5, 17701: 4e-5, 53100: 3.2e-5}),
        ("coco/xlan_xmodaler_scst", {1: 1e-5, 56640: 1e-5, 56641: 8e-6, 198240: 5.12e-6}),
        ("coco/expansionnet_scst", {1: 1e-4, 3540: 1e-4, 3541: 8e-5, 61950: 1e-4 * 0.8**17}),
    ],
)
def test_published_rates(name, rates):
    """By step, of docs/systems.md 7.1, 7.3 and 7.4; X-LAN and X-Transformer wait for a plateau."""
    recipes.check_rates(named(name), rates)
    schedule = resolve(named(name)).trainer.optimizer_config.schedule
    plateau = name in ("coco/xlan_scst", "coco/xtransformer_scst")
    assert schedule.plateau_patience == (3 if plateau else 0)
    assert not plateau or schedule.plateau_factor == 0.8


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("coco/xlan_scst", ("adam", 0.999, 1e-8, "value")),
        ("coco/xlan_xmodaler_scst", ("adam", 0.999, 1e-8, "value")),
        ("coco/xtransformer_scst", ("radam", 0.999, 1e-8, "value")),
        ("coco/transformer_scst", ("adam", 0.999, 1e-8, "value")),
        ("coco/expansionnet_scst", ("radam", 0.98, 1e-9, "none")),
    ],
)
def test_released_optimizers(name, values):
    found = resolve(named(name)).trainer.optimizer_config
    assert (found.name, found.beta_2, found.epsilon, found.clip) == values
    assert found.beta_1 == 0.9 and found.clip_threshold == 0.1
    assert found.early_steps == ("none" if "expansionnet" in name else "momentum")


def test_released_dropout():
    """Where it is not that of cross-entropy (docs/systems.md 2.5 and 7.3)."""
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


def test_published_search():
    """Beam 5 after self-critical training is ExpansionNet's; the others search as before."""
    for recipe in SELF_CRITICAL:
        [start] = recipes.trained_by(resolve(recipe).task.init_checkpoint)
        beam = 5 if "expansionnet" in recipe else resolve(start).task.decoding.beam
        old, new = resolve(start).task.decoding, resolve(recipe).task.decoding
        assert new.as_dict() == old.as_dict() | {"beam": beam}


# ---- a step of each -----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def words():
    """References of random words, and the table of their n-grams."""
    rng = np.random.default_rng(5)
    found = rng.integers(3, VOCABULARY, (IMAGES, REFERENCES, LENGTH))
    found[..., -1] = 2
    return found, document_frequencies(found[..., :-1].tolist())


@EACH
def test_step_and_beam_search(recipe, words):
    """The last step of its training and its decoding, at reduced width."""
    parts = min(resolve(recipe).task.micro_batches, IMAGES)
    params = recipes.reduced(recipe, max_length=LENGTH, micro_batches=parts)
    model = recipes.small_model(params)
    references, table = words
    config = params.task.self_critical
    reward = rewards.Reward(table, VOCABULARY, **config.reward.as_dict())
    task = self_critical.SelfCriticalTask(
        params.task, None, params.trainer.optimizer_config, reward=reward
    )
    inputs = recipes.batch(IMAGES, captions=2)
    judged = inputs | {"references": reward.references(tf.constant(references, tf.int32))}
    metrics = task.build_metrics()
    logs = recipes.check_step(task, model, judged, params.trainer.train_steps, metrics)
    assert np.isfinite(logs[task.loss])
    found = {metric.name: float(metric.result()) for metric in metrics}
    assert 0 < found["reward"] < 10 and found["advantage_spread"] > 0
    assert 0 < found["entropy"] < 2 * np.log(VOCABULARY) and 0 < found["length"] <= LENGTH
    recipes.check_beam_search(params, model, inputs)
