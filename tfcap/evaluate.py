"""Scores a trained model or a result file with the official metrics of COCO.

python -m tfcap.evaluate --model_dir runs/xtransformer --split val --output results.json
python -m tfcap.evaluate --predictions results.json --references references_val.json
python -m tfcap.evaluate --model_dir runs/xlan --beside updown=runs/updown --attention figures
"""

import functools
import os
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from absl import flags

from tfcap import cli, report, visualize
from tfcap.evaluating import options
from tfcap.metrics import (
    bootstrap,
    coco,
    comparison,
    diversity,
    hypotheses,
    registry,
    results,
    score_flags,
)
from tfcap.metrics.evaluation import evaluate
from tfcap.reranking import options as rerank_options
from tfcap.scoring.evaluated import Evaluated

if TYPE_CHECKING:
    from tfcap.data.prepared import PreparedData
    from tfcap.scoring.beside import Beside


def _define_flags() -> None:
    options.define()


def _run() -> None:
    given = flags.FLAGS
    names, clip = options.check(given), None
    if given.clip:
        from tfcap.scoring.clip import KerasHubClip

        clip = KerasHubClip(given.clip)
    evaluated = _read(given) if given.predictions else _decode(given)
    if not evaluated.references:
        print(f"split {given.split} has no captions, so there is nothing to score")
        return
    captions, compared = evaluated.captions, None
    others: dict[str, Any] = {}
    data = evaluated.data if clip else None
    pictures = data.picture_paths(given.split, given.images) if data else {}
    asked = registry.Options(given.instances, pictures, clip)
    with coco.CocoScorer(names, options=asked) as scorer:
        if "SPICE" in names:
            hint = "SPICE takes minutes; --scores=BLEU,METEOR,ROUGE-L,CIDEr leaves it out"
            print(f"scoring: {hint}", file=sys.stderr, flush=True)
        if given.report:
            every = {_name(given): captions} | evaluated.others
            compared = comparison.compare(every, evaluated.references, scorer)
            scores = compared.scores[_name(given)]
        else:
            scores = evaluate(captions, evaluated.references, scorer=scorer)
        found = {}
        if len(scores.per_image) > 1:
            found = bootstrap.intervals(scores, meteor_of=scorer.meteor_of)
        ends = {key: bootstrap.shown(one.low, one.high) for key, one in found.items()}
        print(results.format_table(scores, ends))
        print(f"distinct captions: {diversity.distinct_share(captions):.1f} %")
        if given.diversity:
            texts, training = evaluated.hypotheses.captions, evaluated.training_captions()
            values, text = diversity.summarize(texts, evaluated.references, scorer, training)
            print(text)
            others |= values
    if evaluated.sweep:
        others["rerank_sweep"] = evaluated.sweep
    if perplexities := evaluated.perplexities:
        print(perplexities.format())
        others["perplexity"] = perplexities.corpus
        others["perplexity_of_sentences"] = perplexities.mean
    signature = evaluated.run.signature if evaluated.run else ""
    if signature:
        print(f"trained with: {signature}")
    if given.metrics:
        results.write_metrics(given.metrics, scores, signature, others)
    if given.per_image:
        each = perplexities.by_image() if perplexities else None
        results.write_per_image(given.per_image, scores, each)
    if compared:
        _report(given, evaluated, compared, signature)


def _read(given) -> Evaluated:
    """Reads captions and references from files."""
    captions = hypotheses.load_results_or_hypotheses(given.predictions)
    references = results.load_references(given.references)
    if given.partial:
        paths = [path for _, _, path in (item.partition("=") for item in given.beside)]
        others = [hypotheses.load_results_or_hypotheses(path).captions for path in paths]
        images = results.common(references, [captions.captions, *others])
        print(f"note: {len(images)} of {len(references)} images with references are scored")
        captions = captions.of_images(images)
        references = {image: references[image] for image in images}
    references = results.reference_set(references, given.reference_set)
    score_flags.check_images(given, references)
    data = _prepared(given, references) if given.data_dir else None
    beside = _beside(given, references, None, list(references))
    sweep: list[dict[str, Any]] = []
    if given.rerank and data:
        results.check_ids(references, captions.captions)  # before the work
        reranker = rerank_options.consensus(None, data)
        captions, sweep = _rerank(given, reranker, data, captions, references)
    return Evaluated(captions, references, None, data, beside, sweep=sweep)


