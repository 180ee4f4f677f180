"""The flags of the command `tfcap.evaluate`, which are defined without TensorFlow."""

from absl import flags

from tfcap import cli
from tfcap.metrics import score_flags
from tfcap.reranking import options as reranking

FILES = ("output", "hypotheses", "metrics", "per_image", "report")  # flags that name a file


def define() -> None:
    """Defines the flags of the command."""
    # Here and not on import: the commands share names, and a program may import several.
    cli.define_run_flags()
    cli.define_decoding_flags()
    reranking.define()
    reranking.define_sweep()
    flags.DEFINE_string(
        "data_dir", None, "Directory of the prepared data; by default that of the run."
    )
    flags.DEFINE_string("split", "val", "Split whose images are captioned.")
    flags.DEFINE_integer("batch_size", 50, "Number of images decoded together.", lower_bound=1)
    flags.DEFINE_integer(
        "limit", 0, "Use only so many images, the first of the split; 0 uses all.", lower_bound=0
    )
    cli.define_seed_flag()
    flags.DEFINE_integer(
        "prefix_words",
        0,
        "Begin every caption with this many words of the first reference of its image.",
        lower_bound=0,
    )
    flags.DEFINE_bool(
        "perplexity", False, "Also compute the perplexity of the references (base 2)."
    )
    flags.DEFINE_bool(
        "diversity",
        False,
        "Also compute the share of novel captions; with several captions per image also Div-n, "
        "mBLEU, self-CIDEr and the score of the best caption of each image.",
    )
    flags.DEFINE_string("output", None, "File to write: captions in COCO result format.")
    flags.DEFINE_string("hypotheses", None, "File to write: all captions of each image as JSON.")
    flags.DEFINE_string("metrics", None, "File to write: scores as JSON.")
    flags.DEFINE_string("per_image", None, "File to write: scores of each image as JSON.")
    flags.DEFINE_string("report", None, "File to write: an HTML page with scores and pictures.")
    flags.DEFINE_multi_string(
        "beside",
        [],
        "NAME=results.json or NAME=MODEL_DIR: another run that page and figures show beside this "
        "one; can be repeated.",
    )
    flags.DEFINE_string(
        "attention", None, "Directory to write: figures of the attention, one row for each model."
    )
    flags.DEFINE_string("images", None, "Directory of the images; by default that of the data.")
    score_flags.define(clip=True)
    flags.DEFINE_string(
        "predictions",
        None,
        "Score this file instead of a model: a COCO result file or a file of --hypotheses.",
    )
    flags.DEFINE_string("references", None, "References for --predictions: a COCO annotation file.")
    cli.define_reference_set()


def check(given) -> list[str]:
    """Checks the flags before any work; returns the names of the scores.

    Raises:
      UsageError: flags exclude each other, or a file cannot be written.
      ValueError: a file of --instances is bad.
    """
    _check_source(given)
    cli.check_folders(*FILES)
    names = score_flags.chosen(given, given.clip)
    reranking.check()
    reranking.sweep()
    return names


def _check_source(given) -> None:
    """Raises UsageError unless the flags name a model, or a file of captions and its references."""
    if not (given.predictions or given.references or given.model_dir):
        raise cli.UsageError(
            "Give --model_dir, or --predictions and --references. Received: none of them."
        )
    if given.model_dir and not (given.predictions or given.references):
        return
    if not (given.predictions and given.references) or given.model_dir:
        raise cli.UsageError(
            "--predictions and --references must be given together, and without --model_dir. "
            f"Received: --predictions={given.predictions!r}, --references={given.references!r}, "
            f"--model_dir={given.model_dir!r}."
        )
    if given.rerank and not given.data_dir:
        raise cli.UsageError(
            "--rerank of --predictions needs --data_dir, the prepared data with the images and "
            "the reference images. Received: no --data_dir."
        )
    if given.images and not given.data_dir:
        raise cli.UsageError(
            "--images needs --data_dir, which has the file names of the images. Received: "
            f"--images={given.images} with --predictions. Give --data_dir, too."
        )
