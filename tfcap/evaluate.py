"""Official scores of a trained model, or of anybody's result file, and what lies behind them.

python -m tfcap.evaluate --model_dir runs/xtransformer --split val --output results.json
python -m tfcap.evaluate --predictions results.json --references references_val.json
"""

import os
import types
from collections.abc import Mapping
from typing import Any, NamedTuple

from absl import flags

from tfcap import console, report, runs, visualize
from tfcap.data.prepared import PreparedData
from tfcap.files import write_json
from tfcap.flags import (
    consensus,
    define_decoding_flags,
    define_rerank_flags,
    define_run_flags,
    define_seed_flag,
    load_data,
)
from tfcap.metrics import coco, comparison, diversity, hypotheses, results
from tfcap.scoring import likelihood
from tfcap.scoring.decode import decode_split

FILES = ("output", "hypotheses", "metrics", "per_image", "report")


class Judged(NamedTuple):
    """What is scored.

    Attributes:
      found: captions of each image, the first of which is scored.
      references: of the same images.
      run: where they come from; None for a file.
      data: the prepared data; None for a file without --data_dir.
      beside: captions of other runs, for the report.
      perplexities: of the references.
    """

    found: hypotheses.Hypotheses
    references: dict[int, list[str]]
    run: runs.Run | None = None
    data: PreparedData | None = None
    beside: Mapping[str, dict[int, str]] = types.MappingProxyType({})
    perplexities: likelihood.Perplexities | None = None

    @property
    def captions(self) -> dict[int, str]:
        """The captions that are scored."""
        return {image: captions[0] for image, captions in self.found.captions.items()}


def _define_flags() -> None:
    define_run_flags()
    define_decoding_flags()
    define_rerank_flags()
    flags.DEFINE_string(
        "data_dir", None, "Prepared data; that of the run's configuration by default."
    )
    flags.DEFINE_string("split", "val", "Split to decode.")
    flags.DEFINE_integer("batch_size", 50, "Images at a time.", lower_bound=1)
    flags.DEFINE_integer("limit", 0, "Only the first so many images; 0: all.", lower_bound=0)
    define_seed_flag()
    flags.DEFINE_bool("perplexity", False, "Perplexity of the references, base 2.")
    flags.DEFINE_bool("diversity", False, "Novel captions; Div-n, mBLEU, self-CIDEr, oracle of n.")
    flags.DEFINE_string("output", None, "Captions in COCO result format, written here.")
    flags.DEFINE_string("hypotheses", None, "All captions of each image as JSON, written here.")
    flags.DEFINE_string("metrics", None, "Scores as JSON, written here.")
    flags.DEFINE_string("per_image", None, "Scores of every image as JSON, written here.")
    flags.DEFINE_string("report", None, "A page with all of it for a browser, written here.")
    flags.DEFINE_multi_string(
        "beside", [], "NAME=results.json of another run to be compared with on the page; repeated."
    )
    flags.DEFINE_string(
        "predictions",
        None,
        "Score this COCO result file, or file of --hypotheses, instead of a model.",
    )
    flags.DEFINE_string("references", None, "Its references: a COCO annotation file.")
    flags.DEFINE_enum(
        "reference_set", "all", results.REFERENCE_SETS, "References that count of each image."
    )


def _run() -> None:
    given = flags.FLAGS
    for name in FILES:  # better now than after an hour of decoding
        path = getattr(given, name)
        if path and not os.path.isdir(os.path.dirname(path) or "."):
            raise console.UsageError(f"{path} cannot be written: there is no such directory")
    if given.predictions or given.references:
        judged = _read(given)
    elif given.model_dir:
        judged = _decode(given)
    else:
        raise console.UsageError("give --model_dir, or --predictions and --references")
    if not judged.references:
        print(f"split {given.split} has no captions, so there is nothing to score")
        return
    with coco.CocoScorer() as scorer:
        if given.report:
            compared = comparison.compare(
                {_name(given): judged.captions} | dict(judged.beside), judged.references, scorer
            )
            scores = compared.scores[_name(given)]
        else:
            scores = scorer.score(judged.references, judged.captions)
        print(results.format_table(scores))
        print(f"distinct captions: {diversity.distinct_share(judged.captions):.1f} %")
        others = _diversity(judged, scorer) if given.diversity else {}
    if judged.perplexities:
        others |= _perplexity(judged.perplexities)
    trained = judged.run.signature if judged.run else ""
    if trained:
        print(f"trained with: {trained}")
    if given.metrics:
        results.write_metrics(given.metrics, scores, trained, others)
    if given.per_image:
        _write_per_image(given.per_image, scores, judged.perplexities)
    if given.report:
        _report(given, judged, compared, trained)


