"""Resolves a configuration from an experiment, files and an override; loads and saves it."""

import dataclasses
import json
import os
import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any, get_args

import yaml
from official.core import exp_factory
from official.modeling import hyperparams

from tfcap import recipes
from tfcap.cli import did_you_mean
from tfcap.configs import experiments
from tfcap.configs.keys import check_keys
from tfcap.configs.rules import check, check_decoding, leaves
from tfcap.configs.schema import Decoding, Experiment, Runtime, Task, Trainer
from tfcap.configs.yaml_text import parse
from tfcap.decoding.options import PRESETS, WITHOUT_EFFECT
from tfcap.files import replacing


def resolve(
    experiment: str,
    config_files: Sequence[str] = (),
    override: str = "",
    changes: Mapping[str, Any] | None = None,
) -> Experiment:
    """Applies files and then an override to a registered experiment, and checks the result.

    Args:
      experiment: the registered name.
      config_files: YAML files or names of recipes, applied in this order.
      override: YAML or JSON text, or `a.b=1,c=2`, or the path of a YAML file.
      changes: groups of keys that are applied before the files.

    Returns:
      The configuration. It is locked: assignments to its keys raise an error.

    Raises:
      ValueError: if the experiment or a key is unknown, or a value has a wrong type or cannot work.
    """
    known = experiments.names()
    if experiment not in known:
        raise ValueError(
            f"--experiment must be one of {', '.join(known)}. Received: {experiment!r}."
            f"{did_you_mean(experiment, known)}"
        )
    params = exp_factory.get_exp_config(experiment)
    if changes:
        check_keys(params, changes, experiment)
        params.override(changes, is_strict=True)
    return _overridden(params, config_files, override)


def resume(
    path: str, config_files: Sequence[str] = (), override: str = ""
) -> tuple[str, Experiment]:
    """Reads a `params.yaml` and applies files and an override as `resolve` does.

    Returns:
      The name of the experiment and the configuration.

    Raises:
      ValueError: as in `load` and `resolve`.
    """
    experiment, params = _read(path)
    return experiment, _overridden(params, config_files, override)


def _overridden(params, config_files, override):
    for source in config_files:
        _override(params, source, "--config_file")
    if override:
        _override(params, override, "--params_override")
    for key in ("data_dir", "init_checkpoint"):
        if isinstance(path := getattr(params.task, key), str):
            params.override({"task": {key: os.path.expanduser(path)}})
    check(params)
    _lock(params)
    return params


def decoding(task: Task, text: str = "", beam: int = 0) -> Decoding:
    """Returns the decoding options of one evaluation or export.

    Args:
      task: the task of a run; it is not changed.
      text: keys of `task.decoding`, for example `beam=5,length_power=1.0`. A name of
        `decoding.PRESETS` may stand first or alone; it replaces all options of the run. If `text`
        chooses another search, the options of the run for its own search get their defaults.
      beam: the beam width, which overrides all others; 0 does not change it.

    Raises:
      ValueError: if a preset or key is unknown, a value is of a wrong type, values do not fit
        together, or a key has no effect.
    """
    changed = Decoding(**task.decoding.as_dict())
    preset, _, rest = text.partition(",")
    if preset and "=" not in preset:
        if preset.strip() not in PRESETS:
            raise ValueError(
                f"--decoding must be a preset ({', '.join(PRESETS)}), keys as in beam=5, or both. "
                f"Received: {text!r}"
            )
        changed, text = Decoding(**dataclasses.asdict(PRESETS[preset.strip()])), rest
    content: dict[str, Any] = {}
    if text:
        try:
            read = _parse(text, {key: type(value) for key, value in changed.as_dict().items()})
        except yaml.YAMLError:
            read = None
        if not isinstance(read, dict):
            raise ValueError(
                "--decoding must have key=value after a preset, with commas between them. "
                f"Received: {text!r}"
            )
        content = read
    if beam:
        content["beam"] = beam
    check_keys(changed, content, "--decoding")
    changed.override(content, is_strict=True)
    # Options of the run or the preset for another search return to their defaults; an option that
    # the user asked for and that has no effect is an error.
    for part in WITHOUT_EFFECT:
        for key, why in part(changed).items():
            if key in content:
                raise ValueError(f"task.decoding.{key} {why}. Received: {content[key]!r}")
            changed.override({key: getattr(Decoding(), key)}, is_strict=True)
    check_decoding(changed, task.max_length)
    return changed


def load(path: str) -> Experiment:
    """Reads the `params.yaml` that `save` wrote.

    Raises:
      ValueError: if the file is missing or does not describe an experiment of this version.
    """
    return _overridden(_read(path)[1], (), "")


def _read(path: str) -> tuple[str, Experiment]:
    """Reads the name of the experiment and the values, which are not yet checked or locked."""
    if not os.path.isfile(path):
        raise ValueError(f"{path} is missing. --model_dir must be the directory of a training run.")
    try:
        with open(path, encoding="utf-8") as file:
            content = parse(file.read())
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ValueError(
            f"{path} must be a YAML file and may be damaged. Received: "
            f"{' '.join(str(error).split())}"
        ) from error
    if not isinstance(content, dict) or "experiment" not in content:
        raise ValueError(f"{path} was not written by tfcap.train: the key `experiment` is missing")
    experiment, known = content.pop("experiment"), experiments.names()
    if experiment not in known:
        raise ValueError(f"{path}: experiment must be one of {known}. Received: {experiment!r}")
    # Not the values of the experiment: a run from before a key existed was trained without it.
    params = Experiment(task=Task(), trainer=Trainer(), runtime=Runtime())
    check_keys(params, content, path)
    params.override(content, is_strict=False)
    return experiment, params


