"""Loads several runs as one captioner, their ensemble."""

import dataclasses
import os
from collections.abc import Sequence

import tensorflow as tf

from tfcap.models.ensemble import Ensemble
from tfcap.preparing.features.backbone import Backbone
from tfcap.runs.best import read_scores
from tfcap.runs.build import reads_image
from tfcap.runs.compatibility import differences
from tfcap.runs.run import Run, load


def load_together(
    directories: Sequence[str], checkpoint: str = "best", dtype: str = "float32"
) -> Run:
    """Loads the captioner of a run, or of several runs as one ensemble.

    The first run decides how the ensemble decodes.

    Args:
      directories: one `--model_dir` or more.
      checkpoint: `best` or `latest` for every run; for a single run also as in `load`.
      dtype: `float32` or `bfloat16`, as in `load`.

    Raises:
      ValueError: as in `load`, a run is given twice, or the runs differ in vocabulary, features or
        number of regions.
    """
    if len(directories) > 1:
        _check_members(directories, checkpoint)
    members = [load(directory, checkpoint, dtype) for directory in directories]
    first, *others = members
    if not others:
        return first
    for other in others:
        vectors = any(reads_image(member.params.task) for member in (first, other))
        mine, known = other.fingerprint, first.fingerprint
        for name, got, wanted in differences(other.vocab, mine, known, vectors):
            raise ValueError(
                f"The members of an ensemble must have the same {name}. Received: {got} in "
                f"{other.directory} and {wanted} in {first.directory}. Use runs that were trained "
                "on the same data."
            )
        if other.max_regions != first.max_regions:
            own, theirs = first.max_regions or "all", other.max_regions or "all"
            raise ValueError(
                "The members of an ensemble must have the same task.validation_data.max_regions. "
                f"Received: {theirs} in {other.directory} and {own} in {first.directory}."
            )
    backbone = _backbones(members)
    return dataclasses.replace(
        first,
        model=Ensemble(
            [member.model for member in members],
            side_by_side=backbone is not None,
            name="ensemble",
        ),
        backbone=backbone,
        checkpoint=", ".join(member.checkpoint for member in members),
        signature=" & ".join(dict.fromkeys(member.signature for member in members)),
    )


def validated(run: Run) -> dict[str, float]:
    """Returns the validation scores of the weights of a run; empty if they were not validated.

    An ensemble has none. Nor has a checkpoint other than the best one: training keeps the scores
    beside the best one only.
    """
    if isinstance(run.model, Ensemble):
        return {}
    return read_scores(run.checkpoint)


class Backbones(tf.Module):
    """The backbones of several runs as one backbone that concatenates their features.

    All read the same pictures; only their weights differ.

    Letters: M backbones, B images, R regions, F feature width of each.

    Args:
      members: `preparing.features.backbone.Backbone` objects of the same network and sizes.
    """

    def __init__(self, members: Sequence[Backbone]):
        super().__init__(name="backbones")
        self.members = list(members)
        first = self.members[0]
        self.decode, self.resize = first.decode, first.resize
        self.boxes, self.boxes_in = first.boxes, first.boxes_in
        self.decoded_shape, self.num_regions = first.decoded_shape, first.num_regions
        self.feature_dim = first.feature_dim * len(self.members)

    def extract(self, images: tf.Tensor) -> tf.Tensor:
        """Extracts the features float32 [B, R, M F] of decoded pictures, see `Backbone.extract`."""
        return tf.concat([member.extract(images) for member in self.members], -1)


def _backbones(members: Sequence[Run]) -> Backbones | None:
    """Returns the backbones of runs; None if none has trained its own and so all share features."""
    if all(member.backbone is None for member in members):
        return None
    return Backbones(
        [
            member.backbone or Backbone.from_fingerprint(member.fingerprint, member.directory)
            for member in members
        ]
    )


def _check_members(directories, checkpoint):
    if checkpoint not in ("best", "latest"):
        raise ValueError(
            f"--checkpoint PATH needs exactly one --model_dir. Received: {len(directories)}. Use "
            "--checkpoint best or latest for an ensemble."
        )
    places = [os.path.realpath(directory) for directory in directories]
    if twice := {place for place in places if places.count(place) > 1}:
        raise ValueError(
            f"--model_dir must name different runs. Received: {sorted(twice)[0]} more than once."
        )
