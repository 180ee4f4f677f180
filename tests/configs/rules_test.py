"""Values that a configuration refuses, with the key, the value and what it must be."""

import pytest
import yaml

from tfcap import configs
from tfcap.models import att2in, show_tell

X = "xtransformer"
RATE = "trainer.optimizer_config.schedule.learning_rate"


def _refusal(override):
    with pytest.raises(ValueError) as caught:
        configs.resolve(X, override=override)
    return str(caught.value)


@pytest.mark.parametrize(
    ("override", "parts"),
    [
        (f"{RATE}=1e-3", [f"{RATE} must be float", "'1e-3' (str)", "write 1.0e-3, since YAML"]),
        (f"{RATE}=25E4", ["'25E4' (str); write 25.0e+4, since YAML reads 25E4 as text"]),
        (f"{RATE}=-.5e1", ["write -0.5e+1, since"]),
        ("trainer.train_steps=1e5", ["train_steps must be int", "'1e5' (str); write 100000"]),
        ("trainer.train_steps=1.0e+5", ["train_steps must be int", "(float); write 100000"]),
        ("task.max_length=true", ["task.max_length must be int", "True (bool)"]),
        ("task.label_smoothing=false", ["task.label_smoothing must be float", "False"]),
        ("task.max_length=3.0", ["task.max_length must be int", "3.0 (float)"]),
        ("task.max_length=many", ["task.max_length must be int", "'many' (str)"]),
        ("task.train_data.is_training=1", ["is_training must be bool", "1 (int)"]),
        ("task.metrics=BLEU", ["task.metrics must be list", "'BLEU'"]),
        ("task.metrics=[BLEU,3]", ["task.metrics must be list", "3"]),
        ("task: {data_dir: null}", ["task.data_dir must be str", "None"]),
        ("task.model=3", ["task.model must be a group of keys", "3", "xtransformer"]),
        ("task: null", ["task must be a group of keys", "None"]),
        ("runtime=[1]", ["runtime must be a group of keys", "[1]"]),
    ],
)
def test_a_wrong_type_is_refused(override, parts):
    message = _refusal(override)
    assert all(part in message for part in parts), message


@pytest.mark.parametrize(
    "override",
    [
        f"{RATE}=e5",
        f"{RATE}=nan",
        "task.max_length=1e-3",
        "task.seed=1.5e+400",
        "task.seed=1e300",
        "task.seed=.",
    ],
)
def test_a_number_that_no_form_can_hold_has_no_hint(override):
    assert "; write" not in _refusal(override)


@pytest.mark.parametrize("text", ["25.0e+4", "-0.5e+1", "1.0e-3"])
def test_the_form_of_the_hint_is_a_number(text):
    assert yaml.safe_load(text) == float(text)


