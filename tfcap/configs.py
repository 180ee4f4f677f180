"""Configurations of every experiment: dataclasses over TF Model Garden's `hyperparams.Config`.

An experiment is a registered base (`--experiment=xtransformer`); a recipe is a YAML file of
differences over it (`--config_file`); `--params_override` comes last.
"""

import dataclasses
import difflib
import fnmatch
import math
import os
import re
import types
import typing
from collections.abc import Iterator
from typing import Any

import yaml
from official.core import config_definitions, exp_factory
from official.modeling import hyperparams


@dataclasses.dataclass
class XTransformer(hyperparams.Config):
    """Arguments of `tfcap.models.xtransformer.XTransformer`; the defaults are the paper's."""

    width: int = 768
    heads: int = 8
    encoder_layers: int = 6
    decoder_layers: int = 6
    inner_width: int | None = None
    middle_width: int | None = None
    activation: str = "celu"
    word_dropout: float = 0.1
    region_dropout: float = 0.5
    middle_dropout: float = 0.1
    encoder_dropout: float = 0.5
    decoder_dropout: float = 0.5
    bifeat_dropout: float = 0.3
    feed_forward_dropout: float = 0.5
    head_dropout: float = 0.5


@dataclasses.dataclass
class Model(hyperparams.OneOfConfig):
    """Which system, and its arguments."""

    type: str | None = "xtransformer"
    xtransformer: XTransformer = dataclasses.field(default_factory=XTransformer)


@dataclasses.dataclass
class Data(hyperparams.Config):
    """One split of a prepared data set, as batches.

    Attributes:
      split: train, val or test.
      is_training: shuffled and endless, or in file order and once.
      global_batch_size: images per step over all replicas.
      captions_per_image: S.
      max_regions: regions kept of each image; 0 keeps all.
      limit: images used of the split; 0 uses all (decoding only).
      pad_to_max: static shapes, for accelerators that compile per shape.
    """

    split: str = "train"
    is_training: bool = True
    global_batch_size: int = 32
    captions_per_image: int = 5
    max_regions: int = 0
    limit: int = 0
    pad_to_max: bool = False


@dataclasses.dataclass
class Decoding(hyperparams.Config):
    """Beam search of validation and of `evaluate`, `caption` and export (see `decoding.py`)."""

    beam: int = 3
    finished: str = "hold"
    length_power: float = 0.0
    suppress_unk: bool = True


@dataclasses.dataclass
class Task(hyperparams.Config):
    """Cross-entropy training of a captioner.

    Attributes:
      model: which system.
      data_dir: what `python -m tfcap.prepare` wrote; empty means the built-in `shapes`, prepared
        below `data/shapes` on first use.
      max_length: T, words of the longest caption, its end included.
      label_smoothing: see `losses.cross_entropy`.
      seed: of weights, dropout, data order and drawn captions.
      metrics: scores of validation, any of BLEU, METEOR, ROUGE-L, CIDEr, SPICE.
      init_checkpoint: weights to start from: a checkpoint or a directory of checkpoints.
    """

    model: Model = dataclasses.field(default_factory=Model)
    train_data: Data = dataclasses.field(default_factory=Data)
    validation_data: Data = dataclasses.field(
        default_factory=lambda: Data(split="val", is_training=False)
    )
    decoding: Decoding = dataclasses.field(default_factory=Decoding)
    data_dir: str = ""
    max_length: int = 17
    label_smoothing: float = 0.1
    seed: int = 1
    metrics: list[str] = dataclasses.field(
        default_factory=lambda: ["BLEU", "METEOR", "ROUGE-L", "CIDEr"]
    )
    init_checkpoint: str = ""


@dataclasses.dataclass
class Schedule(hyperparams.Config):
    """Learning rate over optimizer steps n = 1, 2, ... (see `tasks/optim.py`).

    Attributes:
      name: constant, noam, linear or hyperbolic.
      learning_rate: the rate, for noam the factor.
      warmup_steps: steps of growth.
      model_width: of noam; 0 takes the model's width.
      decay_steps: with linear and hyperbolic, every so many steps the rate is multiplied by
        `decay_rate`; 0 never.
      decay_rate: see there.
      minimum: the rate never falls below, once warm-up is over.
      plateau_patience: validations without a better score before the rate is multiplied by
        `plateau_factor`; 0 never.
      plateau_factor: see there.
    """

    name: str = "noam"
    learning_rate: float = 1.0
    warmup_steps: int = 10000
    model_width: int = 0
    decay_steps: int = 0
    decay_rate: float = 0.8
    minimum: float = 0.0
    plateau_patience: int = 0
    plateau_factor: float = 0.8


