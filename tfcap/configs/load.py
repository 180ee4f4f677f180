"""Makes a configuration from an experiment, YAML files and an override; loads and saves it."""

import difflib
import os
import re
import types
import typing
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import yaml
from official.modeling import hyperparams

from tfcap import recipes
from tfcap.cli import did_you_mean
from tfcap.configs.schema import SYSTEMS, Decoding, Experiment, Task
from tfcap.decoding import options
from tfcap.files import replacing
from tfcap.metrics.results import METRICS, ON_REQUEST

# What keys of names may hold. The constructors in `tfcap.models` check those of a system, and
# `decoding.options` those of a search.
CHOICES: dict[str, tuple[str | None, ...]] = {
    "task.objective": ("xe", "scst"),
    "task.self_critical.baseline": ("greedy", "others"),
    "task.self_critical.reduction": ("words", "sequences"),
    "task.self_critical.gradient": ("rescoring", "sampling"),
    "task.self_critical.reward.convention": ("jdai", "expansionnet"),
    "trainer.optimizer_config.name": ("adam", "radam", "sgd"),
    "trainer.optimizer_config.early_steps": ("momentum", "none"),
    "trainer.optimizer_config.clip": ("value", "norm", "none"),
    "trainer.optimizer_config.schedule.name": ("constant", "noam", "linear", "hyperbolic"),
    "trainer.best_checkpoint_metric_comp": ("higher", "lower"),
    "runtime.distribution_strategy": (
        "mirrored",
        "multi_worker_mirrored",
        "one_device",
        "tpu",
    ),
    "runtime.mixed_precision_dtype": (None, "float32", "bfloat16", "float16"),
}
# Keys that `params.yaml` of older runs has, and nothing reads.
IGNORED = {
    "task.self_critical.reward": ("length", "diversity"),
    "trainer": ("eval_tf_while_loop", "allow_tpu_summary", "preemption_on_demand_checkpoint"),
    "runtime": (
        "gpu_thread_mode",
        "dataset_num_private_threads",
        "per_gpu_thread_count",
        "loss_scale",
        "run_eagerly",
        "batchnorm_spatial_persistent",
        "tpu_enable_xla_dynamic_padder",
        "num_cores_per_replica",
        "default_shard_dim",
        "use_tpu_mp_strategy",
    ),
}
_SCORES = ("greedy_CIDEr-D", "distinct_captions", "loss", "perplexity")  # of every validation
_OVERRIDE = "--params_override"


def resolve(
    experiment: str,
    config_files: Sequence[str] = (),
    override: str = "",
    changes: Mapping[str, Any] | None = None,
) -> Experiment:
    """Applies YAML files and then an override to an experiment, and checks the result.

    Args:
      experiment: the name of an experiment.
      config_files: YAML files or names of recipes, applied in this order.
      override: YAML or JSON text, or `a.b=1,c=2`, or the path of a YAML file.
      changes: groups of keys that are applied before the files.
    """
    from tfcap.configs import experiments  # it imports this module

    known = experiments.factories()
    if experiment not in known:
        hint, names = did_you_mean(experiment, known), ", ".join(sorted(known))
        raise ValueError(f"--experiment={experiment} is unknown.{hint} Known: {names}.")
    params = known[experiment]()
    _apply(params, changes or {}, experiment)
    return _changed(params, config_files, override)


def resume(
    path: str, config_files: Sequence[str] = (), override: str = ""
) -> tuple[str, Experiment]:
    """Reads the experiment and the configuration of a run, and applies files and an override."""
    experiment, params = _read_run(path)
    return experiment, _changed(params, config_files, override)


def load(path: str) -> Experiment:
    """Reads the `params.yaml` that `save` wrote. Its values were checked when the run began."""
    return _read_run(path)[1]


def _read_run(path: str) -> tuple[str, Experiment]:
    if not os.path.isfile(path):
        raise ValueError(f"{path} is missing. Name the directory of a training run.")
    content = _read_file(path, path)
    experiment = content.pop("experiment", None)
    if not isinstance(experiment, str):
        raise ValueError(f"{path} was not written by tfcap.train: it names no experiment.")
    for path_of_group, keys in IGNORED.items():
        group = content
        for name in path_of_group.split("."):
            group = group.get(name, {})
        for key in keys:
            group.pop(key, None)
    # Not the values of the experiment: a run from before a key existed was trained without it.
    params = Experiment()
    _apply(params, content, path)
    return experiment, params


