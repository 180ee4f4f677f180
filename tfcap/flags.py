"""Flags that several commands share, and the data that they describe.

Commands define their flags before they import TensorFlow, so that `--help` answers at once. What
needs TensorFlow is imported inside the functions that use it.
"""

import os
from collections.abc import Collection, Iterable, Mapping
from typing import TYPE_CHECKING

from absl import flags

from tfcap import console, decoding, pretrained, storage
from tfcap.metrics import results

if TYPE_CHECKING:
    from tfcap import runs
    from tfcap.captioning import ImageCaptioner
    from tfcap.data.prepared import PreparedData
    from tfcap.models.captioner import Captioner


def define_run_flags() -> None:
    """Defines the flags of every command that reads trained models."""
    # In functions and not on import: the commands share names, and a program may import several.
    flags.DEFINE_multi_string(
        "model_dir",
        [],
        "Directory of a training run, or the name of a pretrained model: "
        f"{', '.join(pretrained.names())}. Repeat the flag to use an ensemble of runs.",
    )
    flags.DEFINE_string("checkpoint", "best", "Checkpoint to load: best, latest, or a path.")
    flags.DEFINE_enum(
        "dtype",
        "float32",
        ["float32", "bfloat16"],
        "Precision of the captioner. bfloat16 is faster where the processor has units for it; few "
        "captions change.",
    )


def define_reference_set() -> None:
    """Defines which references are read, flags of every command that scores captions."""
    flags.DEFINE_enum(
        "reference_set",
        "all",
        results.REFERENCE_SETS,
        "References used for each image: the first 5 (c5), the first 40 (c40), or all.",
    )
    flags.DEFINE_bool(
        "partial", False, "Score only the images that have references and captions in every file."
    )


def define_decoding_flags() -> None:
    """Defines the flags of every command that decodes captions."""
    flags.DEFINE_integer(
        "beam", None, "Beam width; by default that of the configuration of the run.", lower_bound=1
    )
    flags.DEFINE_string(
        "decoding",
        "",
        "Changes to the decoding that the run is configured with: a preset "
        f"({', '.join(decoding.PRESETS)}), keys of task.decoding as in search=sample,top_p=0.9, or "
        "a preset followed by keys.",
    )


def define_seed_flag() -> None:
    """Defines `--seed` of commands that sample. An exported model gets a seed with each request."""
    flags.DEFINE_integer(
        "seed", 1, "Random seed for sampling.", lower_bound=0, upper_bound=decoding.LARGEST_SEED
    )


def check_read(readers: Iterable[tuple[str, Collection[str]]], active: Collection[str]) -> None:
    """Checks that each given flag is read, because a flag without an effect may be a mistake.

    Args:
      readers: names of flags, separated by spaces, and what reads them, such as "--rerank".
      active: the readers that this command line has.

    Raises:
      UsageError: a flag is given and nothing reads it.
    """
    given = flags.FLAGS
    for names, who in readers:
        for name in names.split():
            if given[name].present and not set(who) & set(active):
                raise console.UsageError(
                    f"--{name} has no effect here, because only {' or '.join(who)} reads it. "
                    f"Received: {' '.join(given[name].serialize().split())}. Leave it out"
                    f"{_or_give(who)}."
                )


def _or_give(readers: Collection[str]) -> str:
    """Returns the second remedy of `check_read`; nothing if a reader is not a flag."""
    return f", or give {' or '.join(readers)}" if all(r.startswith("--") for r in readers) else ""


def check_output_files(
    outputs: Iterable[str], inputs: Iterable[str] = (), also_read: Iterable[str] = ()
) -> None:
    """Checks, before any work, that the files of flags can be written and overwrite no other.

    Args:
      outputs: names of flags that hold the path of a file to write.
      inputs: names of flags that hold one or more paths of files to read.
      also_read: further paths of files to read.

    Raises:
      UsageError: two flags name the same file, or a file cannot be written at a path.
    """
    read = places([*also_read, *(path for name in inputs for path in _paths(name))])
    written: dict[str, str] = {}
    for name in outputs:
        for path in _paths(name):
            check_output_file(name, path, read)
            other = written.setdefault(os.path.realpath(path), name)
            if other != name and not path.startswith("/dev/"):  # all may go to /dev/null
                raise console.UsageError(
                    f"--{other} and --{name} would write the same file. Received: {path} for both. "
                    "Give different paths."
                )