@dataclasses.dataclass
class Optimizer(hyperparams.Config):
    """Optimizer and clipping.

    Attributes:
      name: adam or radam.
      beta_1: decay of the first moment.
      beta_2: decay of the second moment.
      epsilon: in the denominator.
      early_steps: of radam while its variance is intractable: momentum (released X-Transformer)
        or none (released ExpansionNet).
      clip: value (each element to +-clip_threshold), norm (global norm) or none.
      clip_threshold: see there. Clipping sees the gradient of all replicas together.
      schedule: learning rate.
    """

    name: str = "radam"
    beta_1: float = 0.9
    beta_2: float = 0.98
    epsilon: float = 1e-9
    early_steps: str = "momentum"
    clip: str = "value"
    clip_threshold: float = 0.1
    schedule: Schedule = dataclasses.field(default_factory=Schedule)


@dataclasses.dataclass
class Trainer(config_definitions.TrainerConfig):
    """TF Model Garden's trainer with our optimizers."""

    optimizer_config: Optimizer = dataclasses.field(default_factory=Optimizer)
    steps_per_loop: int = 20
    summary_interval: int = 20
    checkpoint_interval: int = 500
    max_to_keep: int = 2
    train_steps: int = 1000
    validation_interval: int = 500
    best_checkpoint_export_subdir: str = "best_ckpt"
    best_checkpoint_eval_metric: str = "CIDEr"


@dataclasses.dataclass
class Runtime(config_definitions.RuntimeConfig):
    """TF Model Garden's runtime.

    Attributes:
      replicas: of the mirrored strategy; 0 is one for each GPU, or one on a machine without.
        Without GPUs, more than one makes as many logical devices of the processor.
    """

    replicas: int = 0
    mixed_precision_dtype: str | None = "float32"


Experiment = config_definitions.ExperimentConfig


@exp_factory.register_config_factory("xtransformer")
def xtransformer() -> Experiment:
    """X-Transformer on the built-in shapes, at a size that a laptop trains in minutes."""
    return Experiment(
        task=Task(
            model=Model(
                xtransformer=XTransformer(
                    width=128,
                    encoder_layers=2,
                    decoder_layers=2,
                    region_dropout=0.1,
                    encoder_dropout=0.1,
                    decoder_dropout=0.1,
                    bifeat_dropout=0.1,
                    feed_forward_dropout=0.1,
                    head_dropout=0.1,
                )
            ),
            train_data=Data(global_batch_size=32, captions_per_image=2),
            validation_data=Data(split="val", is_training=False, global_batch_size=50),
            max_length=20,
        ),
        trainer=Trainer(
            optimizer_config=Optimizer(
                schedule=Schedule(
                    name="linear",
                    learning_rate=0.002,
                    warmup_steps=200,
                    decay_steps=250,
                )
            ),
            train_steps=2500,
            validation_interval=500,
            checkpoint_interval=250,
        ),
        runtime=Runtime(),
    )


def resolve(
    experiment: str, config_files: typing.Sequence[str] = (), override: str = ""
) -> Experiment:
    """The registered experiment with every file and then `override` applied, checked and locked.

    Args:
      experiment: a registered name.
      config_files: YAML files, applied in this order.
      override: YAML or JSON text, or `a.b=1,c=2`, or the path of a YAML file.

    Raises:
      ValueError: an unknown experiment or key, a wrong type, an impossible value.
    """
    known = sorted(exp_factory._REGISTERED_CONFIGS)
    if experiment not in known:
        raise ValueError(f"--experiment={experiment!r} is not known. Choose one of {known}")
    params = exp_factory.get_exp_config(experiment)
    for source in [*config_files, *([override] if override else [])]:
        _override(params, source)
    check(params)
    _lock(params)
    return params


def load(path: str) -> Experiment:
    """Reads the `params.yaml` that `save` wrote.

    Raises:
      ValueError: if the file is missing or does not describe an experiment of this version.
    """
    if not os.path.isfile(path):
        raise ValueError(f"{path} is missing: is this the --model_dir of a training run?")
    try:
        with open(path, encoding="utf-8") as file:
            content = yaml.safe_load(file)
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ValueError(f"{path} is not YAML, is it damaged? {error}") from error
    if not isinstance(content, dict) or "experiment" not in content:
        raise ValueError(f"{path} was not written by tfcap.train: the key `experiment` is missing")
    experiment, known = content.pop("experiment"), sorted(exp_factory._REGISTERED_CONFIGS)
    if experiment not in known:
        raise ValueError(f"{path}: the experiment {experiment!r} is not one of {known}")
    params = exp_factory.get_exp_config(experiment)
    _check_keys(params, content, path)
    params.override(content, is_strict=False)
    check(params)
    _lock(params)
    return params


