"""Captions pictures from Python; the command `tfcap.caption` uses this package.

`tfcap.load` returns an `ImageCaptioner`. TensorFlow is imported when a run or a SavedModel is
loaded, but not for a portable export.
"""

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING

from tfcap import pretrained
from tfcap.captioning.image_captioner import ImageCaptioner
from tfcap.captioning.portable_model import PortableModel, has_run
from tfcap.captioning.results import Caption, Failure, Match, Neighbour
from tfcap.files import versions
from tfcap.serving.standalone.caption import CARD

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
    "portable_directory",
]


def load(
    path: str | os.PathLike | Sequence[str | os.PathLike] | None = None,
    checkpoint: str = "best",
    decoding: str = "",
    beam: int = 0,
    data_dir: str | os.PathLike | None = None,
    dtype: str = "float32",
) -> ImageCaptioner:
    """Loads a captioner: an object that captions pictures when it is called with them.

    Args:
      path: the directory of a training run, or the name of a pretrained model; a list of them makes
        an ensemble. It can also be the directory of one export: of a SavedModel, of the numbered
        versions of a SavedModel, of which the newest is loaded, or of a portable export. None loads
        "flickr8k", which comes with the package. This model is a portable export together with its
        run: it captions without TensorFlow, and loads the run for everything else and for all
        other arguments. The run computes in float32, so about 2 in 100 captions differ.
      checkpoint: the weights of a run: `best` (the best validation score) or `latest`. For a single
        run it can also be the path of a checkpoint.
      decoding: changes to the decoding options of the run, as in `search=sample,top_p=0.9`. The
        name of a preset (`tfcap.decoding.PRESETS`) replaces all options, and may stand before other
        changes, as in `mrnn,beam=10`.
      beam: the beam width; 0 uses the beam width of the run.
      data_dir: a prepared directory whose captions give the document frequencies of CIDEr. Only the
        decoding option `order=consensus` uses them. None takes those of the training captions.
      dtype: `float32` or `bfloat16`, the precision of the computation. bfloat16 is faster where the
        processor has units for it (docs/speed.md).

    Raises:
      ValueError: nothing can be loaded from `path`, an argument is wrong, or an export is given
        together with other arguments or in a list of several paths.
    """
    if path is None:
        path = pretrained.DEFAULT
    paths = [path] if isinstance(path, str | os.PathLike) else list(path)
    options = {
        "checkpoint": checkpoint != "best",
        "decoding": bool(decoding),
        "beam": bool(beam),
        "data_dir": data_dir is not None,
        "dtype": dtype != "float32",
    }
    changed = [f"`{name}`" for name, differs in options.items() if differs]
    exports = [export for one in paths if (export := _export(one, bool(changed) or len(paths) > 1))]
    if not exports:
        from tfcap import runs

        run = runs.load_together(paths, checkpoint, dtype)
        frequencies = None if data_dir is None else os.fspath(data_dir)
        return captioner_of_run(run.with_decoding(decoding, beam), frequencies)
    if len(paths) > 1:
        raise ValueError(
            f"An ensemble needs run directories, but {exports[0]} is an export. Give the directory "
            "of the run that it was exported from."
        )
    if changed:
        raise ValueError(
            f"{', '.join(changed)} cannot be used with {exports[0]}, an export: what it "
            "computes is fixed. Load the run directory, or export it with these options."
        )
    if exported_model(exports[0]):
        from tfcap.captioning.runtimes import ExportedModel

        return ImageCaptioner(ExportedModel(exports[0]))
    return ImageCaptioner(PortableModel(exports[0]))


def _export(path: str | os.PathLike, needs_run: bool) -> str | None:
    """Returns the directory of the export at a path; None if the run there is to be loaded."""
    if exported := exported_model(path):
        return exported
    portable = portable_directory(path)
    return None if portable and needs_run and has_run(portable) else portable


def captioner_of_run(run: "runs.Run", data_dir: str | None = None) -> ImageCaptioner:
    """Makes the captioner of a run that is in memory.

    Args:
      run: the run, a result of `tfcap.runs.load`.
      data_dir: a prepared directory whose captions give the document frequencies of CIDEr. Only the
        decoding option `order=consensus` uses them. None takes those of the training captions.
    """
    from tfcap.captioning.runtimes import TrainedRun

    return ImageCaptioner(TrainedRun(run, data_dir))


def exported_model(directory: str | os.PathLike) -> str | None:
    """Returns the path of the exported SavedModel in a directory, or None if there is none.

    The SavedModel is `directory` itself or its newest numbered version. A version without the file
    `saved_model.pb` is passed over, because somebody may still be copying it. The result is also
    None for a run directory, the name of a pretrained model, and a run on the Hugging Face Hub.
    """
    directory = os.path.expanduser(directory)
    numbers = versions(directory) if os.path.isdir(directory) else []
    for path in (directory, *(os.path.join(directory, str(n)) for n in reversed(numbers))):
        if os.path.isfile(os.path.join(path, "saved_model.pb")):
            return path
    return None


def portable_directory(path: str | os.PathLike) -> str | None:
    """Returns the directory of a portable export, or None if there is none.

    A run that has such a file in its directory counts only if it comes with the package.

    Args:
      path: the directory, or the name of a pretrained model.
    """
    if os.fspath(path).startswith(pretrained.hub.PREFIX):  # it would be downloaded
        return None
    directory = pretrained.directory_of(path)
    if has_run(directory) and not pretrained.is_packaged(directory):
        return None  # nothing tells whether the file is that of the run
    return directory if os.path.isfile(os.path.join(directory, CARD)) else None