def _paths(name: str) -> list[str]:
    """Returns the paths that a flag holds; none if it is not given."""
    value = getattr(flags.FLAGS, name)
    return [value] if isinstance(value, str) and value else list(value or [])


def places(paths: Iterable[str]) -> dict[str, str]:
    """Returns the paths by the file that each of them stands for, whatever links lead there."""
    return {os.path.realpath(path): path for path in paths}


def check_output_file(name: str, path: str, read: Mapping[str, str]) -> None:
    """Checks, before any work, that the file of a flag can be written and overwrites no input.

    Args:
      name: the flag.
      path: the file.
      read: the files that the command reads, from `places`.

    Raises:
      UsageError: the directory of the file does not exist or cannot be written, the path is that of
        a directory, or the command reads this file.
    """
    folder = os.path.dirname(path) or "."
    if not os.path.isdir(folder):
        raise console.UsageError(f"{path} cannot be written: there is no such directory.")
    if os.path.isdir(path):
        raise console.UsageError(f"{path} cannot be written: it is a directory.")
    if not path.startswith("/dev/") and not os.access(folder, os.W_OK | os.X_OK):
        raise console.UsageError(
            f"{path} cannot be written: there is no permission to write in {folder}."
        )
    other = read.get(os.path.realpath(path))
    if other is not None and not path.startswith("/dev/"):
        raise console.UsageError(
            f"--{name} would overwrite {other}, which this command reads. Received: "
            f"--{name}={path}. Give the path of another file."
        )


def check_output_directory(flag: str, path: str | None) -> None:
    """Checks, before any work, that a directory can be written; it may not exist yet.

    Args:
      flag: its flag, such as "--out".
      path: its value; None or empty where the flag is not given.

    Raises:
      UsageError: a file is in its place, or its nearest existing directory cannot be written.
    """
    if not path or storage.is_remote(path):
        return
    place = os.path.abspath(path)
    while not os.path.lexists(place):
        place = os.path.dirname(place)
    if not os.path.isdir(place):
        raise console.UsageError(
            f"{flag} must be a directory. Received: {path}, where {os.path.basename(place)} is a "
            "file. Choose another one."
        )
    if not os.access(place, os.W_OK | os.X_OK):
        raise console.UsageError(
            f"{flag} must be a directory that can be written. Received: {path}, without the "
            f"permission to write in {place}. Choose another one."
        )


def load_data(run: "runs.Run", folder: str | None) -> "PreparedData":
    """Loads the prepared data of `--data_dir`, or of the run if the flag is empty.

    Raises:
      ValueError: the data is missing, the model was trained with other words or features, or the
        backbone was trained, too, and the data has no pictures.
    """
    from tfcap import runs
    from tfcap.data.prepared import PreparedData

    data = PreparedData.load(folder or run.data_dir)
    runs.check_vocabulary(run, data)
    return run.view(data)


def captioner_of(decoding: str, beam: int, run: "runs.Run") -> "ImageCaptioner":
    """Makes what captions pictures with a run, for data whose features it cannot read."""
    from tfcap.captioning import ImageCaptioner
    from tfcap.captioning.trained import TrainedRuns

    return ImageCaptioner(TrainedRuns(run, decoding, beam))


def refined(
    run: "runs.Run | None", data: "PreparedData", folder: str, flag: str
) -> tuple["Captioner", str]:
    """Loads the m-RNN whose refined features are the vectors of images.

    Args:
      run: the run that the command is about; None for captions from a file.
      data: the prepared data.
      folder: the directory of the run of the m-RNN.
      flag: the flag that names it.

    Returns:
      The model and its checkpoint.

    Raises:
      UsageError: one of the two runs trained its backbone.
      ValueError: as `runs.load`.
    """
    from tfcap import runs

    other = runs.load(folder)
    runs.check_vocabulary(other, data)
    if (run and run.backbone is not None) or other.backbone is not None:
        raise console.UsageError(
            f"{flag} cannot be used with a run that trained its backbone: the two models read "
            f"different features. Received: {folder}."
        )
    return other.model, other.checkpoint
