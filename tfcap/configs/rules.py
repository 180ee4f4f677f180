"""Checks the values of a configuration."""

import dataclasses
import fnmatch
import math
import os
import re
import types
import typing
from collections.abc import Iterator
from typing import Any

from official.modeling import hyperparams

from tfcap.checks import POSITIVE, RATE, at_least, between, one_of
from tfcap.configs.schema import Decoding, Experiment, Task
from tfcap.configs.systems import SYSTEMS, Model
from tfcap.decoding import options
from tfcap.metrics.registry import METRICS, ON_REQUEST


def leaves(params: hyperparams.Config, prefix: str = "") -> Iterator[tuple[str, Any, Any]]:
    """Yields (dotted key, value, annotated type) of every leaf of a configuration."""
    hints = typing.get_type_hints(type(params))
    for field in dataclasses.fields(params):
        value = getattr(params, field.name)
        if dataclasses.is_dataclass(value):
            yield from leaves(value, f"{prefix}{field.name}.")
        else:
            yield f"{prefix}{field.name}", value, hints[field.name]


def _fits(value: Any, hint: Any) -> bool:
    """Tells whether `value` has the annotated type; an int is also a float, a bool is no int."""
    origin = typing.get_origin(hint)
    if origin in (typing.Union, types.UnionType):
        return any(_fits(value, option) for option in typing.get_args(hint))
    if origin in (list, tuple):
        inner = typing.get_args(hint)[:1]
        return isinstance(value, list | tuple) and all(_fits(v, inner[0]) for v in value if inner)
    if hint is float:
        return isinstance(value, int | float) and not isinstance(value, bool)
    if hint is int:
        return isinstance(value, int) and not isinstance(value, bool)
    return isinstance(value, hint) if isinstance(hint, type) else True


def _is_plain_name(value: str) -> bool:
    return value == os.path.basename(value) and value not in ("", ".", "..")


def check(params: Experiment) -> None:
    """Checks all values of an experiment.

    Raises:
      ValueError: if a value cannot work. The message has the key, the rule and the value.
    """
    _check_values(params, "")
    task = params.task
    if task.model.type not in SYSTEMS:
        raise ValueError(
            f"task.model.type must be one of {', '.join(SYSTEMS)}. Received: {task.model.type!r}"
        )
    _check_heads(task.model)
    if task.max_length < 2:
        raise ValueError(f"task.max_length must be at least 2. Received: {task.max_length!r}")
    positions = task.model.get().as_dict().get("positions", task.max_length)
    if positions < task.max_length:
        raise ValueError(
            f"task.model.{task.model.type}.positions must be at least task.max_length "
            f"({task.max_length}). Received: {positions}"
        )
    if task.remap_vocab and not task.init_checkpoint:
        raise ValueError(
            "task.init_checkpoint must be given with task.remap_vocab, which maps its vocabulary "
            f"to that of the data. Received: {task.init_checkpoint!r}"
        )
    _check_objective(task, params.runtime.enable_xla)
    _check_options(task.decoding, task.max_length)
    trainer, several = params.trainer, {"BLEU": tuple(f"BLEU-{n}" for n in range(1, 5))}
    several |= ON_REQUEST
    scores = [key for metric in task.metrics for key in several.get(metric, (metric,))]
    scores += ["greedy_CIDEr-D", "distinct_captions", "loss", "perplexity"]
    if trainer.best_checkpoint_eval_metric not in scores:
        raise ValueError(
            f"trainer.best_checkpoint_eval_metric must be one of {', '.join(scores)}, which follow "
            f"from task.metrics. Received: {trainer.best_checkpoint_eval_metric!r}"
        )
    if trainer.train_tf_while_loop and not trainer.train_tf_function:
        raise ValueError(
            "trainer.train_tf_while_loop must be false if trainer.train_tf_function is false: the "
            "loop is part of the graph. Received: true"
        )
    if trainer.summary_interval % trainer.steps_per_loop:
        raise ValueError(
            "trainer.summary_interval must be a multiple of trainer.steps_per_loop "
            f"({trainer.steps_per_loop}). Received: {trainer.summary_interval}"
        )


def check_decoding(params: Decoding, max_length: int) -> None:
    """Checks the group `task.decoding` alone.

    Args:
      params: the group.
      max_length: the largest number of words of a caption.

    Raises:
      ValueError: as in `check`.
    """
    _check_values(params, "task.decoding.")
    _check_options(params, max_length)


