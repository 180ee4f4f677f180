r"""Ranks captions for images and images for captions by a captioner's log P(caption | image).

python -m tfcap.retrieve --model_dir runs/mrnn --split val --metrics ranks.json
python -m tfcap.retrieve --model_dir runs/mrnn --split val --query "two dogs in the snow" --top 5
python -m tfcap.retrieve --model_dir runs/mrnn --image photo.jpg --candidates 100

The first command scores every image of the split with every caption of the split and prints R@1,
R@5, R@10 and the median rank in both directions, as Mao et al. (ICLR 2015, section 5) do. The
second finds images for a text. The third finds sentences for a picture among the captions of the
split. With --candidates 100 it scores only 100 of them, those whose vectors are nearest to that of
the picture. --candidates also works with --query.

To rank captions for an image, log P(caption) is subtracted, unless --marginal_images is 0.
"""

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING

from tfcap import cli, errors, pretrained
from tfcap.arguments import argument, arguments, takes
from tfcap.files import write_json
from tfcap.metrics import retrieval

if TYPE_CHECKING:
    import numpy as np

    from tfcap.data.prepared import PreparedData
    from tfcap.inference.nearest import Candidates
    from tfcap.inference.retrieval import Pairs


@arguments
class Retrieve(cli.RunArguments):
    """The arguments of the function `retrieve`, which are also the flags of the command."""

    model_dir: str | Sequence[str] = argument(cli.MODEL_DIR, many="repeated", kw_only=False)
    data_dir: str | None = argument(
        "Directory of the prepared data; by default that of the run.", default=None
    )
    split: str = argument("Split whose images and captions are ranked.", default="val")
    limit: int = argument(
        "Use only so many images, the first of the split; 0 uses all.", default=0, least=0
    )
    batch_size: int = argument("Number of images scored together.", default=8, least=1)
    marginal_images: int = argument(
        "Number of training images from which P(caption) is estimated: to rank captions for an "
        "image, log P(caption) is subtracted from their scores. 0 subtracts nothing.",
        default=500,
        least=0,
    )
    seed: int = argument("Random seed for drawing the `marginal_images`.", default=1, least=0)
    metrics: str | None = argument(
        "File to write: recalls, median ranks and curves as JSON.", default=None
    )
    query: Sequence[str] = argument("Find images for this caption.", default=(), many="repeated")
    image: Sequence[str] = argument(
        "Find sentences for this picture file among the captions of the split.",
        default=(),
        many="repeated",
    )
    top: int = argument("Number of images or sentences to find.", default=5, least=1)
    candidates: int = argument(
        "Score only this many images or sentences for a query, those with the nearest vectors; 0 "
        "scores all.",
        default=0,
        least=0,
    )
    index: str = argument(
        "Directory that keeps the vectors of the images between runs; by default the directory "
        "`vectors` of the prepared data.",
        default="",
    )


def _define_flags() -> None:
    cli.define(Retrieve)


def _run() -> None:
    retrieve(**cli.values(Retrieve, model_dir=()))


@takes(Retrieve)
def retrieve(args: Retrieve) -> dict[str, retrieval.Summary]:
    """Ranks a split by log P(caption | image), or answers queries, and prints the results.

    Without `query` and `image` the captions of the split are ranked for each image, and the images
    for each caption. A `query` finds images, and an `image` finds captions. To rank captions for an
    image, log P(caption) is subtracted, unless `marginal_images` is 0.

    Returns:
      "image to text" and "text to image" -> the recalls and the median rank of this direction. The
      dictionary is empty if queries were answered.
    """
    if not args.model_dir:
        raise errors.UsageError(
            "`model_dir` is missing. Give the directory of a run, or the name of a pretrained "
            f"model. {pretrained.hint()}"
        )
    from tfcap import runs
    from tfcap.captioning import captioner_of_run
    from tfcap.inference.nearest import Candidates
    from tfcap.inference.retrieval import Pairs

    if args.metrics:
        os.makedirs(os.path.dirname(args.metrics) or ".", exist_ok=True)  # before an hour of work
    run = runs.load_together(args.model_dir, args.checkpoint, args.dtype)
    data = runs.load_data(run, args.data_dir)
    _check(args, data)
    print(f"{run.described} on {data.folder}, split {args.split}", flush=True)
    pairs = Pairs(run, data, args.split, args.limit, args.batch_size)
    if not (args.query or args.image):
        return _rank(args, pairs)
    candidates = None
    if args.candidates:
        candidates = Candidates(data, args.split, args.index, run.max_regions)
    if args.query:
        _find_images(args, pairs, candidates)
    if args.image:
        inputs = captioner_of_run(run).encoder_inputs(args.image)
        _find_sentences(args, pairs, candidates, inputs)
    return {}