def save(params: Experiment, experiment: str, path: str) -> None:
    """Writes `params` and the name of their experiment as YAML, whole or not at all."""
    temporary = f"{path}.tmp-{os.getpid()}"
    with open(temporary, "w", encoding="utf-8") as file:
        yaml.safe_dump({"experiment": experiment, **params.as_dict()}, file, sort_keys=False)
    os.replace(temporary, path)


def _override(params: Experiment, source: str) -> None:
    """Applies one YAML file, YAML text or `a.b=1` list, after checking its keys."""
    name = "--params_override"
    if source.endswith((".yaml", ".yml", ".json")):
        name = source
        if not os.path.isfile(source):
            raise ValueError(f"--config_file {source!r} does not exist")
        with open(source, encoding="utf-8") as file:
            source = file.read()
    try:
        content = _parse(source)
    except yaml.YAMLError as error:
        raise ValueError(f"{name} is not YAML: {error}") from error
    if content is None:
        return
    if not isinstance(content, dict):
        raise ValueError(
            f"{name} must map keys to values, for example task.max_length=20. Received: {source!r}"
        )
    _check_keys(params, content, name)
    params.override(content, is_strict=True)


def _parse(text: str) -> Any:
    """YAML, or the comma-separated `a.b=1,c.d=x` of the Model Garden's flags."""
    if not re.match(r"\s*[\w.]+\s*=", text):
        return yaml.safe_load(text)
    content: dict = {}
    for item in re.split(r",(?![^\[]*\])", text):  # commas inside [a,b] stay
        key, _, value = item.partition("=")
        *parents, leaf = key.strip().split(".")
        place = content
        for parent in parents:
            place = place.setdefault(parent, {})
            if not isinstance(place, dict):
                raise ValueError(
                    f"--params_override gives {parent} both a value and keys of its own: {text!r}"
                )
        place[leaf] = yaml.safe_load(value)
    return content


def _check_keys(params: hyperparams.Config, content: dict, source: str, prefix: str = "") -> None:
    """Raises ValueError for the first key that `params` does not have."""
    for key, value in content.items():
        fields = [field.name for field in dataclasses.fields(params)]
        if key not in fields:
            near = difflib.get_close_matches(str(key), fields, 1)
            hint = f"did you mean {prefix}{near[0]}?" if near else f"known: {', '.join(fields)}"
            raise ValueError(f"{source}: there is no key {prefix}{key} ({value!r}); {hint}")
        child = getattr(params, key)
        if dataclasses.is_dataclass(child):
            if not isinstance(value, dict):
                raise ValueError(
                    f"{source}: {prefix}{key} is a group of keys. Received: {value!r}; "
                    f"write {prefix}{key}.<one of {[f.name for f in dataclasses.fields(child)]}>"
                )
            _check_keys(child, value, source, f"{prefix}{key}.")


def leaves(params: hyperparams.Config, prefix: str = "") -> Iterator[tuple[str, Any, Any]]:
    """Yields (dotted key, value, annotated type) of every leaf of a configuration."""
    hints = typing.get_type_hints(type(params))
    for field in dataclasses.fields(params):
        value = getattr(params, field.name)
        if dataclasses.is_dataclass(value):
            yield from leaves(value, f"{prefix}{field.name}.")
        else:
            yield f"{prefix}{field.name}", value, hints[field.name]


def _lock(params: hyperparams.Config) -> None:
    """Makes a configuration and every group in it refuse assignments."""
    for field in dataclasses.fields(params):
        if isinstance(child := getattr(params, field.name), hyperparams.Config):
            _lock(child)
    params.lock()


def _fits(value: Any, hint: Any) -> bool:
    """Whether `value` has the annotated type; an int counts as a float, a bool never as an int."""
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


