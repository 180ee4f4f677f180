"""Scores a trained model or a result file with the official metrics of COCO.

python -m tfcap.evaluate --model_dir runs/xtransformer --split val --output results.json
python -m tfcap.evaluate --predictions results.json --references references_val.json
python -m tfcap.evaluate --model_dir runs/xlan --beside updown=runs/updown --attention figures
"""

import dataclasses
import os
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from tfcap import cli, errors, segmentation
from tfcap.arguments import argument, arguments, takes
from tfcap.inference.rerank_arguments import RerankArguments
from tfcap.inference.subject import (
    Other,
    Subject,
    cut_references,
    named_paths,
    subject_of_captions,
    subject_of_run,
)
from tfcap.metrics import bootstrap, chair, diversity, inputs, results
from tfcap.metrics.calibration import Calibration
from tfcap.metrics.coco import CocoScorer
from tfcap.metrics.domains import score_domains
from tfcap.metrics.results import Hypotheses, Scores
from tfcap.metrics.scoring_arguments import ScoringArguments
from tfcap.visualize import calibration as calibration_figure
from tfcap.visualize import figures, report
from tfcap.visualize.attended import Attended

if TYPE_CHECKING:
    from tfcap.inference.likelihood import Perplexities
    from tfcap.inference.rerank import ConsensusReranker

# Arguments that need references.
_OF_REFERENCES = (
    "metrics_file",
    "per_image",
    "report",
    "cut_references",
    "perplexity",
    "diversity",
    "calibration",
)


@arguments
class Evaluate(
    RerankArguments, cli.DecodingArguments, cli.SeedArguments, ScoringArguments, cli.RunArguments
):
    """The arguments of the function `evaluate`, which are also the flags of the command."""

    predictions: inputs.Predictions | None = argument(
        "Score this file instead of a model: a COCO result file or a file of `hypotheses`.",
        default=None,
        python="It can also be the caption of each image, by image id or as a list; a caption is "
        "text or a tfcap.Caption.",
        kw_only=False,
    )
    references: inputs.References | None = argument(
        "References for `predictions`: a COCO annotation file.",
        default=None,
        python="It can also be the references of each image, by image id or as a list in the order "
        "of the predictions.",
        kw_only=False,
    )
    metrics: str | Sequence[str] | None = argument(
        f"Scores to compute, some of {', '.join(results.METRICS)}; by default all but "
        f"{' and '.join(results.ON_REQUEST)}.",
        default=tuple(results.DEFAULTS),
        many="commas",
        name="scores",
        kw_only=False,
    )
    data_dir: str | None = argument(
        "Directory of the prepared data; by default that of the run.", default=None
    )
    split: str = argument("Split whose images are captioned.", default="val")
    batch_size: int = argument("Number of images decoded together.", default=50, least=1)
    limit: int = argument(
        "Use only so many images, the first of the split; 0 uses all.", default=0, least=0
    )
    cut_references: bool = argument(
        "Compare with the references as training reads them: cut at `task.max_length`, and with "
        "<unk> for rare words, as R2Gen's scores of reports do.",
        default=False,
    )
    perplexity: bool = argument(
        "Also compute the perplexity of the references (base 2).", default=False
    )
    diversity: bool = argument(
        "Also compute the share of novel captions; with several captions per image also Div-n, "
        "mBLEU, self-CIDEr and the score of the best caption of each image.",
        default=False,
    )
    calibration: bool = argument(
        "Also measure the confidence of a calibrated run: how well it tells which captions are "
        "usable. Images on which it was fitted are left out.",
        default=False,
    )
    output: str | None = argument("File to write: captions in COCO result format.", default=None)
    hypotheses: str | None = argument(
        "File to write: all captions of each image as JSON.", default=None
    )
    submission: str | None = argument(
        "File to write: an archive for COCO's server, such as captions_NAME_results.zip. A second "
        "command with the other split (val2014, test2014) completes it. With the ending .json: the "
        "list of captions that the server of nocaps takes.",
        default=None,
    )
    metrics_file: str | None = argument(
        "File to write: scores as JSON.", default=None, name="metrics"
    )
    per_image: str | None = argument("File to write: scores of each image as JSON.", default=None)
    report: str | None = argument(
        "File to write: an HTML page with scores and pictures.", default=None
    )
    beside: Sequence[str] = argument(
        "NAME=results.json or NAME=MODEL_DIR: another run, which `report` and `attention` show "
        "beside this one.",
        default=(),
        many="repeated",
    )
    attention: str | None = argument(
        "Directory to write: figures of the attention, one row for each model.", default=None
    )
    images: str | None = argument(
        "Directory of the images; by default that of the data.", default=None
    )
    clip: str | None = argument(
        "CLIP for the score CLIPScore: a preset of keras-hub, by its name or its directory.",
        default=None,
    )
    show: bool = argument(
        "Whether to print the scores, as the command does. Notes go to the logger `tfcap`.",
        default=False,
        name="-",
    )