def save(params: Experiment, experiment: str, path: str) -> None:
    """Writes `params` and the name of the experiment as YAML, atomically."""
    content = {"experiment": experiment, **params.as_dict()}
    with replacing(path) as temporary, open(temporary, "w", encoding="utf-8") as file:
        yaml.safe_dump(content, file, sort_keys=False)


def decoding(task: Task, text: str = "", beam: int = 0) -> Decoding:
    """Returns the decoding options of a run with changes.

    Args:
      task: the task of a run; the function does not change it.
      text: keys of `task.decoding`, for example `beam=5,length_power=1.0`. A name of
        `decoding.PRESETS` may come first or alone; the preset replaces all options of the run.
      beam: the beam width; it wins over `text` and the run. 0 does not change it.
    """
    params = Decoding(**task.decoding.as_dict())
    preset, _, rest = text.partition(",")
    if preset.strip() in options.PRESETS:
        params, text = Decoding(**vars(options.PRESETS[preset.strip()])), rest
    elif preset and "=" not in preset:
        raise ValueError(
            f"decoding {text}: {preset} is not a preset. Give one of {', '.join(options.PRESETS)}, "
            "keys as in beam=5, or both."
        )
    _apply(params, _parse(text, "decoding") | ({"beam": beam} if beam else {}), "decoding")
    _check_decoding(params, task.max_length)
    return params


def values(params: hyperparams.Config) -> dict[str, Any]:
    """Returns dotted key -> value for all keys of a configuration."""

    def flat(groups: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, Any]]:
        for key, value in groups.items():
            inside = isinstance(value, dict)
            yield from flat(value, f"{prefix}{key}.") if inside else [(prefix + key, value)]

    return dict(flat(params.as_dict(), ""))


def given(override: str) -> dict[str, Any]:
    """Parses a text in the form of `--params_override` into nested keys and values."""
    return _read(override, _OVERRIDE)


def nested(changes: Mapping[str, Any]) -> dict[str, Any]:
    """Returns changes as groups of keys: `{"a.b": 1}` becomes `{"a": {"b": 1}}`."""
    groups: dict[str, Any] = {}

    def add(changes: Mapping[str, Any], groups: dict[str, Any]) -> None:
        for key, value in changes.items():
            name, _, rest = str(key).partition(".")
            value = {rest: value} if rest else value
            if not isinstance(value, Mapping):
                groups[name] = value
            elif isinstance(groups.setdefault(name, {}), dict):
                add(value, groups[name])
            else:
                raise ValueError(
                    f"{name} is set both as a value and as a group of keys. Remove one."
                )

    add(changes, groups)
    return groups


def _changed(params: Experiment, config_files: Sequence[str], override: str) -> Experiment:
    """Applies files and an override to `params`, and checks them."""
    for source in config_files:
        path = recipes.find(source, "--config_file")
        _apply(params, _read_file(path, f"--config_file {source}"), f"--config_file {source}")
    _apply(params, _read(override, _OVERRIDE), _OVERRIDE)
    for key in ("data_dir", "init_checkpoint"):
        setattr(params.task, key, os.path.expanduser(getattr(params.task, key)))
    check(params)
    return params


def _read(text: str, flag: str) -> dict[str, Any]:
    """Parses the value of a flag: a text, or the name of a YAML file."""
    if re.fullmatch(r"[^=:]+\.(yaml|yml|json)", text):
        return _read_file(recipes.find(text, flag), f"{flag} {text}")
    return _parse(text, flag)


def _read_file(path: str, source: str) -> dict[str, Any]:
    with open(path, encoding="utf-8", errors="replace") as file:
        return _parse(file.read(), source)


def _parse(text: str, source: str) -> dict[str, Any]:
    """Parses YAML, JSON, or `a.b=1,c=x,y`, where a comma separates only before KEY=."""
    try:
        if re.match(r"\s*[\w.]+\s*=", text):
            pairs = [item.partition("=") for item in re.split(r",(?=\s*[\w.]+\s*=)", text)]
            content = {key.strip(): yaml.safe_load(value) for key, _, value in pairs}
        else:
            content = yaml.safe_load(text) or {}
    except yaml.YAMLError as error:
        reason = " ".join(str(error).split())
        raise ValueError(f"{source} must be YAML, or a.b=1,c=2: {reason}") from None
    if not isinstance(content, dict):
        raise ValueError(f"{source} must map keys to values, for example task.max_length=20.")
    return nested(content)