def _read(given) -> Judged:
    """Somebody's file of one caption per image, or of several."""
    if not (given.predictions and given.references) or given.model_dir:
        raise console.UsageError(
            "--predictions and --references go together, and without --model_dir"
        )
    for name in ("output", "hypotheses", "perplexity", "rerank", "decoding", "beam", "limit"):
        if getattr(given, name):
            raise console.UsageError(f"--{name} needs --model_dir, not a file of captions")
    found = hypotheses.load_results_or_hypotheses(given.predictions)
    references = results.load_references(given.references)
    references = results.reference_set(references, given.reference_set)
    data = PreparedData.load(given.data_dir) if given.data_dir else None
    return Judged(found, references, None, data, _beside(given, references))


def _decode(given) -> Judged:
    """The captions of a model, of which what is asked for is written at once.

    Whatever can go wrong with the other flags goes wrong before the captions are looked for.
    """
    run = runs.load_together(given.model_dir, given.checkpoint)
    data = load_data(run, given.data_dir)
    search = runs.search(run, given.decoding, given.beam, data.folder)
    print(f"{run.checkpoint} on {data.folder}, split {given.split}", flush=True)
    ids = data.index(given.split).id[: given.limit or None].tolist()
    references = _references(given, data, ids)
    beside = _beside(given, references)
    reranker = consensus(run, data) if given.rerank else None
    perplexities = None
    if given.perplexity:
        perplexities = likelihood.perplexities(
            run, data, given.split, limit=given.limit, watch=_progress("perplexity, batches")
        )
    found = decode_split(
        run.model,
        run.vocab,
        search,
        data,
        given.split,
        given.batch_size,
        run.max_regions,
        given.limit,
        given.seed,
    )
    if reranker:
        found = _rerank(given, run, data, found, references, reranker)
    if given.output:
        best = {image: captions[0] for image, captions in found.captions.items()}
        results.write_results(given.output, best)
    if given.hypotheses:
        hypotheses.write_hypotheses(given.hypotheses, found.captions, found.scores)
    scored = hypotheses.Hypotheses(
        {image: found.captions[image] for image in references},
        {image: found.scores[image] for image in references},
    )
    return Judged(scored, references, run, data, beside, perplexities)


def _references(given, data: PreparedData, ids: list[int]) -> dict[int, list[str]]:
    """Returns the references of the images that have any.

    Raises:
      UsageError: no image has a reference, and a flag needs references.
    """
    every = data.references(given.split)
    references = {image: every[image] for image in ids if every[image]}
    if not references:
        for name in ("metrics", "per_image", "report", "perplexity", "diversity"):
            if getattr(given, name):
                raise console.UsageError(
                    f"--{name} needs captions to score against. Received: split {given.split}, "
                    "which has none. Leave the flag out, or choose another --split."
                )
        if given.rerank == "oracle":
            raise console.UsageError(
                f"--rerank=oracle needs captions. Received: split {given.split}, which has none. "
                "Use --rerank=consensus, or choose another --split."
            )
        return {}
    if len(references) < len(ids):
        print(f"note: {len(ids) - len(references)} images have no captions and are not scored")
    return results.reference_set(references, given.reference_set)


def _progress(label: str):
    return lambda blocks, total: console.progress(blocks, total, label)


def _rerank(given, run, data, found, references, reranker) -> hypotheses.Hypotheses:
    """The same captions in the order of their consensus, or of their references."""
    images = list(found.captions)
    groups = [found.captions[image] for image in images]
    if max(map(len, groups)) < 2:
        print("note: --rerank changes nothing, since each image has one caption: give --beam")
    if given.rerank == "oracle":
        ranked = reranker.oracle(groups, [references.get(image, []) for image in images])
    else:
        regions = run.max_regions

        def vectors():
            for start in range(0, len(images), given.batch_size):
                ids = images[start : start + given.batch_size]
                batch = data.read(given.split, ids, regions)
                yield from reranker.vectors(batch["features"], batch["mask"])

        ranked = reranker.stream(zip(images, vectors(), groups, strict=True))
    captions, scores = {}, {}
    for image, one in zip(console.progress(images, len(images), "reranking"), ranked, strict=True):
        captions[image], scores[image] = one.captions, one.scores.tolist()
    return hypotheses.Hypotheses(captions, scores)