def _define_flags() -> None:
    cli.define(Evaluate)


def _run() -> None:
    evaluate(**cli.values(Evaluate), show=True)


@takes(Evaluate)
def evaluate(args: Evaluate) -> Scores:
    """Captions a split with a run, or reads captions, and scores them against references.

    The scores are those of COCO's official code, pycocoevalcap, times 100. Without Java, METEOR and
    SPICE are left out, and `Scores.unavailable` says why.

    Returns:
      A `Scores`. Its `corpus` has the scores of all captions together, as in `corpus["CIDEr"]`. Its
      `per_image` has the scores of each image. Both are empty if the split has no references. Its
      `domains` has the scores of each domain, if the images have one, as those of nocaps.
    """
    _check(args)
    # Everything is opened and checked before the captions are decoded, which takes long.
    subject = _load_run(args) if args.predictions is None else _read_captions(args)
    segmentation.require(subject.tokens)
    labels = None
    if subject.references:  # a submission may have none
        labels = chair.read_labels(args.instances, subject.references)
    others = _load_others(args, subject)
    pictures = _pictures_of_figures(args, subject)
    reranker = _load_reranker(args, subject)
    perplexities = _perplexities(args, subject)

    captions = _captions(args, subject)
    if reranker is not None:
        captions = _rerank(args, subject, captions, reranker)
    _write(args, subject, captions)
    compared = _attend(args, subject, captions, others, pictures)
    if not subject.references:
        _say(args, f"split {args.split} has no captions, so there is nothing to score")
        return Scores({}, {})
    return _score(args, subject, captions, compared, labels, perplexities)


def _say(args: Evaluate, text: str) -> None:
    if args.show:
        print(cli.with_flags(text), flush=True)


# ---- Before the work -----------------------------------------------------------------------------


def _check(args: Evaluate) -> None:
    """Raises UsageError for arguments that are wrong at sight, and makes directories of files."""
    if args.predictions is None and not args.model_dir:
        raise errors.UsageError(
            "Give `model_dir` to evaluate a run, or `predictions` and `references` to evaluate "
            "captions."
        )
    if args.predictions is not None and not (args.references or args.submission):
        raise errors.UsageError(
            "`references` is missing. Give the reference captions, such as a COCO annotation file."
        )
    metrics = _metrics(args)
    if not metrics or set(metrics) - set(results.METRICS):
        raise errors.UsageError(
            f"`metrics`: {','.join(metrics) or 'nothing'!r} is not among the scores: "
            f"{','.join(results.METRICS)}. Give some of them."
        )
    if args.beside and not (args.report or args.attention):
        raise errors.UsageError(
            "`beside` needs `report` or `attention`, which show captions side by side. To compare "
            "scores only, use tfcap.compare."
        )
    if args.predictions is not None and args.rerank and not args.data_dir:
        raise errors.UsageError(
            "With `predictions`, `rerank` needs `data_dir`, the prepared data in which it finds "
            "similar images. Give it, or leave out `rerank`."
        )
    if args.predictions is not None and args.cut_references:
        raise errors.UsageError(
            "`cut_references` needs a run, which has the words and the length. Give `model_dir` in "
            "place of `predictions`, or leave out `cut_references`."
        )
    if args.submission and args.limit:
        raise errors.UsageError(
            "`submission` takes the captions of a whole split. Leave out `limit`."
        )
    if args.calibration and (args.predictions is not None or args.rerank):
        raise errors.UsageError(
            "`calibration` measures the confidence of a run in the captions that it finds. Give "
            "`model_dir`, and leave out `predictions` and `rerank`."
        )
    if args.calibration and "CIDEr" not in metrics:
        raise errors.UsageError("`calibration` needs CIDEr. Add it to `metrics`.")
    files = args.output, args.hypotheses, args.submission, args.metrics_file, args.per_image
    for path in filter(None, (*files, args.report)):
        os.makedirs(os.path.dirname(path) or ".", exist_ok=True)


def _metrics(args: Evaluate) -> list[str]:
    """Returns the names of the scores to compute."""
    if args.metrics is None:
        return list(results.DEFAULTS)
    return [args.metrics] if isinstance(args.metrics, str) else list(args.metrics)