def test_an_int_is_accepted_for_a_float():
    params = configs.resolve(X, override=f"task.label_smoothing=0,{RATE}=1.0e-3")
    assert params.task.label_smoothing == 0
    assert params.trainer.optimizer_config.schedule.learning_rate == 0.001


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("task.model.type", "lstm"),
        ("task.model.xtransformer.heads", "0"),
        ("task.model.xtransformer.inner_width", "-3"),
        ("task.model.xtransformer.encoder_layers", "-1"),
        ("task.model.xtransformer.decoder_layers", "0"),
        ("task.model.xtransformer.head_dropout", "1.0"),
        ("task.model.xtransformer.activation", "gelu"),
        ("task.train_data.global_batch_size", "0"),
        ("task.validation_data.captions_per_image", "0"),
        ("task.max_length", "1"),
        ("task.label_smoothing", "-0.1"),
        ("task.seed", "-1"),
        ("task.metrics", "[BLEU, ROUGE]"),
        ("task.decoding.beam", "0"),
        ("task.decoding.finished", "stop"),
        ("trainer.train_steps", "0"),
        ("task.model.show_tell.cell", "gru"),
        ("task.model.att2in.attend", "out"),
        ("task.model.gcn_lstm.labels", "0"),
        ("task.model.gcn_lstm.regions", "0"),
        ("task.model.lstm_a.attributes", "0"),
        ("task.model.xlan.embed_activation", "gelu"),
        ("trainer.validation_steps", "-2"),
        ("trainer.eval_tf_while_loop", "true"),
        ("trainer.max_to_keep", "0"),
        ("trainer.shown_images", "-1"),
        ("trainer.best_checkpoint_metric_comp", "larger"),
        ("trainer.best_checkpoint_eval_metric", "BLEU"),
        ("trainer.best_checkpoint_eval_metric", "ROUGE-1"),
        ("trainer.summary_interval", "30"),
        ("trainer.optimizer_config.name", "adagrad"),
        ("trainer.optimizer_config.clip_threshold", "0.0"),
        ("trainer.optimizer_config.beta_2", "1.0"),
        ("trainer.optimizer_config.schedule.name", "cosine"),
        (RATE, ".nan"),
        (RATE, ".inf"),
        (RATE, "-0.1"),
        ("runtime.mixed_precision_dtype", "float8"),
        ("runtime.replicas", "-1"),
    ],
)
def test_an_impossible_value_is_refused(key, value):
    message = _refusal(f"{key}={value}")
    received = yaml.safe_load(value)
    assert message.startswith(f"{key} must be") and f"Received: {received!r}" in message


@pytest.mark.parametrize(
    ("key", "values"),
    [
        ("task.model.show_tell.cell", show_tell.CELLS),
        ("task.model.att2in.attend", att2in.ATTEND),
        ("task.model.xlan.embed_activation", ["celu", "relu", "none"]),
        ("trainer.validation_steps", [-1, 0, 1]),
    ],
)
def test_every_value_that_the_code_takes_is_accepted(key, values):
    for value in values:
        params = configs.resolve(X, override=f"{key}={value}")
        assert value in [found for name, found, _ in configs.leaves(params) if name == key]


def test_values_that_do_not_fit_together_are_refused():
    assert "train_tf_while_loop must be false if" in _refusal("trainer.train_tf_function=false")
    assert "width must be a multiple of heads (8)" in _refusal("task.model.xtransformer.width=100")
    message = _refusal("task.metrics=[BLEU]")
    assert "best_checkpoint_eval_metric must be one of BLEU-1" in message and "'CIDEr'" in message
    configs.resolve(X, override="task.metrics=[BLEU],trainer.best_checkpoint_eval_metric=BLEU-4")
    configs.resolve(X, override="task.metrics=[CHAIR],trainer.best_checkpoint_eval_metric=CHAIRi")
    message = _refusal("task.metrics=[CHAIR],trainer.best_checkpoint_eval_metric=CHAIR")
    assert "must be one of CHAIRi, CHAIRs" in message


@pytest.mark.parametrize(
    ("override", "part"),
    [
        ("task.validation_data.is_training=true", "must be false"),
        ("task.train_data.is_training=false", "must be true"),
        ("task.train_data.limit=10", "must be 0"),
        ("task.model.xtransformer.width=8", "at least twice heads"),
        ("runtime.distribution_strategy=foo", "one of mirrored"),
        ("task.metrics=[]", "task.metrics must be some of BLEU"),
        ("task.seed=4294967296", "task.seed must be from 0 to 4294967295"),
        ("trainer.best_checkpoint_export_subdir=../../x", "a plain name"),
        (
            "task.objective=scst,task.label_smoothing=0.0,runtime.enable_xla=true,"
            "task.self_critical.gradient=sampling",
            "must be rescoring with runtime.enable_xla",
        ),
    ],
)
def test_values_with_which_no_run_works_are_refused(override, part):
    with pytest.raises(ValueError, match=part):
        configs.resolve("xtransformer", override=override)
