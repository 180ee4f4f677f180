"""Ranks captions for images and images for captions by a captioner's log P(caption | image).

python -m tfcap.retrieve --model_dir runs/mrnn --split val --output runs/mrnn/retrieval
python -m tfcap.retrieve --model_dir runs/mrnn --split val --query "two dogs in the snow" \
    --top 5 --sheet found.png
python -m tfcap.retrieve --model_dir runs/mrnn --split val --query_image photo.jpg --candidates 100

The first command scores every image of the split with every caption of the split and prints R@1,
R@5, R@10 and the median rank in both directions, as Mao et al. (ICLR 2015, section 5) do. The
second finds images for queries. With --candidates, vectors choose the images that are scored.
"""

from typing import TYPE_CHECKING

from absl import flags

from tfcap import console
from tfcap.files import write_json
from tfcap.flags import check_output_files, define_run_flags, load_data, refined
from tfcap.metrics import retrieval

if TYPE_CHECKING:
    from tfcap import runs
    from tfcap.data.prepared import PreparedData
    from tfcap.scoring.candidates import Candidates
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
    _define_first_stage()
    flags.DEFINE_string(
        "output",
        None,
        "Directory for all scores; the same command continues with what it finds there.",
    )
    flags.DEFINE_string("metrics", None, "File to write: recalls, median ranks and curves as JSON.")
    flags.DEFINE_multi_string("query", [], "Find images for this caption; can be repeated.")
    flags.DEFINE_multi_string(
        "query_image",
        [],
        "Find images like this picture file: those for which the caption of the picture is most "
        "probable; can be repeated.",
    )
    flags.DEFINE_integer("top", 5, "Number of images to find for each query.", lower_bound=1)
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


def _check_flags(given) -> None:
    """Checks the flags before the scoring, which may take an hour."""
    if not given.model_dir:
        raise console.UsageError("--model_dir must be given. Received: none.")
    check_output_files(given.metrics, given.sheet)
    queries = given.query or given.query_image
    if queries and (given.metrics or given.output):
        raise console.UsageError(
            "--query cannot be used with --output or --metrics, because it only finds images. "
            "Leave them out."
        )
    if given.sheet and not queries:
        raise console.UsageError(
            "--sheet needs --query, because it shows the pictures that a query finds. Received: no "
            "--query."
        )
    if given.approximate and (given.limit or not given.candidates):
        raise console.UsageError(
            "--approximate needs --candidates, and cannot be used with --limit, because the graph "
            f"holds all images. Received: --candidates={given.candidates} --limit={given.limit}."
        )


def _run() -> None:
    given = flags.FLAGS
    _check_flags(given)
    from tfcap import runs
    from tfcap.nearest.space import Space
    from tfcap.scoring.candidates import neighbourhoods, of_split
    from tfcap.scoring.retrieval import Pairs, marginal_places, rank

    run = runs.load_together(given.model_dir, given.checkpoint, given.dtype)
    data = load_data(run, given.data_dir)
    if given.sheet and data.images is None:
        raise ValueError(
            f"--sheet needs pictures. Received: {data.folder}, which was prepared from features."
        )
    print(f"{run.checkpoint} on {data.folder}, split {given.split}", flush=True)
    pairs = Pairs(run, data, given.split, given.limit, given.batch_size)
    first = _first_stage(run, data, given) if given.candidates else None
    if given.query or given.query_image:
        _answer(pairs, first, given)
        return
    shortlist = None
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
    )
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


def _first_stage(run: "runs.Run", data: "PreparedData", given) -> "Candidates":
    """Opens the index that the flags describe."""
    from tfcap.nearest.space import Space
    from tfcap.scoring.candidates import Candidates

    space = Space("original")
    if given.refined:
        space = Space("refined", *refined(run, data, given.refined, "--refined"))
    return Candidates(
        data, given.split, space, given.index, run.max_regions, given.limit, given.approximate
    )


def _answer(pairs: "Pairs", first: "Candidates | None", given) -> None:
    """Prints the images that are found for the queries, and draws them."""
    import numpy as np

    from tfcap.scoring.retrieval import find

    texts, labels = list(given.query), list(given.query)
    chosen = []
    if first and texts:
        chosen.append(first.of_sentences(texts, given.candidates))
    if given.query_image:
        captions, features = _described(pairs.run, given.query_image)
        texts += captions
        pictures = zip(given.query_image, captions, strict=True)
        labels += [f"{path}: {caption}" for path, caption in pictures]
        if first:
            chosen.append(first.nearest(first.space.vectors(features), given.candidates))
    matches, note = find(pairs, texts, given.top, np.concatenate(chosen) if chosen else None)
    names = pairs.data.file_names(pairs.split)
    for label, images in zip(labels, matches, strict=True):
        print(label)
        for number, (place, score) in enumerate(images, start=1):
            print(f"{number:4d}  {score:8.2f}  {names[pairs.ids[place]]}")
    if note:
        print(f"note: {note}")
    if given.sheet:
        _sheet(given.sheet, pairs, labels, matches)
        print(f"written: {given.sheet}")


def _described(run: "runs.Run", paths: list[str]):
    """Captions picture files; returns the captions and the features float32 [B, R, F]."""
    from tfcap.captioning.captioner import ImageCaptioner
    from tfcap.captioning.trained import TrainedRuns

    captioner = ImageCaptioner(TrainedRuns(run))
    return [str(caption) for caption in captioner(paths)], captioner.features(paths)


def main() -> None:
    """Runs the command."""
    _define_flags()
    console.run(_run)


if __name__ == "__main__":
    main()