def _load_run(args: Evaluate) -> Subject:
    """Loads a run, or an ensemble, and opens its data."""
    from tfcap import runs

    directories = [args.model_dir] if isinstance(args.model_dir, str) else list(args.model_dir)
    run = runs.load_together(directories, args.checkpoint, args.dtype)
    run = run.with_decoding(args.decoding, args.beam or 0)
    data = runs.load_data(run, args.data_dir)
    search = run.search(data_dir=data.folder)  # a wrong word or option is refused now
    _say(args, f"{run.described} on {data.folder}, split {args.split}")
    if args.calibration and run.confidence is None:
        remedy = (
            "An ensemble has no confidence. Give one run."
            if directories[1:]
            else f"{run.described} is not calibrated. Run tfcap.calibrate first."
        )
        raise errors.UsageError(f"`calibration`: {remedy}")
    # Directories of runs have dots in their names, as in lr0.002.
    name = os.path.basename(os.path.normpath(directories[0]))
    subject = subject_of_run(name, run, data, search, args.split, args.limit, args.tokens)
    if args.submission and not args.submission.endswith(".json"):
        results.check_submission(args.split, len(subject.images))
    needs = args.rerank == "oracle" or any(getattr(args, name) for name in _OF_REFERENCES)
    if needs and not subject.references:
        raise errors.UsageError(
            f"Split {args.split} has no reference captions. Leave out what needs them: "
            f"{', '.join(f'`{name}`' for name in _OF_REFERENCES)} and `rerank=oracle`."
        )
    if args.calibration:
        from tfcap.inference.calibration import unseen

        unseen(run, data, args.split, list(subject.references))
    if args.cut_references:
        references = cut_references(subject.references, run.vocab, run.params.task.max_length)
        subject = dataclasses.replace(subject, references=references)
    return subject


def _read_captions(args: Evaluate) -> Subject:
    """Reads captions and references from files, or takes them from the arguments."""
    assert args.predictions is not None
    data = None
    if args.data_dir:
        from tfcap.data.prepared import PreparedData

        data = PreparedData.load(args.data_dir)
    others = list(named_paths(args.beside).values()) if args.partial else None
    return subject_of_captions(
        args.predictions, args.references, args.split, data, others, args.tokens
    )


def _load_others(args: Evaluate, subject: Subject) -> dict[str, Other]:
    """Reads the captions, and loads the models, of `beside`."""
    if not args.beside:
        return {}
    from tfcap.captioning import captioner_of_run
    from tfcap.inference.others import load_others

    return load_others(
        named_paths(args.beside, subject.name),
        subject.references,
        subject.data if subject.run else None,
        args.split,
        subject.images,
        captioner_of=captioner_of_run,
        checkpoint=args.checkpoint,
        dtype=args.dtype,
        decoding=args.decoding,
        beam=args.beam or 0,
        directory=args.images,
    )


def _pictures_of_figures(args: Evaluate, subject: Subject) -> Mapping[int, str]:
    """Returns the pictures for figures of the attention; raises an error if they do not exist."""
    if not args.attention or subject.run is None or subject.data is None:
        return {}
    from tfcap.visualize.attention import require_shown_paths

    pictures = require_shown_paths(subject.data, args.split, args.images, subject.images)
    figures.figure_paths(args.attention, pictures)
    return pictures


def _load_reranker(args: Evaluate, subject: Subject) -> "ConsensusReranker | None":
    if not args.rerank or subject.data is None:
        return None
    if subject.captions is not None and subject.references:
        results.check_ids(subject.references, subject.captions.captions)
    from tfcap.inference.rerank import reranker_of

    return reranker_of(args, subject.run, subject.data)


def _perplexities(args: Evaluate, subject: Subject) -> "Perplexities | None":
    """Computes the perplexity of the references of a run's split."""
    if not args.perplexity or subject.run is None or subject.data is None:
        return None
    from tfcap.data.prepared import stored_captions
    from tfcap.inference.likelihood import perplexities_of_split

    stored = stored_captions(subject.data, args.split)
    references = {image: stored[image] for image in subject.references}
    return perplexities_of_split(
        subject.run, subject.data, args.split, limit=args.limit, references=references
    )


# ---- The steps -----------------------------------------------------------------------------------


def _captions(args: Evaluate, subject: Subject) -> Hypotheses:
    """Decodes the captions of a run, or returns those of a file."""
    if subject.captions is not None:
        return subject.captions
    from tfcap.inference.decode import decode_split

    assert subject.run is not None and subject.data is not None
    return decode_split(
        subject.run,
        subject.data,
        args.split,
        args.batch_size,
        search=subject.search,
        limit=args.limit,
        seed=args.seed,
    )


