"""Loads, changes, checks and saves configurations; changes are YAML files and an override."""

import difflib
import fnmatch
import logging
import math
import os
import re
import typing
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import yaml
from official.modeling import hyperparams

from tfcap.configs import recipes, texts
from tfcap.configs.schema import SYSTEMS, Decoding, Experiment, Task
from tfcap.decoding import options
from tfcap.files import replacing
from tfcap.metrics.results import METRICS, ON_REQUEST

_log = logging.getLogger(__name__)
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
# What numbers must be, by patterns of their keys; the first pattern that fits counts.
# `decoding.options` has the ranges of `task.decoding`.
_RANGES: tuple[tuple[str, Callable[[float], bool], str], ...] = (
    (
        "at least 1",
        lambda n: n >= 1,
        "*.global_batch_size *.captions_per_image task.micro_batches task.self_critical.samples "
        "task.scheduled_sampling.every trainer.steps_per_loop trainer.*_interval "
        "trainer.max_to_keep trainer.train_steps runtime.num_packs task.model.*.width "
        "task.model.*_width task.model.*.heads",
    ),
    ("at least 2", lambda n: n >= 2, "task.max_length"),  # a word and the end mark
    ("at least 0", lambda n: n >= 0, "task.model.*_layers"),
    (
        "at least 0 and below 1",
        lambda n: 0 <= n < 1,
        "task.model.*_dropout task.label_smoothing *.ema_decay *.beta_1 *.beta_2",
    ),
    (
        "from 0 to 1",
        lambda n: 0 <= n <= 1,
        "task.scheduled_sampling.maximum task.teacher.weight",
    ),
    (
        "above 0",
        lambda n: n > 0,
        "*.decay_rate *.plateau_factor *.clip_threshold task.teacher.temperature runtime.*_timeout",
    ),
    ("-1 or at least 1", lambda n: n == -1 or n >= 1, "trainer.validation_steps"),
    ("at least -1", lambda n: n >= -1, "runtime.task_index"),
    # The constructors check the other options of a system; a reward may be a penalty.
    ("", lambda n: True, "task.model.* *.reward.* *.recovery_max_trials task.decoding.*"),
    ("at least 0", lambda n: n >= 0, "*"),
)
_TOO_LARGE = 2**32  # for random seeds and for the integers of TensorFlow
_MAY_BE_INFINITE = ("trainer.loss_upper_bound", "task.self_critical.start_tolerance")
_SCORES = ("greedy_CIDEr-D", "distinct_captions", "loss", "perplexity")  # of every validation
# Keys that no longer exist, in the files of runs, with the value (as text) that had no effect.
_GONE = {
    "task.train_data.pad_to_max": "false",
    "task.validation_data.pad_to_max": "false",
    "trainer.optimizer_config.schedule.model_width": "0",
}
_OVERRIDE = "`params_override`"
REGISTERED = "To use a system of your own, give `import=MODULE`, or import its module in Python."


def resume(
    path: str, config_files: Sequence[str] = (), override: str = ""
) -> tuple[str, Experiment]:
    """Reads the configuration of a run, changes it and checks it.

    Args:
      path: the `params.yaml` of the run.
      config_files: YAML files or names of recipes, applied in this order.
      override: changes that are applied last: YAML or JSON text, text like `a.b=1,c=2`, or the path
        of a YAML file.

    Returns:
      the name of the experiment, and the configuration.

    Raises:
      ValueError: a file is missing or not valid, or a key or a value is wrong.
    """
    experiment, params = _read_run(path)
    return experiment, changed(params, config_files, override)


def load(path: str) -> Experiment:
    """Reads the configuration of a run, without the checks of `check`.

    The checks were made when the run began.

    Args:
      path: the `params.yaml` of the run.

    Raises:
      ValueError: the file is missing or is not that of a run, a key in it is unknown, or a value
        has a wrong type.
    """
    return _read_run(path)[1]