def _check_options(params: Decoding, max_length: int) -> None:
    """Raises ValueError if options of a search do not fit together or to `max_length`."""
    options.check(params, "task.decoding.")
    if params.max_length > max_length:
        raise ValueError(
            f"task.decoding.max_length must be at most task.max_length ({max_length}), the longest "
            f"caption that the model was trained on. Received: {params.max_length}"
        )
    name, longest = "task.max_length", max_length
    if params.max_length:
        name, longest = "task.decoding.max_length", params.max_length
    if params.min_length >= longest:
        raise ValueError(
            f"task.decoding.min_length must be below {name} ({longest}). "
            f"Received: {params.min_length}"
        )


def _check_values(params, prefix):
    """Raises ValueError for the first value with a wrong type or against one of `RULES`."""
    for key, value, hint in leaves(params, prefix):
        if not _fits(value, hint):
            name = getattr(hint, "__name__", str(hint))
            raise ValueError(
                f"{key} must be {name}. Received: {value!r} ({type(value).__name__})"
                f"{_as_number(value, hint)}"
            )
        if isinstance(value, float) and not math.isfinite(value):
            raise ValueError(f"{key} must be a finite number. Received: {value!r}")
    values = {key: value for key, value, _ in leaves(params, prefix)}
    for pattern, accepts, wanted in RULES:
        for key in fnmatch.filter(values, f"*.{pattern}"):
            if not accepts(values[key]):
                raise ValueError(f"{key} must be {wanted}. Received: {values[key]!r}")


def _check_objective(task: Task, xla: bool) -> None:
    """Raises ValueError if the options of self-critical training cannot work."""
    scst, batch = task.self_critical, task.train_data.global_batch_size
    if batch % task.micro_batches:
        raise ValueError(
            f"task.train_data.global_batch_size ({batch}) must be a multiple of "
            f"task.micro_batches. Received: {task.micro_batches}"
        )
    if task.objective == "xe":
        return
    if xla and scst.gradient == "sampling":
        raise ValueError(
            "task.self_critical.gradient must be rescoring with runtime.enable_xla, since XLA does "
            "not compile the reward, which is inside the gradient of sampling. Received: 'sampling'"
        )
    if scst.baseline == "others" and scst.samples < 2:
        raise ValueError(
            "task.self_critical.samples must be at least 2 for baseline others. "
            f"Received: {scst.samples}"
        )
    if not (scst.reward.cider or scst.reward.bleu or scst.reward.length or scst.reward.diversity):
        raise ValueError(
            "At least one of task.self_critical.reward.cider, bleu, length and diversity must not "
            "be 0. Received: 0 for all"
        )
    if task.scheduled_sampling.increase or task.label_smoothing:
        raise ValueError(
            "task.scheduled_sampling.increase and task.label_smoothing must be 0 for objective "
            "scst: only objective xe has them. Received: "
            f"{task.scheduled_sampling.increase} and {task.label_smoothing}"
        )


def _check_heads(model: Model) -> None:
    """Raises ValueError if the width of the chosen system is not a multiple of its heads."""
    sizes = model.get().as_dict()
    if "heads" not in sizes:
        return
    width, heads = sizes["width"], sizes["heads"]
    if width % heads:
        raise ValueError(
            f"task.model.{model.type}.width must be a multiple of heads ({heads}). "
            f"Received: {width}"
        )
    if "middle_width" in sizes and not sizes["middle_width"] and width < 2 * heads:
        raise ValueError(
            f"task.model.{model.type}.width must be at least twice heads ({heads}), or "
            f"middle_width must be given. Received: {width}"
        )


def _as_number(value: Any, hint: Any) -> str:
    """Tells how to write a number such as `1e5`, which YAML reads as text, for a key of `hint`."""
    kinds = typing.get_args(hint) or (hint,)
    parts = re.fullmatch(r"([-+]?)(\d*)\.?(\d*)[eE]([-+]?)(\d{1,3})", str(value))
    number = float(value) if isinstance(value, str) and parts and any(parts.group(2, 3)) else value
    if float in kinds and parts and number is not value:
        minus, whole, fraction, sign, exponent = parts.groups()
        written = f"{minus}{whole or 0}.{fraction or 0}e{sign or '+'}{exponent}"
        return f"; write {written}, since YAML reads {value} as text"
    if int in kinds and isinstance(number, float) and number.is_integer() and number < 1e15:
        return f"; write {number:.0f}"
    return ""


