"""Flags that several commands share, and the data that they describe.

Commands define their flags before they import TensorFlow, so that `--help` answers at once. What
needs TensorFlow is imported inside the functions that use it.
"""

from typing import TYPE_CHECKING

from absl import flags

from tfcap import console, decoding, pretrained
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