def _read_run(path: str) -> tuple[str, Experiment]:
    if not os.path.isfile(path):
        raise ValueError(
            f"{path} is missing. Give the directory of a training run, which has this file."
        )
    params = Experiment()
    content = _read_file(path, path, params)
    experiment = content.pop("experiment", None)
    if not isinstance(experiment, str):
        raise ValueError(
            f"{path} was not written by tfcap.train: it names no experiment. Give the directory of "
            "a training run."
        )
    for key, value in _GONE.items():
        *groups, name = key.split(".")
        group: Any = content
        for part in groups:
            group = group.get(part) if isinstance(group, dict) else None
        if isinstance(group, dict) and group.get(name) == value:
            del group[name]
    # A key that the file lacks has its plain default, and not the value of the experiment.
    apply(params, content, path)
    return experiment, params


def save(params: Experiment, experiment: str, path: str) -> None:
    """Writes the `params.yaml` of a run, which appears only when all of it is written.

    Args:
      params: the configuration.
      experiment: the name of the experiment.
      path: the file to write.
    """
    content = {"experiment": experiment, **params.as_dict()}
    with replacing(path) as temporary, open(temporary, "w", encoding="utf-8") as file:
        yaml.safe_dump(content, file, sort_keys=False)


def decoding(task: Task, text: str = "", beam: int = 0) -> Decoding:
    """Returns the decoding options of a run with changes; `task` itself does not change.

    Args:
      task: the task of the run.
      text: keys of `task.decoding` with new values, for example `beam=5,length_power=1.0`. The name
        of a preset (`tfcap.decoding.PRESETS`) may stand before the keys, or alone. A preset
        replaces all options of the run.
      beam: the beam width; 0 takes the width from `text`, or else from the run.

    Raises:
      ValueError: the preset, a key or a value is wrong.
    """
    params = Decoding(**task.decoding.as_dict())
    preset, _, rest = text.partition(",")
    if preset.strip() in options.PRESETS:
        params = Decoding(**vars(options.PRESETS[preset.strip()]))
        text = rest
    elif preset and "=" not in preset:
        raise ValueError(
            f"`decoding={text}`: {preset} is not a preset. Give one of "
            f"{', '.join(options.PRESETS)}, or keys with values, as in beam=5, or a preset and "
            "then keys."
        )
    changes = texts.parse(text, "decoding", params) | ({"beam": beam} if beam else {})
    apply(params, changes, "decoding")
    _check_decoding(params, task.max_length)
    _say_without_effect(changes, params)
    return params


def values(params: hyperparams.Config) -> dict[str, Any]:
    """Returns all keys of a configuration with their values, as in {"task.seed": 1}.

    Args:
      params: the configuration, or a group of it.
    """

    def flat(groups: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, Any]]:
        for key, value in groups.items():
            inside = isinstance(value, dict)
            yield from flat(value, f"{prefix}{key}.") if inside else [(prefix + key, value)]

    return dict(flat(params.as_dict(), ""))


def parse_override(override: str, source: str = _OVERRIDE) -> dict[str, Any]:
    """Parses changes to a configuration from text into nested dictionaries.

    Text like `task.seed=1` becomes {"task": {"seed": 1}}.

    Args:
      override: YAML or JSON text, text like `a.b=1,c=2`, or the path of a YAML file.
      source: the name of the text in error messages, such as `params_override`.

    Raises:
      ValueError: the text or the file is not valid, a key is unknown, or a value has a wrong type.
    """
    params = Experiment()
    return _converted_content(params, _read(override, source, params), source)


def changed(params: Experiment, config_files: Sequence[str], override: str) -> Experiment:
    """Applies files and an override to a configuration, checks it, and returns it.

    Args:
      params: the configuration. This object is changed.
      config_files: YAML files or names of recipes, applied in this order.
      override: changes that are applied last: YAML or JSON text, text like `a.b=1,c=2`, or the path
        of a YAML file.

    Raises:
      ValueError: a file is missing or not valid, or a key or a value is wrong.
    """
    for file in config_files:
        source = f"`config_file` {file}"
        path = recipes.find(file, "`config_file`")
        apply(params, _read_file(path, source, params), source)
    changes = _read(override, _OVERRIDE, params)
    apply(params, changes, _OVERRIDE)
    for key in ("data_dir", "init_checkpoint"):
        setattr(params.task, key, os.path.expanduser(getattr(params.task, key)))
    check(params)
    decoding = changes.get("task", {}).get("decoding", {})
    _say_without_effect(decoding, params.task.decoding, "task.decoding.")
    return params