def save(params: Experiment, experiment: str, path: str) -> None:
    """Writes `params` and the name of their experiment as YAML, completely or not at all."""
    content = {"experiment": experiment, **params.as_dict()}
    with replacing(path) as temporary, open(temporary, "w", encoding="utf-8") as file:
        yaml.safe_dump(content, file, sort_keys=False)


def _override(params: Experiment, source: str, flag: str) -> None:
    """Checks the keys of one source and applies it to `params`, which changes.

    The arguments and errors are those of `_content`, and an unknown key is an error.
    """
    hints = {key: hint for key, _, hint in leaves(params)}
    name, content = _content(source, flag, hints)
    check_keys(params, content, name)
    optional = [key for key, hint in hints.items() if type(None) in get_args(hint)]
    params.override(_with_none(content, optional), is_strict=True)


def _with_none(content: Mapping[str, Any], optional: Collection[str], prefix: str = "") -> dict:
    """Returns nested values where the words `none` and `None` are None for `optional` keys."""
    changed = {}
    for key, value in content.items():
        if isinstance(value, dict):
            value = _with_none(value, optional, f"{prefix}{key}.")
        elif value in ("none", "None") and prefix + key in optional:
            value = None
        changed[key] = value
    return changed


def given(override: str) -> dict[str, Any]:
    """Returns the nested keys and values of a text as `--params_override` takes it.

    Raises:
      ValueError: it cannot be read.
    """
    return _content(override, "--params_override")[1] if override else {}


def _content(
    source: str, flag: str, kinds: Mapping[str, Any] | None = None
) -> tuple[str, dict[str, Any]]:
    """Reads one source of changes.

    Args:
      source: path of a YAML file, name of a recipe, YAML or JSON text, or `a.b=1,c=2`.
      flag: the flag that gave the source. `--config_file` is always a file or a recipe;
        `--params_override` is one if it looks like a file name.
      kinds: the types of the known keys.

    Returns:
      How errors call the source, and its keys and values.

    Raises:
      ValueError: it cannot be read.
    """
    name, text = flag, source
    if flag == "--config_file" or re.fullmatch(r"[^=:]+\.(yaml|yml|json)", source):
        name = f"{flag} {source}"
        with open(recipes.find(source, flag), encoding="utf-8") as file:
            text = file.read()
    try:
        content = parse(text) if name != flag else _parse(text, kinds or {})
    except (ValueError, yaml.YAMLError) as error:  # YAML's take several lines
        raise ValueError(
            f"{name} must be YAML or a.b=1,c=2: {' '.join(str(error).split())}"
        ) from error
    if content is None:
        return name, {}
    if not isinstance(content, dict):
        raise ValueError(
            f"{name} must map keys to values, for example task.max_length=20. Received: {text!r}"
        )
    return name, nested(content)


def _parse(text: str, kinds: Mapping[str, Any]) -> Any:
    """Parses JSON, YAML, or the `a.b=1,c.d=x` that flags of the Model Garden accept.

    Args:
      text: what is parsed.
      kinds: the types of the known keys. In the last form, the value of a text key is text,
        whatever it looks like.

    Raises:
      ValueError: a known key has a colon in the last form.
    """
    text = re.sub(r"\A[\s,]*,", "", text)
    if not re.match(r"\s*[\w.]+\s*=", text):
        try:
            return json.loads(text)  # YAML 1.1 would read the number 1e-07 of JSON as text
        except (ValueError, RecursionError):  # also of integers of thousands of digits
            return parse(text)
    content = {}
    for key, value in _items(text):
        # A text stays as it is: YAML reads `no` as false, and ` #2` as a comment.
        quoted = re.fullmatch(r"(['\"]).*\1", value, re.DOTALL)
        for other in () if quoted else re.findall(r",\s*(\w+\.[\w.]+)\s*:", value):
            if other in kinds:
                raise ValueError(f"write {other}=..., not {other}:..., after {key}=...")
        content[key] = value if kinds.get(key) is str and not quoted else parse(value)
    return content


def _items(text: str) -> list[tuple[str, str]]:
    """Divides `a.b=1,c=x` into keys and values; a comma divides only before a key."""
    quoted = r""" "(?:[^"\\]|\\.)*" | '(?:[^']|'')*' """
    item = rf"\s*([\w.]+)\s*=\s*({quoted}|.*?)\s*(?:,(?=\s*[\w.]+\s*=)|,?\s*\Z)"
    return re.findall(item, text, re.VERBOSE | re.DOTALL)


def nested(changes: Mapping[str, Any]) -> dict[str, Any]:
    """Returns changes as groups of keys: `{"a.b": 1}` becomes `{"a": {"b": 1}}`.

    Raises:
      ValueError: a key has both a value and keys of its own.
    """
    groups: dict[str, Any] = {}
    _merge(groups, changes)
    return groups


def _merge(group: dict[str, Any], changes: Mapping[str, Any]) -> None:
    for key, value in changes.items():
        name, _, rest = str(key).partition(".")
        value = {rest: value} if rest else value
        if isinstance(value, Mapping) != isinstance(group.get(name, value), dict):
            raise ValueError(
                f"{name} must be a value or a group of keys. Received: both, {group[name]!r} and "
                f"{value!r}."
            )
        if isinstance(value, Mapping):
            _merge(group.setdefault(name, {}), value)
        else:
            group[name] = value


def _lock(params: hyperparams.Config) -> None:
    """Locks a configuration and every group in it, so that they refuse assignments."""
    for field in dataclasses.fields(params):
        if isinstance(child := getattr(params, field.name), hyperparams.Config):
            _lock(child)
    params.lock()