def _check(args: Retrieve, data: "PreparedData") -> None:
    """Raises UsageError for arguments that the data cannot fulfil, or that exclude each other."""
    splits = data.fingerprint["splits"]
    marginal = args.marginal_images and (args.image or not args.query)
    if (args.candidates or marginal) and not splits.get("train", {}).get("images"):
        raise errors.UsageError(
            "`marginal_images` and `candidates` need training images, but "
            f"{data.folder} has no split train, only {', '.join(splits)}. Give "
            "`marginal_images=0`, and leave out `candidates`."
        )
    if args.candidates and not (args.query or args.image):
        raise errors.UsageError("`candidates` needs a query. Give `query` or `image`.")
    if args.candidates and args.limit:
        raise errors.UsageError("`candidates` cannot be used with `limit`. Leave one out.")


def _rank(args: Retrieve, pairs: "Pairs") -> dict[str, retrieval.Summary]:
    """Ranks the split in both directions."""
    from tfcap.inference.retrieval import rank

    summaries, note = rank(pairs, args.marginal_images, args.seed)
    print(retrieval.format_table(summaries))
    if args.marginal_images:
        number = min(args.marginal_images, pairs.data.split("train")["images"])
        print(f"captions are normalised over {number} training images, seed {args.seed}")
    signature = pairs.run.signature
    for line in filter(None, (note, signature and f"trained with: {signature}")):
        print(line)
    if args.metrics:
        content = {name: summary.as_dict() for name, summary in summaries.items()}
        content["marginal"] = {"images": args.marginal_images, "seed": args.seed}
        write_json(args.metrics, {**content, "note": note, "signature": signature})
    return summaries


def _find_images(args: Retrieve, pairs: "Pairs", candidates: "Candidates | None") -> None:
    """Finds images for the sentences `query`."""
    from tfcap.inference.retrieval import find

    queries = list(args.query)
    nearest = None
    if candidates is not None:
        nearest = candidates.nearest(candidates.sentences(queries), args.candidates)
    results, note = find(pairs, queries, args.top, nearest)
    names = pairs.data.file_names(args.split)
    for query, images in zip(queries, results, strict=True):
        _print(query, [(names[pairs.ids[position]], score) for position, score in images])
    if note:
        print(f"note: {note}")


def _find_sentences(
    args: Retrieve,
    pairs: "Pairs",
    candidates: "Candidates | None",
    inputs: "dict[str, np.ndarray]",
) -> None:
    """Finds sentences for the pictures `image`, which have the inputs `inputs`."""
    from tfcap.inference.retrieval import find_sentences

    results = find_sentences(
        pairs,
        inputs,
        args.top,
        args.marginal_images,
        args.seed,
        candidates,
        args.candidates,
    )
    for path, sentences in zip(args.image, results, strict=True):
        _print(path, sentences)


def _print(query: str, results: Sequence[tuple[str, float]]) -> None:
    print(errors.escaped(query))
    for number, (name, score) in enumerate(results, start=1):
        print(f"{number:4d}  {score:8.2f}  {errors.escaped(name)}")


def main() -> None:
    _define_flags()
    cli.run(_run)


if __name__ == "__main__":
    main()