def _read(text: str, source: str, params: hyperparams.Config) -> dict[str, Any]:
    """Parses an override, or the YAML file that it names."""
    if re.fullmatch(r"[^=:]+\.(yaml|yml|json)", text):
        return _read_file(recipes.find(text, source), f"{source} {text}", params)
    return texts.parse(text, source, params)


def _read_file(path: str, source: str, params: hyperparams.Config) -> dict[str, Any]:
    with open(path, encoding="utf-8", errors="replace") as file:
        return texts.parse(file.read(), source, params, comments=True)


def apply(params: hyperparams.Config, content: Mapping[str, Any], source: str) -> None:
    """Changes keys of a configuration.

    Args:
      params: the configuration, or a group of it. This object is changed.
      content: the changes, as nested dictionaries.
      source: where the changes come from, for error messages, such as the path of a file.

    Raises:
      ValueError: a key is unknown, or a value has a wrong type.
    """
    params.override(_converted_content(params, content, source))


def _converted_content(
    params: hyperparams.Config, content: Mapping[str, Any], source: str
) -> dict[str, Any]:
    """Returns groups of keys with values of the types that `params` needs."""

    def convert(group: hyperparams.Config, content: Mapping[str, Any], prefix: str) -> dict:
        hints = typing.get_type_hints(type(group))
        result = {}
        for name, value in content.items():
            key = prefix + name
            old = vars(group).get(name)
            if name not in _names(group):
                raise ValueError(f"{source}: {_no_key(params, group, prefix, content, name)}")
            if not isinstance(old, hyperparams.Config):
                result[name] = _checked(value, hints[name], source, key)
            elif isinstance(value, Mapping):
                result[name] = convert(old, value, f"{key}.")
            else:
                raise ValueError(f"{source}: {key} must be a group of keys, as in {key}.KEY=VALUE.")
        return result

    return convert(params, content, "")


def _names(group: hyperparams.Config) -> list[str]:
    return [name for name in vars(group) if name not in group.RESERVED_ATTR]


def _no_key(
    params: hyperparams.Config,
    group: hyperparams.Config,
    prefix: str,
    content: Mapping[str, Any],
    name: str,
) -> str:
    """Says that `group`, which `content` changes, has no key `name`, and which key it may be."""
    said = f"there is no key {name}."
    of_decoding = isinstance(group, Decoding)
    if (of_decoding or not prefix) and (meant := options.meant(name)):
        start = "" if isinstance(params, Decoding) else "task.decoding."
        return f"{said} Use {' with '.join(start + key for key in meant)}."
    inside = _paths(group, prefix)
    for paths in [inside] if of_decoding else [inside, _paths(params, "")]:
        near = difflib.get_close_matches(name, {p.rpartition(".")[2] for p in paths}, 1, 0.75)
        if likely := [path for path in paths if path.rpartition(".")[2] in near]:
            return f"{said} Did you mean {' or '.join(likely[:3])}?"
    if isinstance(group, hyperparams.OneOfConfig):  # an option of the system is meant
        system = content.get("type", group.type)
        if system not in SYSTEMS or isinstance(content[name], Mapping):
            return f"{said} The systems are {', '.join(SYSTEMS)}. {REGISTERED}"
        group = getattr(group, system)
        prefix = f"{prefix}{system}."
    of_group = f"of {prefix[:-1]} " if prefix else ""
    return f"{said} The keys {of_group}are {', '.join(_names(group))}."


def _paths(group: hyperparams.Config, prefix: str) -> list[str]:
    """Returns the dotted names of the keys and groups inside a group."""
    leaves = [path.split(".") for path in values(group)]
    paths = (".".join(path[:n]) for path in leaves for n in range(1, len(path) + 1))
    return [prefix + path for path in dict.fromkeys(paths)]


