r"""Ranks captions for images and images for captions by a captioner's log P(caption | image).

python -m tfcap.retrieve --model_dir runs/mrnn --split val --output runs/mrnn/retrieval
python -m tfcap.retrieve --model_dir runs/mrnn --split val --query "two dogs in the snow" \
    --top 5 --sheet found.png
python -m tfcap.retrieve --model_dir runs/mrnn --split val --query_image photo.jpg --candidates 100
python -m tfcap.retrieve --model_dir runs/mrnn --image photo.jpg --normalise=mean_image

The first command scores every image of the split with every caption of the split and prints R@1,
R@5, R@10 and the median rank in both directions, as Mao et al. (ICLR 2015, section 5) do. The
second finds images for a text, and the third for a picture. With --candidates only the images with
the nearest vectors are scored. The last finds sentences for a picture among the captions of the
split.
"""

import inspect
import os
import types
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from absl import flags

from tfcap import cli, pretrained
from tfcap.files import write_json
from tfcap.metrics import retrieval

if TYPE_CHECKING:
    from tfcap.data.prepared import PreparedData


def _define_flags() -> None:
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
    flags.DEFINE_string(
        "output",
        None,
        "Directory for all scores; the same command continues with what it finds there.",
    )
    flags.DEFINE_string("metrics", None, "File to write: recalls, median ranks and curves as JSON.")
    flags.DEFINE_string(
        "curves", None, "File to write: a PNG with the recall curves of both directions."
    )
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


def _run() -> None:
    given = flags.FLAGS.flag_values_dict()
    if not given["model_dir"]:
        raise cli.UsageError(f"--model_dir is missing: the directory of a run. {pretrained.hint()}")
    retrieve(**{name: given[name] for name in inspect.signature(retrieve).parameters})


def retrieve(
    model_dir: str | Sequence[str],
    *,
    checkpoint: str = "best",
    dtype: str = "float32",
    data_dir: str | None = None,
    split: str = "val",
    limit: int = 0,
    batch_size: int = 8,
    marginal_images: int = 500,
    normalise: str = "images",
    seed: int = 1,
    shortlist: int = 0,
    candidates: int = 0,
    index: str = "",
    refined: str | None = None,
    approximate: bool = False,
    output: str | None = None,
    metrics: str | None = None,
    curves: str | None = None,
    query: Sequence[str] = (),
    query_image: Sequence[str] = (),
    image: Sequence[str] = (),
    word: Sequence[str] = (),
    neighbours: int = 0,
    top: int = 5,
    sheet: str | None = None,
) -> dict[str, retrieval.Summary]:
    """Ranks a split in both directions, or answers queries, and prints what it finds.

    The arguments are the flags of the command.

    Returns:
      The statistics by direction; empty if queries were answered.

    Raises:
      ValueError: the run or the data cannot be read, or the data lacks what is asked for.
    """
    given = types.SimpleNamespace(**locals())
    from tfcap import runs
    from tfcap.retrieving import embeddings, queries
    from tfcap.scoring.retrieval import Pairs

    if neighbours and not refined:
        raise cli.UsageError("--neighbours compares with --refined, the run of an m-RNN.")
    if sheet and neighbours and (query or query_image):
        raise cli.UsageError("--sheet shows either queries or --neighbours: run two commands.")
    for path in filter(None, (metrics, sheet, curves)):
        os.makedirs(os.path.dirname(path) or ".", exist_ok=True)  # before an hour of scoring
    folders = [model_dir] if isinstance(model_dir, str) else list(model_dir)
    run = runs.load_together(folders, checkpoint, dtype)
    data = runs.load_data(run, data_dir)
    if sheet and data.images is None:
        raise ValueError(f"--sheet needs pictures, and {data.folder} was prepared from features.")
    asked = bool(query or query_image or image)
    ranked = bool(image) or not (asked or word or neighbours)
    _check_training_images(data, neighbours or candidates or (ranked and marginal_images))
    print(f"{run.described} on {data.folder}, split {split}", flush=True)
    if word:
        embeddings.show_words(run, word, top)
    if neighbours:
        queries.compare_spaces(run, data, given)
    if (word or neighbours) and not asked:
        return {}
    pairs = Pairs(run, data, split, limit, batch_size)
    first = queries.first_stage(run, data, given) if candidates else None
    if asked:
        queries.answer(pairs, first, given)
        return {}
    return _rank(pairs, first, given)


def _check_training_images(data: "PreparedData", needed: int) -> None:
    """Raises UsageError, before the scoring, if images of the split train are needed and absent."""
    splits = data.fingerprint["splits"]
    if needed and not splits.get("train", {}).get("images"):
        raise cli.UsageError(
            f"{data.folder} has no split train, only {', '.join(splits)}. --marginal_images=0 does "
            "not normalise; --candidates and --neighbours need its images."
        )


def _rank(pairs, first, given: Any) -> dict[str, retrieval.Summary]:
    """Ranks the split in both directions, and prints and writes the statistics."""
    from tfcap.nearest.space import Space
    from tfcap.scoring.candidates import neighbourhoods, of_split
    from tfcap.scoring.marginal import marginal_places
    from tfcap.scoring.retrieval import rank

    run, data, shortlist = pairs.run, pairs.data, None
    if given.shortlist:
        space, folder, limit = Space("original"), given.index, given.limit
        index = of_split(data, given.split, space, folder, run.max_regions, limit)
        shortlist = neighbourhoods(index, given.shortlist)
    summaries, note = rank(
        pairs,
        given.marginal_images,
        given.seed,
        given.output,
        shortlist,
        first,
        given.candidates,
        given.normalise,
    )
    print(retrieval.format_table(summaries))
    if given.marginal_images:
        number = len(marginal_places(data, given.marginal_images, given.seed))
        over = "the mean of " if given.normalise == "mean_image" else ""
        print(f"captions are normalised over {over}{number} training images, seed {given.seed}")
    for line in filter(None, (note, run.signature and f"trained with: {run.signature}")):
        print(line)
    if given.metrics:
        content = {name: summary.as_dict() for name, summary in summaries.items()}
        content["marginal"] = {
            "images": given.marginal_images,
            "seed": given.seed,
            "normalise": given.normalise,
        }
        write_json(given.metrics, {**content, "note": note, "signature": run.signature})
    if given.curves:
        from tfcap.visualize.figures import recall_curves

        recall_curves(given.curves, summaries)
        print(f"written: {given.curves}")
    return summaries


def main() -> None:
    """Runs the command."""
    _define_flags()
    cli.run(_run)


if __name__ == "__main__":
    main()
