"""Ranks captions for images and images for captions by a captioner's log P(caption | image).

python -m tfcap.retrieve --model_dir runs/mrnn --split val --output runs/mrnn/retrieval
python -m tfcap.retrieve --model_dir runs/mrnn --split val --query "two dogs in the snow" \
    --top 5 --sheet found.png

The first command scores every image of the split with every caption of the split and prints R@1,
R@5, R@10 and the median rank in both directions, as Mao et al. (ICLR 2015, section 5) do. The
second finds images for queries.
"""

import os
from typing import TYPE_CHECKING

from absl import flags

from tfcap import console
from tfcap.files import write_json
from tfcap.flags import define_run_flags, load_data
from tfcap.metrics import retrieval

if TYPE_CHECKING:
    from tfcap.scoring.retrieval import Pairs


def _sheet(path, pairs, queries, matches) -> None:
    """Writes the found pictures as a PNG with a row for each query."""
    from tfcap import visualize
    from tfcap.visualize import contact_sheet

    files = visualize.shown_paths(pairs.data, pairs.split)
    rows = []
    for query, images in zip(queries, matches, strict=True):
        tiles = [
            (files.get(pairs.ids[place]), f"{n}   {score:.2f}")
            for n, (place, score) in enumerate(images, start=1)
        ]
        rows.append((query, tiles))
    contact_sheet.write(path, rows)


def _define_flags() -> None:
    # Here and not on import: the commands share names, and a program may import several.
    define_run_flags()
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
    flags.DEFINE_integer("seed", 1, "Random seed of the choice of these images.", lower_bound=0)
    flags.DEFINE_integer(
        "shortlist",
        0,
        "Also rank only the captions of this many images with the nearest features; 0 does not.",
        lower_bound=0,
    )
    flags.DEFINE_string(
        "output",
        None,
        "Directory for all scores; the same command continues with what it finds there.",
    )
    flags.DEFINE_string("metrics", None, "File to write: recalls, median ranks and curves as JSON.")
    flags.DEFINE_multi_string("query", [], "Find images for this caption; can be repeated.")
    flags.DEFINE_integer("top", 5, "Number of images to find for each query.", lower_bound=1)
    flags.DEFINE_string(
        "sheet", None, "File to write: a PNG with the pictures found for the queries."
    )


def _check_flags(given) -> None:
    """Checks the flags before the scoring, which may take an hour."""
    if not given.model_dir:
        raise console.UsageError("--model_dir must be given. Received: none.")
    for path in (given.metrics, given.sheet):
        if path and not os.path.isdir(os.path.dirname(path) or "."):
            raise console.UsageError(f"{path} cannot be written: there is no such directory.")
    if given.query and (given.metrics or given.output):
        raise console.UsageError(
            "--query cannot be used with --output or --metrics, because it only finds images. "
            "Leave them out."
        )
    if given.sheet and not given.query:
        raise console.UsageError(
            "--sheet needs --query, because it shows the pictures that a query finds. Received: no "
            "--query."
        )


def _run() -> None:
    given = flags.FLAGS
    _check_flags(given)
    from tfcap import runs
    from tfcap.scoring.retrieval import Pairs, marginal_places, rank

    run = runs.load_together(given.model_dir, given.checkpoint, given.dtype)
    data = load_data(run, given.data_dir)
    if given.sheet and data.images is None:
        raise ValueError(
            f"--sheet needs pictures. Received: {data.folder}, which was prepared from features."
        )
    print(f"{run.checkpoint} on {data.folder}, split {given.split}", flush=True)
    pairs = Pairs(run, data, given.split, given.limit, given.batch_size)
    if given.query:
        _answer(pairs, given)
        return
    summaries, note = rank(pairs, given.marginal_images, given.seed, given.output, given.shortlist)
    print(retrieval.format_table(summaries))
    if given.marginal_images:
        number = len(marginal_places(data, given.marginal_images, given.seed))
        print(f"captions are normalised over {number} training images, seed {given.seed}")
    for line in filter(None, (note, run.signature and f"trained with: {run.signature}")):
        print(line)
    if given.metrics:
        content = {name: summary.as_dict() for name, summary in summaries.items()}
        content["marginal"] = {"images": given.marginal_images, "seed": given.seed}
        write_json(given.metrics, {**content, "note": note, "signature": run.signature})


def _answer(pairs: "Pairs", given) -> None:
    from tfcap.scoring.retrieval import find

    matches, note = find(pairs, given.query, given.top)
    names = pairs.data.file_names(pairs.split)
    for query, images in zip(given.query, matches, strict=True):
        print(query)
        for number, (place, score) in enumerate(images, start=1):
            print(f"{number:4d}  {score:8.2f}  {names[pairs.ids[place]]}")
    if note:
        print(f"note: {note}")
    if given.sheet:
        _sheet(given.sheet, pairs, given.query, matches)
        print(f"written: {given.sheet}")


def main() -> None:
    """Runs the command."""
    _define_flags()
    console.run(_run)


if __name__ == "__main__":
    main()
