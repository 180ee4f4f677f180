"""The flags of reranking, which are defined without TensorFlow, and the reranker of the flags."""

from typing import TYPE_CHECKING

from absl import flags

from tfcap import cli
from tfcap.reranking import BEST, NEIGHBOURS

if TYPE_CHECKING:
    from tfcap import runs
    from tfcap.data.prepared import PreparedData
    from tfcap.reranking.consensus import Consensus


def define() -> None:
    """Defines the flags of consensus reranking, for commands that also have --data_dir."""
    flags.DEFINE_enum(
        "rerank",
        None,
        ["consensus", "oracle"],
        "Reorder the captions of each image: consensus ranks them by the captions of similar "
        "reference images; oracle by the image's own references, an upper bound (evaluate only).",
    )
    flags.DEFINE_enum(
        "rerank_similarity", "cider", list(BEST), "Similarity of two captions: cider or bleu."
    )
    flags.DEFINE_integer(
        "rerank_neighbours", NEIGHBOURS, "Number of similar images.", lower_bound=1
    )
    flags.DEFINE_integer(
        "rerank_best",
        0,
        "Number of captions of the similar images that count for a caption, the most similar ones; "
        "0 means 125 with cider, 175 with bleu.",
        lower_bound=0,
    )
    flags.DEFINE_string(
        "rerank_refined",
        None,
        "Run directory of an m-RNN whose refined features decide which images are similar; "
        "by default the mean of an image's features decides.",
    )
    flags.DEFINE_list(
        "rerank_references",
        ["train"],
        "Splits that the similar images are taken from, separated by commas, such as "
        "train,val. An image is never its own neighbour.",
    )
    flags.DEFINE_list(
        "rerank_frequencies",
        ["train"],
        "Splits whose captions give the document frequencies of cider, separated by commas (the "
        "m-RNN code uses val).",
    )
    flags.DEFINE_string(
        "rerank_index",
        "",
        "Directory that keeps the vectors of the reference images between runs; by default one in "
        "the directory `vectors` of the prepared data.",
    )
    flags.DEFINE_bool(
        "rerank_approximate",
        False,
        "Find the similar images through a graph (needs the extra tfcap[search]): faster with "
        "hundreds of thousands of images, but it may miss some.",
    )


def define_sweep() -> None:
    """Defines the flags of a sweep over k and m of consensus reranking."""
    for name, text in (
        ("neighbours", "numbers of similar images"),
        ("best", "numbers of captions that count"),
    ):
        flags.DEFINE_list(
            f"rerank_sweep_{name}",
            [],
            f"Also score consensus reranking with these {text}, separated by commas; with both "
            "flags of the sweep every pair is scored.",
        )


def check() -> None:
    """Raises UsageError for an option of reranking that nothing reads."""
    given = flags.FLAGS
    for name in [] if given.rerank else given:
        option = name.startswith("rerank_") and not name.startswith("rerank_sweep")
        if option and given[name].present:
            raise cli.UsageError(
                f"--{name} needs --rerank. Received: --{name}={given[name].value} without it."
            )


def sweep() -> list[tuple[int, int]]:
    """Returns the pairs (k, m) that the flags of a sweep describe; empty if no flag is given.

    Raises:
      UsageError: a value is not a whole number of at least 1, or captions are not reranked by
        consensus.
    """
    given = flags.FLAGS
    names = [f"rerank_sweep_{name}" for name in ("neighbours", "best")]
    texts = [getattr(given, name) for name in names]
    if not any(texts):
        return []
    if given.rerank != "consensus":
        raise cli.UsageError(
            f"--{names[0] if texts[0] else names[1]} needs --rerank=consensus. Received: "
            f"--rerank={given.rerank}."
        )
    for name, values in zip(names, texts, strict=True):
        if wrong := [text for text in values if not text.isdecimal() or int(text) < 1]:
            raise cli.UsageError(
                f"--{name} must be whole numbers of at least 1. Received: {wrong[0]!r}."
            )
    best = given.rerank_best or BEST[given.rerank_similarity]
    every = [[int(text) for text in values] for values in texts]
    return [(k, m) for k in every[0] or [given.rerank_neighbours] for m in every[1] or [best]]


def consensus(run: "runs.Run | None", data: "PreparedData") -> "Consensus":
    """Makes the reranker that the flags describe, with reference images of `data`.

    Args:
      run: the run whose captions are reranked; None for captions from a file.
      data: the prepared data.

    Raises:
      UsageError: the data lacks a split of the flags.
      ValueError: as `Consensus` and `runs.load`.
    """
    from tfcap.reranking.consensus import Consensus

    given, refine, refined_by = flags.FLAGS, None, None
    _check_splits(data)
    references = given.rerank_references
    if given.rerank == "oracle":  # it reads no reference images
        references = given.rerank_frequencies if _counted() else list(data.fingerprint["splits"])
    if given.rerank_refined:
        from tfcap import runs

        refine, refined_by = runs.load_refined(run, data, given.rerank_refined)
    reranker = Consensus(
        data,
        space="refined" if refine is not None else "original",
        neighbours=given.rerank_neighbours,
        best=given.rerank_best or None,
        similarity=given.rerank_similarity,
        reference_splits=references,
        frequency_splits=given.rerank_frequencies,
        index_dir=given.rerank_index,
        refine=refine,
        refined_by=refined_by,
        max_regions=run.max_regions if run else None,
        approximate=given.rerank_approximate,
    )
    if given.rerank == "consensus":
        reranker.index  # noqa: B018  (an error in it must come before the captions are decoded)
    return reranker


def _counted() -> bool:
    """Returns whether the similarity needs document frequencies."""
    return flags.FLAGS.rerank_similarity == "cider"


def _check_splits(data: "PreparedData") -> None:
    """Raises UsageError if the data lacks a split that a flag names, `train` by default."""
    given = flags.FLAGS
    names = ["rerank_references"] if given.rerank == "consensus" else []
    names += ["rerank_frequencies"] if _counted() else []
    splits = list(data.fingerprint["splits"])
    for name in names:
        if missing := [split for split in getattr(given, name) if split not in splits]:
            raise cli.UsageError(
                f"--{name} must be some of the splits {', '.join(splits)} of {data.folder}. "
                f"Received: {missing[0]}. Give --{name}={splits[0]}, or --data_dir of prepared "
                "data that has the split."
            )