def check(params: Experiment) -> None:
    """Raises ValueError naming the key, the value and the remedy if a value cannot work."""
    for key, value, hint in leaves(params):
        if not _fits(value, hint):
            name = getattr(hint, "__name__", str(hint))
            hint = "; write 1.0e-3, since YAML reads 1e-3 as text" if _number(value) else ""
            raise ValueError(
                f"{key} must be {name}. Received: {value!r} ({type(value).__name__}){hint}"
            )
        if isinstance(value, float) and not math.isfinite(value):
            raise ValueError(f"{key} must be a finite number. Received: {value!r}")
    values = {key: value for key, value, _ in leaves(params)}
    for pattern, accepts, wanted in RULES:
        for key, value in values.items():
            if fnmatch.fnmatchcase(key, f"*.{pattern}") and not accepts(value):
                raise ValueError(f"{key} must be {wanted}. Received: {value!r}")
    task = params.task
    model = task.model.get()
    if model.width % model.heads:
        raise ValueError(
            f"task.model.{task.model.type}.width must be a multiple of heads ({model.heads}). "
            f"Received: {model.width}"
        )
    trainer, bleu = params.trainer, [f"BLEU-{n}" for n in range(1, 5)]
    scores = [key for m in task.metrics for key in (bleu if m == "BLEU" else [m])]
    scores += ["distinct_captions", "loss", "perplexity"]
    if trainer.best_checkpoint_eval_metric not in scores:
        raise ValueError(
            f"trainer.best_checkpoint_eval_metric must be one of {', '.join(scores)}, which follow "
            f"from task.metrics. Received: {trainer.best_checkpoint_eval_metric!r}"
        )
    if trainer.summary_interval % trainer.steps_per_loop:
        raise ValueError(
            "trainer.summary_interval must be a multiple of trainer.steps_per_loop "
            f"({trainer.steps_per_loop}). Received: {trainer.summary_interval}"
        )


def _number(value: Any) -> bool:
    try:
        return isinstance(value, str) and float(value) is not None
    except ValueError:
        return False


def _one_of(*names):
    return (lambda value: value in names), f"one of {', '.join(map(str, names))}"


def _at_least(low):
    return (lambda value: value is None or value >= low), f"at least {low}"


_RATE = (lambda value: 0 <= value < 1), "at least 0 and below 1"
_POSITIVE = (lambda value: value > 0), "above 0"
_METRICS = ("BLEU", "METEOR", "ROUGE-L", "CIDEr", "SPICE")

RULES = [
    ("*_dropout", *_RATE),
    ("label_smoothing", *_RATE),
    ("beta_1", *_RATE),
    ("beta_2", *_RATE),
    ("epsilon", *_POSITIVE),
    ("clip_threshold", *_POSITIVE),
    ("schedule.learning_rate", *_POSITIVE),
    ("decay_rate", *_POSITIVE),
    ("plateau_factor", *_POSITIVE),
    ("warmup_steps", *_at_least(1)),
    ("decay_steps", *_at_least(0)),
    ("plateau_patience", *_at_least(0)),
    ("minimum", *_at_least(0)),
    ("width", *_at_least(1)),
    ("inner_width", *_at_least(1)),
    ("middle_width", *_at_least(1)),
    ("model_width", *_at_least(0)),
    ("heads", *_at_least(1)),
    ("*_layers", *_at_least(0)),
    ("decoder_layers", *_at_least(1)),
    ("activation", *_one_of("celu", "relu")),
    ("global_batch_size", *_at_least(1)),
    ("captions_per_image", *_at_least(1)),
    ("max_regions", *_at_least(0)),
    ("limit", *_at_least(0)),
    ("max_length", *_at_least(2)),
    ("decoding.beam", *_at_least(1)),
    ("finished", *_one_of("hold", "retire")),
    ("length_power", *_at_least(0)),
    ("metrics", lambda v: all(m in _METRICS for m in v), f"a list of {', '.join(_METRICS)}"),
    ("seed", *_at_least(0)),
    ("optimizer_config.name", *_one_of("adam", "radam")),
    ("early_steps", *_one_of("momentum", "none")),
    ("clip", *_one_of("value", "norm", "none")),
    ("schedule.name", *_one_of("constant", "noam", "linear", "hyperbolic")),
    ("train_steps", *_at_least(1)),
    ("steps_per_loop", *_at_least(1)),
    ("summary_interval", *_at_least(1)),
    ("checkpoint_interval", *_at_least(1)),
    ("validation_interval", *_at_least(1)),
    ("max_to_keep", *_at_least(1)),
    ("best_checkpoint_metric_comp", *_one_of("higher", "lower")),
    ("replicas", *_at_least(0)),
    ("num_gpus", *_at_least(0)),
    ("mixed_precision_dtype", *_one_of(None, "float32", "bfloat16", "float16")),
    ("model.type", *_one_of("xtransformer")),
]
