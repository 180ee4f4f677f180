"""Builds the captioner that a configuration describes."""

from collections.abc import Mapping
from typing import Any

from tfcap import configs, models
from tfcap.models.captioner import Captioner
from tfcap.models.end_to_end import EndToEnd
from tfcap.preparing.features.backbone import Backbone


def reads_image(task: configs.Task) -> bool:
    """Returns whether the system reads the vector of the whole image if the data has one."""
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


def with_backbone(
    captioner: Captioner, task: configs.Task, fingerprint: Mapping[str, Any], folder: str
) -> Captioner:
    """Adds the backbone of the data to a captioner if a `configs.Task` trains both.

    Args:
      captioner: the captioner.
      task: the configuration.
      fingerprint: the fingerprint of the prepared data.
      folder: the directory with the weights of the backbone: the data or the run.

    Raises:
      ValueError: the data has no backbone, its backbone has no weights, or they are missing.
    """
    if not task.backbone.trainable:
        return captioner
    backbone = Backbone.from_fingerprint(fingerprint, folder)
    if backbone.model is None:
        raise ValueError(
            f"task.backbone.trainable needs a network. Received: {backbone.backbone_name}, which "
            "has no weights. Prepare the data with another --backbone and with --keep_pictures."
        )
    return EndToEnd(captioner, backbone, trainable=task.backbone.learning_rate_factor > 0)