def _rerank(
    args: Evaluate, subject: Subject, captions: Hypotheses, reranker: "ConsensusReranker"
) -> Hypotheses:
    """Reorders the captions of each image."""
    from tfcap.inference.rerank import rerank_split

    assert subject.data is not None
    return rerank_split(
        reranker,
        subject.data,
        args.split,
        captions.captions,
        subject.references,
        args.batch_size,
        max_regions=subject.max_regions,
    )


def _write(args: Evaluate, subject: Subject, captions: Hypotheses) -> None:
    """Writes the files of captions."""
    if subject.run is not None:
        captions = captions.written(subject.run.vocab.tokens)
    if args.output:
        names = subject.data.file_names(args.split) if subject.data else None
        results.write_results(args.output, captions.best(), names)
    if args.hypotheses:
        results.write_hypotheses(args.hypotheses, captions.captions, captions.scores)
    if args.submission and args.submission.endswith(".json"):
        results.write_results(args.submission, captions.best())
        _say(args, f"{args.submission}: captions of {len(captions.captions)} images")
    elif args.submission:
        _say(args, results.add_submission(args.submission, args.split, captions.best()))


def _attend(
    args: Evaluate,
    subject: Subject,
    captions: Hypotheses,
    others: Mapping[str, Other],
    pictures: Mapping[int, str],
) -> dict[str, Other]:
    """Decodes the models of `beside`, computes the attention of all models and draws it.

    Returns all sets of captions with their attention, by name; the evaluated captions are first.
    """
    evaluated = Other(captions.best(), subject.run, subject.data)
    compared = {subject.name: evaluated, **others}
    if subject.run is not None:
        from tfcap.inference.others import attend_others, decode_others

        decode_others(
            others, args.split, subject.images, batch_size=args.batch_size, seed=args.seed
        )
        if args.attention or args.report:
            attend_others(compared, args.split, args.batch_size)
        if args.attention:
            attention = {name: other.attention for name, other in compared.items() if other.run}
            count = figures.write_figures(args.attention, pictures, attention)
            _say(args, f"{args.attention}: {count} figures")
    return compared


def _score(
    args: Evaluate,
    subject: Subject,
    captions: Hypotheses,
    compared: Mapping[str, Other],
    labels: Mapping[int, set[str]] | None,
    perplexities: "Perplexities | None",
) -> Scores:
    """Scores the captions, and prints and writes the scores."""
    captions = captions.of_images(subject.references) if subject.run else captions
    results.check_ids(subject.references, captions.captions)
    metrics = _metrics(args)
    comparison = None
    measured: Calibration | None = None
    more: dict[str, Any] = {}
    options = _scoring_options(args, subject, labels)
    with CocoScorer(metrics, options=options, tokens=subject.tokens) as scorer:
        if args.show and "SPICE" in metrics and not segmentation.has_no_spaces(subject.tokens):
            hint = "SPICE takes minutes; `metrics=BLEU,METEOR,ROUGE-L,CIDEr` leaves it out"
            print(f"scoring: {cli.with_flags(hint)}", file=sys.stderr, flush=True)
        if args.report:
            texts = {
                name: {image: other.captions[image] for image in subject.references}
                for name, other in compared.items()
            }
            if segmentation.is_cut(subject.tokens):
                texts |= _in_words({n: texts[n] for n, o in compared.items() if not o.run}, scorer)
            comparison = bootstrap.compare(texts, subject.references, scorer)
            scores = comparison.scores[subject.name]
        else:
            scores = scorer.score(subject.references, captions.best())
        scores.notes.extend(_notes_on_words(args, subject))
        if subject.domains:
            scores.domains.update(
                score_domains(scores, subject.references, captions.best(), subject.domains, scorer)
            )
        if args.show:
            _say(args, _table(scores, scorer))
            if scores.domains:
                _say(args, results.format_domains(scores))
            print(f"distinct captions: {diversity.distinct_share(captions.best()):.1f} %")
        if args.diversity:
            more = _diversity(args, subject, captions, scorer)
    if args.calibration:
        measured = _calibration(args, subject, captions, scores)
        more["calibration"] = measured.as_dict()
    if perplexities:
        _say(args, perplexities.format())
        more["perplexity"] = perplexities.corpus
        more["perplexity_of_sentences"] = perplexities.mean
    signature = subject.run.signature if subject.run else ""
    if signature:
        _say(args, f"trained with: {signature}")
    if args.metrics_file:
        results.write_metrics(args.metrics_file, scores, signature, more)
    if args.per_image:
        by_image = perplexities.by_image() if perplexities else None
        results.write_per_image(args.per_image, scores, by_image)
    if comparison:
        attention = {name: other.attention for name, other in compared.items()}
        _report(args, subject, texts, comparison, attention, measured)
    return scores


