"""Reads the headers of recipes, resolves recipes, and builds and checks small models of them.

Letters: B images, K beams, T positions of a caption.
"""

import dataclasses
import functools
import json
import pathlib
import re
from typing import Any

import numpy as np
import tensorflow as tf
import yaml

from helpers import seeds
from tfcap import configs, decoding, runs
from tfcap.models.captioner import Captioner
from tfcap.training import optim
from tfcap.training.task import CaptionTask

ROOT = pathlib.Path(__file__).parents[2]
RECIPES = sorted(path.relative_to(ROOT).as_posix() for path in ROOT.glob("experiments/*/*.yaml"))
SELF_CRITICAL = [name for name in RECIPES if name.endswith("_scst.yaml")]
CROSS_ENTROPY = [name for name in RECIPES if name not in SELF_CRITICAL]
# Sizes of the reduced models and of their batch.
VOCABULARY, FEATURES, LENGTH, REGIONS = 23, 6, 5, 3


@dataclasses.dataclass
class Header:
    """The comment at the top of a recipe."""

    fields: dict[str, str]  # the text of each `# Name: text`, lines joined
    flags: dict[str, list[str]]  # flags of the training command, with their values
    prepared: str  # directory that the preparation command writes; empty without one

    @property
    def system(self) -> str:
        """The system that the command trains."""
        return self.flags["experiment"][0].removesuffix("_scst")


def named(name: str) -> str:
    """The path of the recipe called `name`, such as coco/xlan_xe."""
    return f"experiments/{name}.yaml"


def short(recipe: str) -> str:
    """The name of a recipe, given its path."""
    return recipe.removeprefix("experiments/").removesuffix(".yaml")


@functools.cache
def header(recipe: str) -> Header:
    """Reads the comment at the top of a recipe."""
    fields, name = {}, ""
    for line in (ROOT / recipe).read_text(encoding="utf-8").splitlines():
        if not line.startswith("#"):
            break
        field = re.match(r"# ([A-Z][a-z]+(?: released)?): *(.*)", line)
        name = field[1] if field else name
        fields[name] = fields.get(name, "") + " " + (field[2] if field else line[1:].strip())
    command = fields.get("Command", "").partition("python -m tfcap.train ")[2]
    flags: dict[str, list[str]] = {}
    for key, value in re.findall(r"--(\w+)[ =](\S+)", command):
        flags.setdefault(key, []).append(value)
    prepared = re.search(r"python -m tfcap\.prepare .*--out (\S+)", fields.get("Features", ""))
    return Header(fields, flags, prepared[1] if prepared else "")


@functools.cache
def resolve(recipe: str, override: str = "") -> configs.Experiment:
    """Resolves the configuration that the command of a recipe trains with."""
    flags = header(recipe).flags
    files = [str(ROOT / name) for name in flags["config_file"]]
    return configs.resolve(flags["experiment"][0], files, override)


@functools.cache
def _keys(name: str) -> frozenset[str]:
    """Collects the dotted keys of one configuration file."""

    def keys(content, prefix=""):
        for key, value in content.items():
            if isinstance(value, dict):
                yield from keys(value, f"{prefix}{key}.")
            else:
                yield f"{prefix}{key}"

    return frozenset(keys(yaml.safe_load((ROOT / name).read_text("utf-8"))))


def given(recipe: str) -> set[str]:
    """Collects the dotted keys that the configuration files of a recipe set."""
    return {key for name in header(recipe).flags["config_file"] for key in _keys(name)}


def trained_by(checkpoint: str) -> list[str]:
    """Finds the recipes whose command writes `checkpoint` as its best one."""
    place = checkpoint.removesuffix("/best_ckpt")
    return [name for name in RECIPES if header(name).flags.get("model_dir") == [place]]


def reduced(recipe: str, **changes: Any) -> configs.Experiment:
    """Resolves a recipe with a narrow model of at most one layer in each stack.

    Args:
      recipe: path of the recipe.
      **changes: keys of the task, with other values.
    """
    sizes = {}
    for key, value in resolve(recipe).task.model.get().as_dict().items():
        if key == "heads":
            sizes[key] = 2
        elif value and (key == "width" or key.endswith("_width")):
            sizes[key] = 16 if key == "width" else 8
        elif key.endswith("_layers"):
            sizes[key] = min(value, 1)
        elif key.endswith("_vectors"):
            sizes[key] = min(value, 3)
    model = {"model": {header(recipe).system: sizes}}
    return resolve(recipe, json.dumps({"task": model | changes}))


def small_model(params: configs.Experiment) -> Captioner:
    """Builds the model of a configuration of `reduced`."""
    seeds.set_seed(params.task.seed)
    return runs.build_model(params.task, VOCABULARY, FEATURES)


def check_rates(recipe: str, rates: dict[int, float]) -> None:
    """Checks learning rates by step, counted from 1, before any plateau."""
    params = resolve(recipe)
    width = params.task.model.get().as_dict()["width"]
    schedule = optim.schedule(params.trainer.optimizer_config.schedule, width)
    values = {step: float(schedule(step - 1)) for step in rates}
    np.testing.assert_allclose(list(values.values()), list(rates.values()), rtol=1e-3)


def check_step(
    task: CaptionTask, model: Captioner, inputs: Any, steps: int, metrics: Any = None
) -> dict[str, tf.Tensor]:
    """Makes the last of `steps` training steps: weights must stay finite, and most must change.

    Returns:
      The logs of `train_step`.
    """
    metrics = metrics or task.build_metrics()
    optimizer = task.build_optimizer(model, optim.Plateau(0, 1.0, "CIDEr", True))
    optimizer.iterations.assign(steps - 1)
    before = [value.numpy() for value in model.trainable_variables]
    logs = task.train_step(inputs, model, optimizer, metrics)
    after = [value.numpy() for value in model.trainable_variables]
    assert all(np.isfinite(value).all() for value in after)
    changed = [not np.array_equal(*pair) for pair in zip(before, after, strict=True)]
    assert np.mean(changed) > 0.8
    return logs


def check_beam_search(params: configs.Experiment, model: Captioner, inputs: Any) -> None:
    """Runs the configured search: captions must be whole, without special ids, best first."""
    images = inputs["mask"].shape[0]
    length = min(params.task.max_length, LENGTH)
    options = decoding.Options(**params.task.decoding.as_dict())
    captions, scores = decoding.Search(options, length)(model, model.encode(inputs))
    assert captions.shape == (images, params.task.decoding.beam, length)
    assert np.isfinite(scores).all() and (np.diff(scores) <= 0).all()
    for caption in captions.numpy().reshape(-1, length):
        words = caption[: np.argmax(caption == 2) if 2 in caption else length]
        assert (words > (3 if params.task.decoding.suppress_unk else 2)).all()
        assert (caption[len(words) + 1 :] == 0).all()


def batch(images: int, captions: int) -> dict[str, tf.Tensor]:
    """Makes random inputs; one caption is short, and the last image has one region less."""
    rng = np.random.default_rng(3)
    tokens = rng.integers(4, VOCABULARY, (images, captions, LENGTH)).astype(np.int32)
    tokens[..., 0], tokens[..., -1] = 1, 2
    tokens[0, 1, 3:] = 2, 0
    regions = [REGIONS] * (images - 1) + [REGIONS - 1]
    return {
        "features": tf.constant(rng.normal(size=(images, REGIONS, FEATURES)), tf.float32),
        "mask": tf.sequence_mask(regions, REGIONS),
        "tokens": tf.constant(tokens),
    }
