"""Loads several runs as one captioner, their ensemble."""

import dataclasses
import os
from collections.abc import Sequence

from tfcap.models.ensemble import Ensemble
from tfcap.runs.compatibility import differences
from tfcap.runs.run import Run, load


def load_together(directories: Sequence[str], checkpoint: str = "best") -> Run:
    """Loads the captioner of a run, or of several runs as one ensemble.

    The first run decides how the ensemble decodes.

    Args:
      directories: one `--model_dir` or more.
      checkpoint: `best` or `latest`, for each; for a single run also as in `load`.

    Raises:
      ValueError: as in `load`, or if the runs do not go together: the same twice, other
        vocabularies, features, lengths or numbers of regions.
    """
    if len(directories) > 1:
        _check_members(directories, checkpoint)
    members = [load(directory, checkpoint) for directory in directories]
    first, *others = members
    if not others:
        return first
    for other in others:
        for name, got, wanted in differences(other.vocab, other.fingerprint, first.fingerprint):
            raise ValueError(
                f"the {name} of {other.directory} ({got}) is not that of {first.directory} "
                f"({wanted}): the members of an ensemble must have been trained on the same data"
            )
        if other.max_regions != first.max_regions:
            mine, theirs = first.max_regions or "all", other.max_regions or "all"
            raise ValueError(
                f"{other.directory} sees {theirs} regions of an image and {first.directory} sees "
                f"{mine}: the members of an ensemble must see the same number"
            )
    return dataclasses.replace(
        first,
        model=Ensemble([member.model for member in members], name="ensemble"),
        checkpoint=", ".join(member.checkpoint for member in members),
        signature=" & ".join(dict.fromkeys(member.signature for member in members)),
    )


def _check_members(directories, checkpoint):
    if checkpoint not in ("best", "latest"):
        raise ValueError(
            f"--checkpoint PATH needs exactly one --model_dir. Received: {len(directories)}; use "
            "--checkpoint best or latest for an ensemble"
        )
    places = [os.path.realpath(directory) for directory in directories]
    if twice := {place for place in places if places.count(place) > 1}:
        raise ValueError(f"{sorted(twice)[0]} is given twice: the members of an ensemble differ")