def _notes_on_words(args: Evaluate, subject: Subject) -> list[str]:
    """Says which words are compared, where those of the data or of published scores differ."""
    notes = [segmentation.other_version(subject.data.fingerprint)] if subject.data else []
    if args.cut_references and subject.run:
        length = subject.run.params.task.max_length
        notes.append(
            f"references were cut to {length} words, and their words outside of the vocabulary are "
            "<unk>"
        )
    elif subject.tokens in segmentation.REPORTS:
        notes.append("references are whole; R2Gen's code cuts them, as `cut_references` does")
    return list(filter(None, notes))


def _in_words(
    texts: Mapping[str, Mapping[int, str]], scorer: CocoScorer
) -> dict[str, dict[int, str]]:
    """Returns captions from files with spaces between their words, which the page tells apart."""
    return {
        name: dict(zip(captions, scorer.tokenize(list(captions.values())), strict=True))
        for name, captions in texts.items()
    }


def _scoring_options(
    args: Evaluate, subject: Subject, labels: Mapping[int, set[str]] | None
) -> results.Options:
    if not args.clip:
        return results.Options(labels)
    from tfcap.inference.clip import KerasHubClip

    pictures = subject.data.picture_paths(args.split, args.images) if subject.data else {}
    return results.Options(labels, pictures, KerasHubClip(args.clip))


def _table(scores: Scores, scorer: CocoScorer) -> str:
    """Returns the scores with their intervals as text."""
    intervals: dict[str, bootstrap.Interval] = {}
    if len(scores.per_image) > 1:
        intervals = bootstrap.intervals(scores, meteor_of=scorer.meteor_of)
    texts = {key: bootstrap.interval_text(one.low, one.high) for key, one in intervals.items()}
    return results.format_table(scores, texts)


def _diversity(
    args: Evaluate, subject: Subject, captions: Hypotheses, scorer: CocoScorer
) -> dict[str, Any]:
    """Computes and prints the diversity of the captions."""
    from tfcap.inference.training_captions import training_captions

    training = training_captions(subject.run, subject.data)
    values, text = diversity.summarize(captions.captions, subject.references, scorer, training)
    _say(args, text)
    return values


def _calibration(
    args: Evaluate, subject: Subject, captions: Hypotheses, scores: Scores
) -> Calibration:
    """Measures and prints the confidence; its notes become notes of the scores, for the files."""
    from tfcap.inference.calibration import measure

    assert subject.run is not None and subject.data is not None
    measured, notes = measure(subject.run, subject.data, args.split, captions, scores)
    scores.notes.extend(notes)
    _say(args, "\n".join([measured.format(), *notes]))
    return measured


def _report(
    args: Evaluate,
    subject: Subject,
    captions: Mapping[str, Mapping[int, str]],
    comparison: bootstrap.Compared,
    attention: Mapping[str, Mapping[int, Attended]],
    measured: Calibration | None,
) -> None:
    """Writes the page."""
    assert args.report is not None
    images = captions[subject.name]
    notes = list(comparison.notes)
    if any(comparison.intervals.values()):
        notes.insert(0, "The intervals are 95 %, by bootstrap over the images.")
    if subject.run and subject.run.signature:
        notes.append(f"trained with: {subject.run.signature}")
    if measured:
        notes += measured.format().splitlines()
    if args.rerank and len(captions) > 1:
        notes.append(f"`rerank={args.rerank}` changed the captions of {subject.name} only")
    pictures: Mapping[int, str] = {}
    if subject.data:
        from tfcap.visualize.attention import shown_paths

        pictures = shown_paths(subject.data, args.split, args.images, images)
    count = report.write(
        args.report,
        captions,
        comparison,
        subject.references,
        pictures,
        attention,
        title=f"{subject.name}, {args.split}" if subject.run else subject.name,
        notes=notes,
        figure=calibration_figure.figure(measured) if measured else "",
        text_of=cli.with_flags,
        joined=subject.tokens != segmentation.RAW,
    )
    _say(args, f"{args.report}: {len(images)} images, {count} of them with a picture")


def main() -> None:
    _define_flags()
    cli.run(_run)


if __name__ == "__main__":
    main()