def _prepared(given, references) -> "PreparedData":
    """Loads the data of --data_dir, and checks that it has the split and images of the captions.

    Raises:
      ValueError: it cannot be read, or does not have the split.
    """
    from tfcap.data.prepared import PreparedData

    data = PreparedData.load(given.data_dir)
    if (given.report or given.clip) and not set(references) & set(data.index(given.split).id):
        print(
            f"note: no picture is shown or scored, because split {given.split} of {data.folder} "
            "has none of the images. --split names another split"
        )
    return data


def _rerank(given, reranker, data, found, references, max_regions=None):
    """Reranks captions and writes them; returns them and the scores of the sweep."""
    from tfcap.reranking import hypotheses as reranking

    oracle, asked = given.rerank == "oracle", rerank_options.sweep()
    common = given.split, found.captions, references, given.batch_size, max_regions
    reranked = reranking.rerank(reranker, data, *common, oracle, asked)
    _write(given, data, reranked.hypotheses, reranked.ranks_before)
    return reranked.hypotheses, reranked.sweep


def _write(given, data, found: hypotheses.Hypotheses, ranks_before=None) -> None:
    if given.output:
        results.write_results(given.output, found.best(), data.file_names(given.split))
    if given.hypotheses:
        hypotheses.write_hypotheses(given.hypotheses, found.captions, found.scores, ranks_before)


def _decode(given) -> Evaluated:
    """Decodes the split with a model and writes the captions at once.

    Everything that can fail because of another flag is done before the decoding.
    """
    from tfcap import runs
    from tfcap.data.prepared import stored_captions, unlike_references
    from tfcap.scoring.begun import first_words
    from tfcap.scoring.decode import decode_split
    from tfcap.scoring.perplexity import perplexities_of_split

    run = runs.load_together(given.model_dir, given.checkpoint, given.dtype)
    data = runs.load_data(run, given.data_dir)
    search = runs.search(run, given.decoding, given.beam, data.folder)
    if given.prefix_words and search.options.prefix:
        raise cli.UsageError("Give --prefix_words or decoding.prefix. Received: both.")
    regions = run.max_regions
    print(f"{run.described} on {data.folder}, split {given.split}", flush=True)
    ids = data.index(given.split).id[: given.limit or None].tolist()
    references = _references(given, data, ids)
    if unlike := unlike_references(data, given.split):
        print(f"warning: {unlike}", file=sys.stderr, flush=True)
    score_flags.check_images(given, references)
    beside = _beside(given, references, data, ids)
    pictures = {}
    if given.attention:
        pictures = visualize.pictures_of(data, given.split, ids, given.images)
        visualize.figure_paths(given.attention, pictures)  # raises an error before the work
    stored = stored_captions(data, given.split) if given.perplexity or given.prefix_words else {}
    stored = {image: stored[image][: len(own)] for image, own in references.items() if stored}
    reranker = rerank_options.consensus(run, data) if given.rerank else None
    perplexities = None
    if given.perplexity:
        watch = functools.partial(cli.progress, label="perplexity")
        perplexities = perplexities_of_split(
            run, data, given.split, limit=given.limit, references=stored, watch=watch
        )
    split, size = given.split, given.batch_size
    begun = first_words(stored, run.vocab, given.prefix_words) if given.prefix_words else None
    decoded = decode_split(
        run.model, run.vocab, search, data, split, size, regions, given.limit, given.seed, begun
    )
    sweep: list[dict[str, Any]] = []
    if reranker:
        decoded, sweep = _rerank(given, reranker, data, decoded, references, regions)
    else:
        _write(given, data, decoded)
    evaluated = Evaluated(decoded, references, run, data, beside)
    attention = _attention(given, evaluated, ids, pictures)
    kept = decoded.of_images(references)
    return Evaluated(kept, references, run, data, beside, attention, perplexities, sweep)


