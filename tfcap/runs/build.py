"""Builds the captioner that a configuration describes."""

from collections.abc import Mapping
from typing import Any

from tfcap import configs, models
from tfcap.models.captioner import Captioner


def reads_image(task: configs.Task) -> bool:
    """Returns whether the system reads one vector of the whole image, where the data has it."""
    return models.MODELS[task.model.type or ""].reads_image


def width_of(task: configs.Task, features: Mapping[str, Any]) -> int:
    """Returns F, the width of what the system reads.

    Args:
      task: the configuration.
      features: the entry `features` of dataset.json.
    """
    return features["image_dim" if reads_image(task) and "image_dim" in features else "dim"]


def build_model(task: configs.Task, vocab_size: int, feature_dim: int) -> Captioner:
    """Builds the captioner that a `configs.Task` describes, with new weights."""
    options = task.model.get().as_dict()
    return models.build(task.model.type or "", vocab_size, task.max_length, feature_dim, **options)