def _name(given) -> str:
    """What the report calls the run."""
    path = given.predictions or given.model_dir[0]
    return os.path.splitext(os.path.basename(os.path.normpath(path)))[0]


def _beside(given, references) -> dict[str, dict[int, str]]:
    """Captions of the runs to compare with, by name."""
    if given.beside and not given.report:
        raise console.UsageError("--beside belongs to --report; to compare alone: tfcap.compare")
    runs_beside = {}
    for item in given.beside:
        name, equals, path = item.partition("=")
        if not equals or not name or name == _name(given) or name in runs_beside:
            raise console.UsageError(
                f"--beside takes NAME=results.json, each of another name. Received: {item!r}"
            )
        captions = results.load_results(path)
        missing = [image for image in references if image not in captions]
        if missing:
            raise ValueError(f"{path} has no caption for image {missing[0]} of the split")
        runs_beside[name] = {image: captions[image] for image in references}
    return runs_beside


def _report(given, judged: Judged, compared, trained: str) -> None:
    """Writes the page."""
    attention = _attention(given, judged) if judged.run else {}
    shown = [
        report.Run(
            name,
            captions,
            compared.scores[name],
            compared.intervals[name],
            compared.differences.get(name),
            attention if name == _name(given) else None,
        )
        for name, captions in ({_name(given): judged.captions} | dict(judged.beside)).items()
    ]
    pictures = judged.data.picture_paths(given.split) if judged.data else {}
    count = report.write(
        given.report,
        shown,
        judged.references,
        pictures,
        title=f"{_name(given)}, {given.split}" if judged.run else _name(given),
        notes=[*compared.notes, *([f"trained with: {trained}"] if trained else [])],
    )
    print(f"{given.report}: {len(judged.captions)} images, {count} of them with a picture")


def _attention(given, judged: Judged) -> dict[int, visualize.Attended]:
    """What the model looked at for each word of the captions; empty without boxes."""
    run, images, found = judged.run, list(judged.captions), {}
    regions = run.max_regions
    starts = range(0, len(images), given.batch_size)
    for start in console.progress(starts, len(starts), "attention, batches"):
        ids = images[start : start + given.batch_size]
        batch = judged.data.read(given.split, ids, regions)
        if not visualize.has_boxes(batch["boxes"]):
            print("note: no attention in the report, since the data has no boxes of its regions")
            return {}
        texts = [judged.captions[image] for image in ids]
        seen = visualize.attended(run.model, run.vocab, batch, batch["boxes"], texts)
        found |= dict(zip(ids, seen, strict=True))
    return found


def _diversity(judged: Judged, scorer: coco.CocoScorer) -> dict[str, Any]:
    """Prints how varied the captions are; what of it goes into the file of scores."""
    training = []
    if judged.data and "train" in judged.data.fingerprint["splits"]:
        training = [c for own in judged.data.references("train").values() for c in own]
    if all(len(captions) > 1 for captions in judged.found.captions.values()):
        several = diversity.measure(
            judged.found.captions, judged.references, scorer, training=training
        )
        print(diversity.format_table(several))
        return {"diversity": several.corpus, "oracle": several.oracle, "mean": several.mean}
    if not training:
        return {}
    best = scorer.tokenize(list(judged.captions.values()))
    novel = diversity.novel_share(best, scorer.tokenize(training))
    print(f"novel captions: {novel:.1f} %")
    return {"diversity": {"novel %": novel}}


def _perplexity(found: likelihood.Perplexities) -> dict[str, float]:
    """Prints the perplexity of the references under the model."""
    print(
        f"perplexity: {found.corpus:.2f} per word (base 2), {found.mean:.2f} in the mean of "
        f"{len(found.words)} sentences"
    )
    if found.note:
        print(f"note: {found.note}")
    return {"perplexity": found.corpus, "perplexity_of_sentences": found.mean}


def _write_per_image(path: str, scores: results.Scores, perplexities) -> None:
    """Writes {image id: {score: value, "perplexities": [of each reference]}}."""
    each: dict[str, Any] = {str(i): dict(values) for i, values in scores.per_image.items()}
    if perplexities:
        for image, value in zip(perplexities.image, perplexities.each, strict=True):
            each[str(image)].setdefault("perplexities", []).append(float(value))
    write_json(path, each, indent=None)


def main() -> None:
    """The command."""
    _define_flags()
    console.run(_run)


if __name__ == "__main__":
    main()