def _references(given, data: "PreparedData", ids: list[int]) -> dict[int, list[str]]:
    """Returns the references of the images that have any.

    Raises:
      UsageError: no image has a reference, and a flag needs references.
    """
    every = data.references(given.split)
    references = {image: every[image] for image in ids if every[image]}
    if not references:
        for name in ("metrics", "per_image", "report", "perplexity", "diversity"):
            if getattr(given, name):
                raise cli.UsageError(
                    f"--{name} needs captions to score against. Received: split {given.split}, "
                    "which has none. Leave the flag out, or choose another --split."
                )
        if given.rerank == "oracle":
            raise cli.UsageError(
                f"--rerank=oracle needs captions. Received: split {given.split}, which has none. "
                "Use --rerank=consensus, or choose another --split."
            )
        return {}
    if len(references) < len(ids):
        print(f"note: {len(ids) - len(references)} images have no captions and are not scored")
    return results.reference_set(references, given.reference_set)


def _name(given) -> str:
    """Returns the name of the evaluated run in the report."""
    name = os.path.basename(os.path.normpath(given.predictions or given.model_dir[0]))
    # Directories of runs have dots in their names, as in lr0.002.
    return cli.escaped(os.path.splitext(name)[0] if given.predictions else name)


def _beside(given, references, data: "PreparedData | None", ids: list[int]) -> "dict[str, Beside]":
    """Reads the captions, and loads the models, of the runs to compare with."""
    if not given.beside:
        return {}
    if not (given.report or given.attention):
        raise cli.UsageError(
            "--beside needs --report or --attention. To compare without a page, use tfcap.compare."
        )
    from tfcap.captioning import captioner_of_run
    from tfcap.scoring import beside

    paths = beside.parse(given.beside, _name(given))
    common = given.checkpoint, data, given.split, ids, given.dtype
    return beside.load(
        paths,
        references,
        *common,
        given.decoding,
        given.beam,
        captioner_of=lambda run: captioner_of_run(run, given.decoding, given.beam),
        folder=given.images,
        prefix_words=given.prefix_words,
    )


def _attention(
    given, evaluated: Evaluated, ids: list[int], pictures: Mapping[int, str]
) -> "dict[str, Mapping[int, visualize.Attended]]":
    """Decodes the other models, and computes the attention of all by the name of the run."""
    if evaluated.beside:
        from tfcap.scoring.beside import decode

        common = given.batch_size, given.seed, given.prefix_words
        decode(evaluated.beside, given.split, ids, *common)
    if not (given.attention or given.report):
        return {}
    models = {_name(given): (evaluated.run, evaluated.data, evaluated.captions)}
    models |= {name: (one.run, one.data, one.captions) for name, one in evaluated.beside.items()}
    attention: dict[str, Any] = {}
    for name, (run, data, captions) in models.items():
        if name in evaluated.beside and evaluated.beside[name].seen:
            attention[name] = evaluated.beside[name].seen
        elif run is not None and data is not None:
            attention[name] = visualize.attended_split(
                run.model, run.vocab, data, given.split, captions, given.batch_size, run.max_regions
            )
            if not attention[name]:
                print(f"note: there is no attention of {name}, because the regions have no boxes")
    if given.attention:
        count = visualize.write_figures(given.attention, pictures, attention)
        print(f"{given.attention}: {count} figures")
    return attention


def _report(given, evaluated: Evaluated, compared, signature: str) -> None:
    """Writes the HTML page of --report."""
    name, run, captions = _name(given), evaluated.run, evaluated.captions
    data, split, every = evaluated.data, given.split, {name: captions, **evaluated.others}
    notes = [*compared.notes, *([f"trained with: {signature}"] if signature else [])]
    if any(compared.intervals.values()):
        notes.insert(0, "The intervals are 95 %, by bootstrap over the images.")
    for other, one in evaluated.beside.items():
        from tfcap.scoring.beside import same_weights

        if run and one.run and same_weights(run, one.run):
            notes.append(f"{other} has the same weights as A ({name})")
    if given.rerank and evaluated.others:
        notes.append(f"--rerank={given.rerank} changed the captions of {name} only")
    count = report.write(
        given.report,
        report.compared_runs(every, compared, evaluated.attention),
        evaluated.references,
        visualize.shown_paths(data, split, given.images, captions) if data else {},
        title=f"{name}, {split}" if run else name,
        notes=notes,
    )
    print(f"{given.report}: {len(captions)} images, {count} of them with a picture")


def main() -> None:
    """Runs the command."""
    _define_flags()
    cli.run(_run)


if __name__ == "__main__":
    main()
