"""Builds the captioner that a configuration describes."""

from tfcap import configs, models
from tfcap.models.captioner import Captioner


def build_model(task: configs.Task, vocab_size: int, feature_dim: int) -> Captioner:
    """Builds the captioner that a `configs.Task` describes, with new weights."""
    options = task.model.get().as_dict()
    return models.build(task.model.type or "", vocab_size, task.max_length, feature_dim, **options)