# (pattern of keys, test, words that complete "KEY must be ...").
RULES = [
    ("*_dropout", *RATE),
    ("label_smoothing", *RATE),
    ("beta_1", *RATE),
    ("beta_2", *RATE),
    ("epsilon", *POSITIVE),
    ("clip_threshold", *POSITIVE),
    ("schedule.learning_rate", *POSITIVE),
    ("decay_rate", *POSITIVE),
    ("plateau_factor", *POSITIVE),
    ("warmup_steps", *at_least(1)),
    ("decay_steps", *at_least(0)),
    ("decay_start", *at_least(0)),
    ("increase", lambda value: 0 <= value <= 1, "between 0 and 1"),
    ("maximum", lambda value: 0 <= value <= 1, "between 0 and 1"),
    ("start", *at_least(0)),
    ("every", *at_least(1)),
    ("l2", *at_least(0)),
    ("learning_rate_factor", *at_least(0)),
    ("ema_decay", *RATE),
    ("plateau_patience", *at_least(0)),
    ("minimum", *at_least(0)),
    ("width", *at_least(1)),
    ("model.*_width", *at_least(1)),
    ("model_width", *at_least(0)),
    ("heads", *at_least(1)),
    ("*_layers", *at_least(0)),
    ("decoder_layers", *at_least(1)),
    ("expansionnet.encoder_layers", *at_least(1)),
    ("*_vectors", *at_least(1)),
    ("positions", *at_least(2)),
    ("region_positions", *one_of("none", "frames")),
    ("activation", *one_of("celu", "relu")),
    ("embed_activation", *one_of("celu", "relu", "none")),
    ("xlan.attention", *one_of("xlinear", "additive")),
    ("flavour", *one_of("released", "paper")),
    ("encoder_block", *one_of("static", "dynamic", "attention", "aoa")),
    ("decoder_block", *one_of("dynamic", "attention", "aoa")),
    (
        "mrnn.variant",
        *one_of(
            "base",
            "no_emb_input",
            "one_layer_emb",
            "emb_one_input",
            "vis_in_rnn",
            "vis_in_rnn_both",
            "vis_in_rnn_both_shared",
            "rnn_base",
        ),
    ),
    ("show_tell.cell", *one_of("lstm", "maxout")),
    ("att2in.attend", *one_of("in", "all")),
    ("gcn_lstm.labels", *at_least(1)),
    ("gcn_lstm.regions", *at_least(1)),
    ("lstm_a.attributes", *at_least(1)),
    ("mrnn_shared.variant", *one_of("multimodal", "init", "child")),
    ("global_batch_size", *at_least(1)),
    ("captions_per_image", *at_least(1)),
    ("max_regions", *at_least(0)),
    ("limit", *at_least(0)),
    ("objective", *one_of("xe", "scst")),
    ("samples", *between(1, options.MOST_SAMPLES)),
    ("micro_batches", *at_least(1)),
    ("baseline", *one_of("greedy", "others")),
    ("reduction", *one_of("words", "sequences")),
    ("gradient", *one_of("rescoring", "sampling")),
    ("start_tolerance", *POSITIVE),
    ("convention", *one_of("jdai", "expansionnet")),
    ("metrics", lambda v: v and all(m in METRICS for m in v), f"some of {', '.join(METRICS)}"),
    ("seed", *between(0, 2**32 - 1)),
    ("optimizer_config.name", *one_of("adam", "radam", "sgd")),
    ("early_steps", *one_of("momentum", "none")),
    ("clip", *one_of("value", "norm", "none")),
    ("schedule.name", *one_of("constant", "noam", "linear", "hyperbolic")),
    ("validation_summary_subdir", _is_plain_name, "the name of a directory, without a path"),
    ("train_steps", *at_least(1)),
    ("steps_per_loop", *at_least(1)),
    ("summary_interval", *at_least(1)),
    ("checkpoint_interval", *at_least(1)),
    ("validation_interval", *at_least(1)),
    ("validation_steps", *at_least(-1)),
    ("eval_tf_while_loop", lambda value: not value, "false: captions are scored outside the graph"),
    ("max_to_keep", *at_least(1)),
    ("patience", *at_least(0)),
    ("shown_images", *at_least(0)),
    ("best_checkpoint_metric_comp", *one_of("higher", "lower")),
    ("replicas", *at_least(0)),
    ("num_gpus", *at_least(0)),
    ("start_timeout", *at_least(1)),
    ("worker_timeout", *at_least(1)),
    ("mixed_precision_dtype", *one_of(None, "float32", "bfloat16", "float16")),
    ("train_data.is_training", lambda value: value, "true: training data is endless"),
    ("train_data.limit", lambda value: value == 0, "0: only decoding can be limited"),
    (
        "validation_data.is_training",
        lambda value: not value,
        "false: images are read in order, once",
    ),
    ("best_checkpoint_export_subdir", str.isidentifier, "a plain name, for example best_ckpt"),
    (
        "distribution_strategy",
        *one_of("mirrored", "multi_worker_mirrored", "one_device", "tpu"),
    ),
]
