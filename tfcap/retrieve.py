r"""Ranks captions for images and images for captions by a captioner's log P(caption | image).

python -m tfcap.retrieve --model_dir runs/mrnn --split val --metrics ranks.json
python -m tfcap.retrieve --model_dir runs/mrnn --split val --query "two dogs in the snow" --top 5
python -m tfcap.retrieve --model_dir runs/mrnn --image photo.jpg --candidates 100

The first command scores every image of the split with every caption of the split and prints R@1,
R@5, R@10 and the median rank in both directions, as Mao et al. (ICLR 2015, section 5) do. The
second finds images for a text. The last finds sentences for a picture among the captions of the
split. With --candidates only the images or sentences with the nearest
vectors are scored.
"""

import os
from collections.abc import Sequence

from absl import flags

from tfcap import cli, errors, pretrained
from tfcap.files import write_json
from tfcap.metrics import retrieval


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
    flags.DEFINE_integer("seed", 1, "Random seed for drawing the --marginal_images.", lower_bound=0)
    flags.DEFINE_string("metrics", None, "File to write: recalls, median ranks and curves as JSON.")
    flags.DEFINE_multi_string("query", [], "Find images for this caption; can be repeated.")
    flags.DEFINE_multi_string(
        "image",
        [],
        "Find sentences for this picture file among the captions of the split; can be repeated.",
    )
    flags.DEFINE_integer("top", 5, "Number of images or sentences to find.", lower_bound=1)
    flags.DEFINE_integer(
        "candidates",
        0,
        "Score only this many images or sentences for a query, those with the nearest vectors; 0 "
        "scores all.",
        lower_bound=0,
    )
    flags.DEFINE_string(
        "index",
        "",
        "Directory that keeps the vectors of the images between runs; by default the directory "
        "`vectors` of the prepared data.",
    )


def _run() -> None:
    if not flags.FLAGS.model_dir:
        raise errors.UsageError(
            f"--model_dir is missing: the directory of a run. {pretrained.hint()}"
        )
    retrieve(**cli.flag_arguments(retrieve))


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
    seed: int = 1,
    metrics: str | None = None,
    query: Sequence[str] = (),
    image: Sequence[str] = (),
    top: int = 5,
    candidates: int = 0,
    index: str = "",
) -> dict[str, retrieval.Summary]:
    """Ranks a split in both directions, or answers queries, and prints what it finds.

    The arguments are the flags of the command. Returns the statistics by direction; empty if
    queries were answered.
    """
    from tfcap import runs
    from tfcap.captioning import captioner_of_run
    from tfcap.inference.nearest import Candidates
    from tfcap.inference.retrieval import Pairs, find, find_sentences, rank

    if metrics:
        os.makedirs(os.path.dirname(metrics) or ".", exist_ok=True)  # before an hour of scoring
    run = runs.load_together(model_dir, checkpoint, dtype)
    data = runs.load_data(run, data_dir)
    splits, marginal = data.fingerprint["splits"], marginal_images and (image or not query)
    if (candidates or marginal) and not splits.get("train", {}).get("images"):
        raise errors.UsageError(
            f"{data.folder} has no split train, only {', '.join(splits)}. Give "
            "--marginal_images=0, and leave out --candidates."
        )
    print(f"{run.described} on {data.folder}, split {split}", flush=True)
    pairs = Pairs(run, data, split, limit, batch_size)
    first = None
    if candidates:
        if limit or not (query or image):
            raise errors.UsageError("--candidates needs a query, and cannot be used with --limit.")
        first = Candidates(data, split, index, run.max_regions)
    if query:
        chosen = first.nearest(first.sentences(query), candidates) if first else None
        matches, note = find(pairs, list(query), top, chosen)
        names = data.file_names(split)
        for text, found in zip(query, matches, strict=True):
            _print_found(text, [(names[pairs.ids[place]], score) for place, score in found])
        if note:
            print(f"note: {note}")
    if image:
        features = captioner_of_run(run).features(image)
        every = find_sentences(pairs, features, top, marginal_images, seed, first, candidates)
        for path, sentences in zip(image, every, strict=True):
            _print_found(path, sentences)
    if query or image:
        return {}
    summaries, note = rank(pairs, marginal_images, seed)
    print(retrieval.format_table(summaries))
    if marginal_images:
        number = min(marginal_images, data.split("train")["images"])
        print(f"captions are normalised over {number} training images, seed {seed}")
    for line in filter(None, (note, run.signature and f"trained with: {run.signature}")):
        print(line)
    if metrics:
        content = {name: summary.as_dict() for name, summary in summaries.items()}
        content["marginal"] = {"images": marginal_images, "seed": seed}
        write_json(metrics, {**content, "note": note, "signature": run.signature})
    return summaries


def _print_found(query: str, found: Sequence[tuple[str, float]]) -> None:
    print(errors.escaped(query))
    for number, (name, score) in enumerate(found, start=1):
        print(f"{number:4d}  {score:8.2f}  {errors.escaped(name)}")


def main() -> None:
    _define_flags()
    cli.run(_run)


if __name__ == "__main__":
    main()
