"""Captions pictures from Python; the command `tfcap.caption` uses this package.

`tfcap.load` returns an `ImageCaptioner`. TensorFlow is imported when a model is loaded.
"""

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING

from tfcap import pretrained
from tfcap.captioning.image_captioner import ImageCaptioner
from tfcap.captioning.results import Caption, Failure, Match, Neighbour
from tfcap.files import versions

if TYPE_CHECKING:
    from tfcap import runs

__all__ = [
    "Caption",
    "Failure",
    "ImageCaptioner",
    "Match",
    "Neighbour",
    "captioner_of_run",
    "exported_model",
    "load",
]


def load(
    path: str | os.PathLike | Sequence[str | os.PathLike] | None = None,
    checkpoint: str = "best",
    decoding: str = "",
    beam: int = 0,
    data_dir: str | os.PathLike | None = None,
    dtype: str = "float32",
) -> ImageCaptioner:
    """Loads a captioner.

    Args:
      path: the directory of a training run, or the name of a pretrained model; a list of them makes
        an ensemble. It can also be the directory of an exported SavedModel, or of its versions:
        then the newest version is loaded. None loads "flickr8k", which comes with the package.
      checkpoint: `best`, `latest`, or, for a single run, the path of a checkpoint.
      decoding: changes to the decoding of the run: a preset, keys as in `search=sample,top_p=0.9`,
        or both. They are the keys of `task.decoding`.
      beam: the beam width; 0 uses the beam width of the run.
      data_dir: prepared data whose document frequencies `order=consensus` uses; by default the
        run's own copy of them.
      dtype: `float32` or `bfloat16`, the precision of the computation. bfloat16 is faster where the
        processor has units for it (docs/speed.md).
    """
    if path is None:
        path = pretrained.DEFAULT
    paths = [path] if isinstance(path, str | os.PathLike) else list(path)
    exports = [export for one in paths if (export := exported_model(one))]
    if not exports:
        from tfcap import runs

        run = runs.load_together(paths, checkpoint, dtype)
        frequencies = None if data_dir is None else os.fspath(data_dir)
        return captioner_of_run(run.with_decoding(decoding, beam), frequencies)
    if len(paths) > 1:
        raise ValueError(
            f"An ensemble needs run directories, and {exports[0]} is an export. Give the "
            "directories of the runs."
        )
    options = {
        "checkpoint": checkpoint != "best",
        "decoding": bool(decoding),
        "beam": bool(beam),
        "data_dir": data_dir is not None,
        "dtype": dtype != "float32",
    }
    if changed := [f"`{name}`" for name, differs in options.items() if differs]:
        raise ValueError(
            f"{', '.join(changed)} cannot be used with {exports[0]}, an export: what it computes "
            "is fixed. Load the run directory, or export it with these options."
        )
    from tfcap.captioning.runtimes import ExportedModel

    return ImageCaptioner(ExportedModel(exports[0]))


def captioner_of_run(run: "runs.Run", data_dir: str | None = None) -> ImageCaptioner:
    """Makes the captioner of a loaded run.

    Args:
      run: the run.
      data_dir: see `load`.
    """
    from tfcap.captioning.runtimes import TrainedRun

    return ImageCaptioner(TrainedRun(run, data_dir))


def exported_model(directory: str | os.PathLike) -> str | None:
    """Returns the SavedModel: `directory` itself, or its newest version; None if there is none.

    A version without a SavedModel is passed over, because it may still be being copied. A
    pretrained model and a run of the Hugging Face Hub are no exports.
    """
    directory = os.path.expanduser(directory)
    numbers = versions(directory) if os.path.isdir(directory) else []
    for path in (directory, *(os.path.join(directory, str(n)) for n in reversed(numbers))):
        if os.path.isfile(os.path.join(path, "saved_model.pb")):
            return path
    return None
