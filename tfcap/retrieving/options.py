"""The flags of the command `tfcap.retrieve`, which are defined without TensorFlow."""

from typing import TYPE_CHECKING

from absl import flags

from tfcap import cli, pretrained
from tfcap.metrics import retrieval

if TYPE_CHECKING:
    from tfcap.data.prepared import PreparedData

QUERIES = ("query", "query_image", "image", "word", "neighbours")  # in place of ranking a split


def define() -> None:
    """Defines the flags of the command."""
    # Here and not on import: the commands share names, and a program may import several.
    cli.define_run_flags()
    flags.DEFINE_string(
        "data_dir", None, "Directory of the prepared data; by default that of the run."
    )
    flags.DEFINE_string("split", "val", "Split whose images and captions are ranked.")
    flags.DEFINE_integer("limit", 0, "Number of images from the start; 0 uses all.", lower_bound=0)
    flags.DEFINE_integer("batch_size", 8, "Number of images scored together.", lower_bound=1)
    flags.DEFINE_integer(
        "marginal_images",
        500,
        "Number of training images whose probabilities normalise the score of a caption; 0 does "
        "not normalise.",
        lower_bound=0,
    )
    flags.DEFINE_enum(
        "normalise",
        "images",
        retrieval.NORMALISATIONS,
        "How the --marginal_images normalise: by the mean of the probabilities that they give a "
        "caption, or by the probability given the mean of the images, which scores one image "
        "only.",
    )
    flags.DEFINE_integer("seed", 1, "Random seed for drawing the --marginal_images.", lower_bound=0)
    flags.DEFINE_integer(
        "shortlist",
        0,
        "Also rank, for each image, only the captions of this many images with the nearest "
        "features; 0 skips this.",
        lower_bound=0,
    )
    _define_first_stage()
    flags.DEFINE_string(
        "output",
        None,
        "Directory for all scores; the same command continues with what it finds there.",
    )
    flags.DEFINE_string("metrics", None, "File to write: recalls, median ranks and curves as JSON.")
    flags.DEFINE_string(
        "curves", None, "File to write: a PNG with the recall curves of both directions."
    )
    _define_queries()


def _define_queries() -> None:
    flags.DEFINE_multi_string("query", [], "Find images for this caption; can be repeated.")
    flags.DEFINE_multi_string(
        "query_image",
        [],
        "Find images like this picture file: those for which the caption of the picture is most "
        "probable; can be repeated.",
    )
    flags.DEFINE_multi_string(
        "image",
        [],
        "Find sentences for this picture file among the captions of the split; can be repeated.",
    )
    flags.DEFINE_multi_string(
        "word", [], "Find the words with the most similar embeddings; can be repeated."
    )
    flags.DEFINE_integer(
        "neighbours",
        0,
        "Find the nearest training images of this many images of the split, by their features and "
        "by features that --refined computes; 0 skips this.",
        lower_bound=0,
    )
    flags.DEFINE_integer(
        "top",
        5,
        "Number of images, sentences or words to find for each query.",
        lower_bound=1,
    )
    flags.DEFINE_string(
        "sheet", None, "File to write: a PNG with the pictures found for the queries."
    )


def _define_first_stage() -> None:
    flags.DEFINE_integer(
        "candidates",
        0,
        "Score only this many images for each caption, those with the nearest vectors; 0 scores "
        "all.",
        lower_bound=0,
    )
    flags.DEFINE_string(
        "index",
        "",
        "Directory that keeps the vectors of the images between runs; by default the directory "
        "`vectors` of the prepared data.",
    )
    flags.DEFINE_string(
        "refined",
        None,
        "Run directory of an m-RNN whose refined features are the vectors; by default the mean of "
        "an image's features is its vector.",
    )
    flags.DEFINE_bool(
        "approximate",
        False,
        "Find the nearest vectors through a graph (needs the extra tfcap[search]): faster with "
        "hundreds of thousands of images, but it may miss some.",
    )


def check(given) -> None:
    """Checks the flags before the scoring, which may take an hour.

    Raises:
      UsageError: flags exclude each other, or a file cannot be written.
    """
    if not given.model_dir:
        raise cli.UsageError(f"--model_dir is missing: the directory of a run. {pretrained.hint()}")
    cli.check_folders("metrics", "sheet", "curves")
    asked = [name for name in QUERIES if getattr(given, name)]
    files = [name for name in ("output", "metrics", "curves") if getattr(given, name)]
    if asked and files:
        raise cli.UsageError(
            f"--{asked[0]} cannot be used with --output, --metrics or --curves, because it ranks "
            f"no split. Received: --{files[0]}. Leave it out."
        )
    if given.sheet and not {"query", "query_image", "neighbours"} & set(asked):
        raise cli.UsageError(
            "--sheet needs --query, --query_image or --neighbours, because it shows the pictures "
            "that are found. Received: none of them."
        )
    if given.sheet and given.neighbours and (given.query or given.query_image):
        raise cli.UsageError(
            "--sheet shows either queries or --neighbours. Received: both. Run two commands."
        )
    if given.normalise == "mean_image" and not given.marginal_images:
        raise cli.UsageError(
            "--normalise=mean_image needs --marginal_images above 0, the images of the mean. "
            "Received: 0, which does not normalise."
        )
    if given.neighbours and not given.refined:
        raise cli.UsageError(
            "--neighbours needs --refined, the run directory of an m-RNN, because it compares two "
            "kinds of features. Received: no --refined."
        )
    if given.refined and not (given.candidates or given.neighbours):
        raise cli.UsageError(
            "--refined needs --candidates or --neighbours, which read the refined features. "
            "Received: neither of them."
        )
    if given.approximate and (given.limit or not given.candidates):
        raise cli.UsageError(
            "--approximate needs --candidates, and cannot be used with --limit, because the graph "
            f"holds all images. Received: --candidates={given.candidates} --limit={given.limit}."
        )


def check_data(given, data: "PreparedData") -> None:
    """Checks that the data has the training images that the flags need, before the scoring.

    Raises:
      UsageError: it has none.
    """
    asked = any(getattr(given, name) for name in QUERIES)
    remedies = {
        "neighbours": "Leave --neighbours out",
        "candidates": "Give --candidates=0, which scores all images",
    }
    if given.image or not asked:  # captions are ranked
        remedies["marginal_images"] = "Give --marginal_images=0, which does not normalise"
    splits = data.fingerprint["splits"]
    for name, remedy in remedies.items():
        if getattr(given, name) and not splits.get("train", {}).get("images"):
            raise cli.UsageError(
                f"--{name} needs the images of the split train. Received: {data.folder}, which "
                f"has the splits {', '.join(splits)}. {remedy}."
            )