def _apply(params: hyperparams.Config, content: Mapping[str, Any], source: str) -> None:
    """Changes `params`. An unknown key or a value of a wrong type raises an error with `source`."""
    try:
        params.override(content, is_strict=True)
    except KeyError as error:
        key = error.args[0].split("'")[1]  # hyperparams names the last part alone
        leaves = [path.split(".") for path in values(params)]
        paths = [".".join(path[:n]) for path in leaves for n in range(1, len(path) + 1)]
        ends = {path.rpartition(".")[2] for path in paths}
        near = difflib.get_close_matches(key, ends, 1)
        meant = [path for path in dict.fromkeys(paths) if path.rpartition(".")[2] in near]
        hint = f" Did you mean {' or '.join(meant[:3])}?" if meant else ""
        raise ValueError(f"{source}: there is no key {key}.{hint}") from None
    except (TypeError, AttributeError) as error:
        raise ValueError(f"{source}: {error}") from None
    _check_types(params, source)


def _check_types(params: hyperparams.Config, source: str, prefix: str = "") -> None:
    hints = typing.get_type_hints(type(params))
    for name, value in [*params.__dict__.items()]:
        if name in params.RESERVED_ATTR:
            continue
        key, hint = prefix + name, hints[name]
        if isinstance(hint, type) and issubclass(hint, hyperparams.Config):
            if not isinstance(value, hint):
                raise ValueError(f"{source}: {key} must be a group of keys, as in {key}.KEY=VALUE.")
            _check_types(value, source, f"{key}.")
            continue
        if isinstance(value, str):
            value = params.__dict__[name] = _converted(value, hint)
        if not _fits(value, hint):
            kind = getattr(hint, "__name__", hint)
            raise ValueError(
                f"{source}: {key} must be {kind}, not {value!r} ({type(value).__name__})."
            )


def _converted(text: str, hint: Any) -> Any:
    """Converts text that YAML does not: `1e-4` to a number, and `none` to None."""
    kinds = typing.get_args(hint) or (hint,)
    if str not in kinds:
        try:
            number = float(text)
            return number if float in kinds else int(number) if number.is_integer() else text
        except ValueError:
            pass
    return None if text in ("none", "None") and type(None) in kinds else text


def _fits(value: Any, hint: Any) -> bool:
    """True if `value` has the annotated type; an int is also a float, and a bool is not an int."""
    origin, kinds = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        return any(_fits(value, kind) for kind in kinds)
    if origin is list:
        return isinstance(value, list | tuple) and all(_fits(item, kinds[0]) for item in value)
    if isinstance(value, bool):
        return hint is bool
    return isinstance(value, int | float if hint is float else hint)


def check(params: Experiment) -> None:
    """Raises ValueError for values that would fail late, or that are not among `CHOICES`."""
    task = params.task
    if task.model.type not in SYSTEMS:
        raise ValueError(f"task.model.type={task.model.type} is not one of {', '.join(SYSTEMS)}.")
    found = values(params)
    metrics = {"BLEU": [f"BLEU-{n}" for n in range(1, 5)]}
    metrics |= {name: list(keys) for name, keys in ON_REQUEST.items()}
    scores = [score for name in task.metrics for score in metrics.get(name, [name])]
    choices = CHOICES | {"trainer.best_checkpoint_eval_metric": (*scores, *_SCORES)}
    for name in task.metrics:
        if name not in METRICS:
            raise ValueError(f"task.metrics: {name} is not one of {', '.join(METRICS)}.")
    for key, known in choices.items():
        if found[key] not in known:
            names = ", ".join(map(str, known))
            raise ValueError(f"{key} must be one of {names}, not {found[key]!r}.")
    if task.objective == "scst" and task.self_critical.gradient == "sampling":
        if params.runtime.enable_xla:
            raise ValueError(
                "task.self_critical.gradient must be rescoring with runtime.enable_xla: XLA does "
                "not compile the reward, which is inside the gradient of sampling."
            )
    _check_decoding(task.decoding, task.max_length)


def _check_decoding(params: Decoding, max_length: int) -> None:
    options.check(params, "task.decoding.")
    if params.max_length > max_length:
        raise ValueError(
            f"task.decoding.max_length={params.max_length} is above task.max_length={max_length}, "
            "the longest caption that the model was trained on."
        )
    longest = params.max_length or max_length
    if params.min_length >= longest:
        raise ValueError(
            f"task.decoding.min_length={params.min_length} must be below the length of the longest "
            f"caption, {longest}."
        )
