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

from absl import flags

from tfcap import cli
from tfcap.files import write_json
from tfcap.metrics import retrieval
from tfcap.retrieving import options


def _define_flags() -> None:
    options.define()


def _run() -> None:
    given = flags.FLAGS
    options.check(given)
    from tfcap import runs
    from tfcap.retrieving import embeddings, queries
    from tfcap.scoring.retrieval import Pairs

    run = runs.load_together(given.model_dir, given.checkpoint, given.dtype)
    data = runs.load_data(run, given.data_dir)
    if given.sheet and data.images is None:
        raise ValueError(
            f"--sheet needs pictures. Received: {data.folder}, which was prepared from features."
        )
    options.check_data(given, data)
    print(f"{run.described} on {data.folder}, split {given.split}", flush=True)
    asked = [name for name in options.QUERIES if getattr(given, name)]
    if "word" in asked:
        embeddings.show_words(run, given.word, given.top)
    if "neighbours" in asked:
        queries.compare_spaces(run, data, given)
    if asked and not {"query", "query_image", "image"} & set(asked):
        return
    pairs = Pairs(run, data, given.split, given.limit, given.batch_size)
    first = queries.first_stage(run, data, given) if given.candidates else None
    if asked:
        queries.answer(pairs, first, given)
    else:
        _rank(pairs, first, given)


def _rank(pairs, first, given) -> None:
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
        from tfcap.visualize import recall

        recall.write(given.curves, summaries)
        print(f"written: {given.curves}")


def main() -> None:
    """Runs the command."""
    _define_flags()
    cli.run(_run)


if __name__ == "__main__":
    main()