def _checked(value: Any, hint: Any, source: str, key: str) -> Any:
    """Returns the value of a key in its type; a value of another type is an error."""
    value = texts.converted(value, hint)
    if texts.fits(value, hint):
        return value
    of_decoding = {f"task.decoding.{name}": names for name, names in options.CHOICES.items()}
    kind = getattr(hint, "__name__", hint)
    if allowed := (CHOICES | of_decoding | options.CHOICES).get(key):
        kind = f"one of {', '.join(map(str, allowed))}"
    remedies = {str: " Put quotes around a text.", bool: " Write true or false."}
    remedies[list] = " Write [A, B]."
    kinds = [typing.get_origin(one) or one for one in texts.types_of(hint)]
    remedy = next((remedies[one] for one in kinds if one in remedies), "")
    raise ValueError(
        f"{source}: {key} must be {kind}, not {value!r} ({type(value).__name__}).{remedy}"
    )


def check(params: Experiment) -> None:
    """Checks for wrong values, which would otherwise cause an error late in training.

    Args:
      params: the configuration.

    Raises:
      ValueError: a number is out of its range, a name is not one of the allowed names, or two
        values do not go together.
    """
    task = params.task
    if task.model.type not in SYSTEMS:
        raise ValueError(
            f"task.model.type={task.model.type} is not one of {', '.join(SYSTEMS)}. {REGISTERED}"
        )
    all_values = values(params)
    metrics = {"BLEU": [f"BLEU-{n}" for n in range(1, 5)]}
    metrics |= {name: list(keys) for name, keys in ON_REQUEST.items()}
    scores = [score for name in task.metrics for score in metrics.get(name, [name])]
    choices = CHOICES | {"trainer.best_checkpoint_eval_metric": (*scores, *_SCORES)}
    for name in task.metrics:
        if name not in METRICS:
            raise ValueError(f"task.metrics: {name} is not one of {', '.join(METRICS)}.")
    for key, allowed in choices.items():
        if all_values[key] not in allowed:
            names = ", ".join(map(str, allowed))
            raise ValueError(f"{key} must be one of {names}, not {all_values[key]!r}.")
    if task.objective == "scst" and task.self_critical.gradient == "sampling":
        if params.runtime.uses_xla:
            raise ValueError(
                "task.self_critical.gradient=sampling does not go together with "
                "runtime.enable_xla=true or a TPU, because XLA cannot compile the reward. Set "
                "task.self_critical.gradient=rescoring, or runtime.enable_xla=false without a TPU."
            )
    if task.teacher.model_dir and (task.objective != "xe" or task.backbone.trainable):
        raise ValueError(
            "task.teacher.model_dir needs task.objective=xe and task.backbone.trainable=false: set "
            "these keys, or leave the teacher out."
        )
    for key, value in all_values.items():
        if isinstance(value, int | float) and not isinstance(value, bool):
            _check_range(key, value)
    _check_decoding(task.decoding, task.max_length)


def _check_range(key: str, value: float) -> None:
    """Raises ValueError for a number that is not in its range of `_RANGES`."""
    allowed, is_right = next(
        (allowed, is_right)
        for allowed, is_right, patterns in _RANGES
        if any(fnmatch.fnmatchcase(key, pattern) for pattern in patterns.split())
    )
    if math.isnan(value) or (math.isinf(value) and key not in _MAY_BE_INFINITE):
        raise ValueError(f"{key} must be a finite number, not {value}.")
    if isinstance(value, int) and value >= _TOO_LARGE:
        raise ValueError(f"{key} must be below {_TOO_LARGE}, not {value}.")
    if not is_right(value):
        raise ValueError(f"{key} must be {allowed}, not {value}.")


def _say_without_effect(changes: Any, params: Decoding, prefix: str = "") -> None:
    """Logs a note on changed options of decoding that the search does not read."""
    names = [name for name in changes if options.READ_BY.get(name, params.search) != params.search]
    if names:
        keys = ", ".join(prefix + name for name in names)
        _log.warning(
            f"note: no effect of {keys}, which search={options.READ_BY[names[0]]} reads: this is "
            f"search={params.search}"
        )


def _check_decoding(params: Decoding, max_length: int) -> None:
    options.check(params, "task.decoding.")
    if params.max_length > max_length:
        raise ValueError(
            f"task.decoding.max_length={params.max_length} is above task.max_length={max_length}, "
            "the longest caption that the model was trained on. Lower task.decoding.max_length."
        )
    longest = params.max_length or max_length
    if params.min_length >= longest:
        raise ValueError(
            f"task.decoding.min_length={params.min_length} must be below {longest}, the number of "
            "words of the longest caption with its end mark."
        )
