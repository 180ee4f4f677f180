"""Scores a trained model or a result file with the official metrics of COCO.

python -m tfcap.evaluate --model_dir runs/xtransformer --split val --output results.json
python -m tfcap.evaluate --predictions results.json --references references_val.json
python -m tfcap.evaluate --model_dir runs/xlan --beside updown=runs/updown --attention figures
"""

import contextlib
import functools
import os
import sys
import types
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from absl import flags

from tfcap import cli, errors
from tfcap.metrics import bootstrap, chair, diversity, results
from tfcap.metrics.coco import CocoScorer
from tfcap.metrics.results import Hypotheses, Scores
from tfcap.visualize import figures, report

if TYPE_CHECKING:
    from tfcap import runs
    from tfcap.data.prepared import PreparedData
    from tfcap.inference.decode import Other
    from tfcap.inference.likelihood import Perplexities


def _define_flags() -> None:
    cli.define_run_flags()
    cli.define_decoding_flags()
    cli.define_seed_flag()
    cli.define_scoring_flags()
    cli.define_rerank_flags()
    flags.DEFINE_string(
        "data_dir", None, "Directory of the prepared data; by default that of the run."
    )
    flags.DEFINE_string("split", "val", "Split whose images are captioned.")
    flags.DEFINE_integer("batch_size", 50, "Number of images decoded together.", lower_bound=1)
    flags.DEFINE_integer(
        "limit", 0, "Use only so many images, the first of the split; 0 uses all.", lower_bound=0
    )
    flags.DEFINE_bool(
        "perplexity", False, "Also compute the perplexity of the references (base 2)."
    )
    flags.DEFINE_bool(
        "diversity",
        False,
        "Also compute the share of novel captions; with several captions per image also Div-n, "
        "mBLEU, self-CIDEr and the score of the best caption of each image.",
    )
    flags.DEFINE_string("output", None, "File to write: captions in COCO result format.")
    flags.DEFINE_string("hypotheses", None, "File to write: all captions of each image as JSON.")
    flags.DEFINE_string(
        "submission",
        None,
        "File to write: an archive for COCO's server, such as captions_NAME_results.zip. A second "
        "command with the other split (val2014, test2014) completes it.",
    )
    flags.DEFINE_string("metrics", None, "File to write: scores as JSON.")
    flags.DEFINE_string("per_image", None, "File to write: scores of each image as JSON.")
    flags.DEFINE_string("report", None, "File to write: an HTML page with scores and pictures.")
    flags.DEFINE_multi_string(
        "beside",
        [],
        "NAME=results.json or NAME=MODEL_DIR: another run that page and figures show beside this "
        "one; can be repeated.",
    )
    flags.DEFINE_string(
        "attention", None, "Directory to write: figures of the attention, one row for each model."
    )
    flags.DEFINE_string("images", None, "Directory of the images; by default that of the data.")
    flags.DEFINE_string(
        "clip",
        None,
        "CLIP for the score CLIPScore: the directory of a preset of keras-hub, or a handle.",
    )
    flags.DEFINE_string(
        "predictions",
        None,
        "Score this file instead of a model: a COCO result file or a file of --hypotheses.",
    )
    flags.DEFINE_string("references", None, "References for --predictions: a COCO annotation file.")


def _run() -> None:
    given = cli.flag_arguments(evaluate)
    if not given["model_dir"] and not given["predictions"]:
        raise errors.UsageError("Give --model_dir, or --predictions and --references.")
    files = {"metrics": flags.FLAGS.scores, "metrics_file": flags.FLAGS.metrics}
    evaluate(**given | files, show=True)


def evaluate(
    predictions: str | os.PathLike | Mapping[int, Any] | Sequence[Any] | None = None,
    references: str | os.PathLike | Mapping[int, Sequence[str]] | Sequence[Sequence[str]] = (),
    metrics: str | Sequence[str] | None = None,
    *,
    partial: bool = False,
    instances: Sequence[str] = (),
    clip: str | None = None,
    model_dir: str | Sequence[str] = (),
    checkpoint: str = "best",
    dtype: str = "float32",
    decoding: str = "",
    beam: int | None = None,
    data_dir: str | None = None,
    split: str = "val",
    limit: int = 0,
    batch_size: int = 50,
    seed: int = 1,
    rerank: str | None = None,
    rerank_similarity: str = "cider",
    rerank_neighbours: int = 60,
    rerank_best: int = 0,
    rerank_refined: str | None = None,
    rerank_references: Sequence[str] = ("train",),
    rerank_frequencies: Sequence[str] = ("train",),
    rerank_index: str = "",
    perplexity: bool = False,
    diversity: bool = False,
    output: str | None = None,
    hypotheses: str | None = None,
    submission: str | None = None,
    metrics_file: str | None = None,
    per_image: str | None = None,
    report: str | None = None,
    beside: Sequence[str] = (),
    attention: str | None = None,
    images: str | None = None,
    show: bool = False,
) -> Scores:
    """Computes the official scores of COCO, those of pycocoevalcap, times 100.

    Without Java, the scores that need Java are left out, and `Scores.unavailable` says why.
    Arguments that are not listed here are the flags of the command.

    Args:
      predictions: a file of captions in COCO's result format or of `--hypotheses`; or the caption
        of each image, by image id or as a list. A caption is text or a `tfcap.Caption`. None: the
        model of `model_dir` captions a split.
      references: a COCO annotation file; or the reference captions of each image, by image id or as
        a list in the order of the predictions. A reference is text or a `tfcap.Caption`. None: the
        references of the prepared data.
      metrics: some of "BLEU", "METEOR", "ROUGE-L", "CIDEr", "SPICE", "CHAIR" and "CLIPScore"; None
        computes all but the last two.
      partial: score only the images that have predictions and references, in place of an error.
      instances: COCO's files of labelled objects, for CHAIR.
      clip: preset of keras-hub, for CLIPScore; the pictures are those of `data_dir` or the run.
      model_dir: run directories; several are an ensemble.
      metrics_file: the JSON file of the scores, `--metrics` of the command.
      show: whether to print what the command prints.

    Returns:
      The scores, for example `scores.corpus["CIDEr"]`; empty for a split without captions.
    """
    given = types.SimpleNamespace(**locals())
    given.model_dir = [model_dir] if isinstance(model_dir, str) else list(model_dir)
    given.say = functools.partial(print, flush=True) if show else lambda *text: None
    names = results.DEFAULTS if metrics is None else metrics
    given.metrics = [names] if isinstance(names, str) else list(names)
    if not given.metrics or set(given.metrics) - set(results.METRICS):
        raise errors.UsageError(
            f"{','.join(given.metrics) or 'nothing'!r} is not among the scores: "
            f"{','.join(results.METRICS)}."
        )
    for path in filter(None, (output, hypotheses, submission, metrics_file, per_image, report)):
        os.makedirs(os.path.dirname(path) or ".", exist_ok=True)  # before an hour of decoding
    return _Evaluation(given).scores()


class _Evaluation:
    """One call of `evaluate`: its arguments, the captions, the references, and the loaded models.

    The first caption of each image is scored. A split without captions has no references. Captions
    from a file have no `run`, and no `data` without `data_dir`.
    """

    def __init__(self, given: Any):
        self.given = given
        self.run: runs.Run | None = None
        self.data: PreparedData | None = None
        self.others: dict[str, Other] = {}
        self.attention: dict[str, Mapping[int, Any]] = {}
        self.perplexities: Perplexities | None = None
        self.references: dict[int, list[str]] = {}
        self.labels: Mapping[int, set[str]] | None = None
        if given.predictions is None:
            self._decode()
        else:
            self._read()

    def scores(self) -> Scores:
        given = self.given
        if not self.references:
            given.say(f"split {given.split} has no captions, so there is nothing to score")
            return Scores({}, {})
        options = results.Options(self.labels)
        if given.clip:
            from tfcap.inference.clip import KerasHubClip

            pictures = self.data.picture_paths(given.split, given.images) if self.data else {}
            options = results.Options(self.labels, pictures, KerasHubClip(given.clip))
        with CocoScorer(given.metrics, options=options) as scorer:
            return self._score(scorer)

    def _score(self, scorer: CocoScorer) -> Scores:
        given, captions, references = self.given, self.captions.best(), self.references
        compared, more = None, dict[str, Any]()
        if given.show and "SPICE" in given.metrics:
            hint = "SPICE takes minutes; --scores=BLEU,METEOR,ROUGE-L,CIDEr leaves it out"
            print(f"scoring: {hint}", file=sys.stderr, flush=True)
        if given.report:
            every = {self.name: captions} | self._captions_of_others()
            compared = bootstrap.compare(every, references, scorer)
            scores = compared.scores[self.name]
        else:
            scores = scorer.score(references, captions)
        found = {}
        if given.show and len(scores.per_image) > 1:
            found = bootstrap.intervals(scores, meteor_of=scorer.meteor_of)
        ends = {key: bootstrap.interval_text(value.low, value.high) for key, value in found.items()}
        given.say(cli.with_flags(results.format_table(scores, ends)))
        given.say(f"distinct captions: {diversity.distinct_share(captions):.1f} %")
        if given.diversity:
            texts, training = self.captions.captions, training_captions(self.run, self.data)
            more, text = diversity.summarize(texts, references, scorer, training)
            text = cli.with_flags(text)
            given.say(text)
        if self.perplexities:
            given.say(self.perplexities.format())
            more["perplexity"] = self.perplexities.corpus
            more["perplexity_of_sentences"] = self.perplexities.mean
        signature = self.run.signature if self.run else ""
        if signature:
            given.say(f"trained with: {signature}")
        if given.metrics_file:
            results.write_metrics(given.metrics_file, scores, signature, more)
        if given.per_image:
            each = self.perplexities.by_image() if self.perplexities else None
            results.write_per_image(given.per_image, scores, each)
        if compared:
            self._report(compared, signature)
        return scores

    def _read(self) -> None:
        """Reads captions and references from the arguments or from files."""
        given = self.given
        path = given.predictions if isinstance(given.predictions, str | os.PathLike) else ""
        self.name = errors.escaped(os.path.splitext(os.path.basename(path))[0] or "captions")
        self.captions = _captions(given.predictions)
        if given.submission and not given.references:
            self._write()
            return
        if not given.references:
            raise errors.UsageError("--references is missing: the captions to score against.")
        references = _references(given.references, given.partial)
        if given.partial:
            paths = _others_of(given.beside, self.name).values()
            others = [results.load_hypotheses(path).captions for path in paths]
            kept = results.common(references, [self.captions.captions, *others])
            given.say(f"note: {len(kept)} of {len(references)} images with references are scored")
            self.captions = self.captions.of_images(kept)
            references = {image: references[image] for image in kept}
        self.references = references
        self.labels = chair.read_labels(given.instances, references)
        if given.data_dir:
            from tfcap.data.prepared import PreparedData

            self.data = PreparedData.load(given.data_dir)
            if not set(references) & set(self.data.index(given.split).id):
                given.say(
                    f"note: split {given.split} of {self.data.folder} has none of the images, so "
                    "no picture is shown or scored. --split names another split"
                )
        self._load_others(list(references))
        if given.rerank:
            if self.data is None:
                raise errors.UsageError("--rerank of --predictions needs --data_dir.")
            results.check_ids(references, self.captions.captions)  # before the work
            self._rerank(self._reranker())
        self._write()

    def _decode(self) -> None:
        """Decodes the split with a model and writes the captions at once.

        Arguments are checked and files are opened before the decoding, which takes long.
        """
        from tfcap import runs
        from tfcap.data.prepared import stored_captions, unlike_references
        from tfcap.inference.decode import decode_split
        from tfcap.inference.likelihood import perplexities_of_split

        given = self.given
        # Directories of runs have dots in their names, as in lr0.002.
        self.name = errors.escaped(os.path.basename(os.path.normpath(given.model_dir[0])))
        run = runs.load_together(given.model_dir, given.checkpoint, given.dtype)
        self.run = run = run.with_decoding(given.decoding, given.beam)
        self.data = data = runs.load_data(run, given.data_dir)
        search = run.search(data_dir=data.folder)
        given.say(f"{run.described} on {data.folder}, split {given.split}")
        ids = data.index(given.split).id[: given.limit or None].tolist()
        if given.submission:
            results.check_submission(given.split, len(ids))
        self.references = self._references_of(ids)
        if unlike := unlike_references(data, given.split):
            print(f"warning: {unlike}", file=sys.stderr, flush=True)
        self.labels = chair.read_labels(given.instances, self.references)
        self._load_others(ids)
        pictures: Mapping[int, str] = {}
        if given.attention:
            from tfcap.visualize.attention import require_shown_paths

            pictures = require_shown_paths(data, given.split, given.images, ids)
            figures.figure_paths(given.attention, pictures)  # raises an error before the work
        reranker = self._reranker() if given.rerank else None
        if given.perplexity:
            stored = stored_captions(data, given.split)
            stored = {image: stored[image] for image in self.references}
            options = {"limit": given.limit, "references": stored}
            self.perplexities = perplexities_of_split(run, data, given.split, **options)
        model, regions = (run.model, run.vocab, search), run.max_regions
        sizes = given.batch_size, regions, given.limit
        self.captions = decode_split(*model, data, given.split, *sizes, given.seed)
        if reranker:
            self._rerank(reranker)
        self._write()
        self._attend(ids, pictures)
        self.captions = self.captions.of_images(self.references)

    def _references_of(self, ids: list[int]) -> dict[int, list[str]]:
        """Returns the references of the images; images without captions are left out."""
        given, data = self.given, self.data
        assert data is not None
        every = data.references(given.split)
        references = {image: every[image] for image in ids if every[image]}
        if not references:
            needed = ["metrics_file", "per_image", "report", "perplexity", "diversity"]
            if given.rerank == "oracle" or any(getattr(given, name) for name in needed):
                raise errors.UsageError(
                    f"Split {given.split} has no reference captions. Leave out --metrics, "
                    "--per_image, --report, --perplexity, --diversity and --rerank=oracle."
                )
            return {}
        if len(references) < len(ids):
            given.say(
                f"note: {len(ids) - len(references)} images have no captions and are not scored"
            )
        return references

    def _reranker(self) -> Any:
        from tfcap.inference import rerank

        assert self.data is not None
        options = cli.rerank_options(vars(self.given))
        return rerank.load(self.run, self.data, self.given.rerank, **options)

    def _rerank(self, reranker: Any) -> None:
        from tfcap.inference.rerank import rerank_split

        given, captions = self.given, self.captions.captions
        assert self.data is not None
        regions = self.run.max_regions if self.run else None
        self.captions = rerank_split(
            reranker, self.data, given.split, captions, self.references, given.batch_size, regions
        )

    def _write(self) -> None:
        given, best = self.given, self.captions.best()
        if given.output:
            names = self.data.file_names(given.split) if self.data else None
            results.write_results(given.output, best, names)
        if given.hypotheses:
            every, scores = self.captions.captions, self.captions.scores
            results.write_hypotheses(given.hypotheses, every, scores)
        if given.submission:
            text = results.add_submission(given.submission, given.split, best)
            given.say(cli.with_flags(text))

    def _load_others(self, ids: list[int]) -> None:
        """Reads the captions, and loads the models, of --beside."""
        given = self.given
        if not given.beside:
            return
        if not (given.report or given.attention):
            raise errors.UsageError(
                "--beside needs --report or --attention. To compare without a page, use "
                "tfcap.compare."
            )
        from tfcap.captioning import captioner_of_run
        from tfcap.inference.decode import load_others

        paths, data = _others_of(given.beside, self.name), self.data if self.run else None
        self.others = load_others(
            *(paths, self.references, data, given.split, ids),
            captioner_of=captioner_of_run,
            checkpoint=given.checkpoint,
            dtype=given.dtype,
            changes=given.decoding,
            beam=given.beam,
            folder=given.images,
        )

    def _captions_of_others(self) -> dict[str, dict[int, str]]:
        return {
            name: {image: other.captions[image] for image in self.references}
            for name, other in self.others.items()
        }

    def _attend(self, ids: list[int], pictures: Mapping[int, str]) -> None:
        """Decodes the models of --beside; returns the attention of all models by name."""
        given = self.given
        if self.others:
            from tfcap.inference.decode import decode_others

            decode_others(self.others, given.split, ids, given.batch_size, given.seed)
        if not (given.attention or given.report):
            return
        from tfcap.visualize.attention import attend_split

        models = {self.name: (self.run, self.data, self.captions.best())}
        models |= {
            name: (other.run, other.data, other.captions) for name, other in self.others.items()
        }
        for name, (run, data, captions) in models.items():
            if name in self.others and self.others[name].seen:
                self.attention[name] = self.others[name].seen
            elif run is not None and data is not None:
                self.attention[name] = attend_split(
                    run.model,
                    run.vocab,
                    data,
                    given.split,
                    captions,
                    batch_size=given.batch_size,
                    max_regions=run.max_regions,
                )
                if not self.attention[name]:
                    given.say(
                        f"note: there is no attention of {name}, because the regions have no boxes"
                    )
        if given.attention:
            count = figures.write_figures(given.attention, pictures, self.attention)
            given.say(f"{given.attention}: {count} figures")

    def _report(self, compared: bootstrap.Compared, signature: str) -> None:
        from tfcap.visualize.attention import shown_paths

        given, name, run, data = self.given, self.name, self.run, self.data
        captions = self.captions.best()
        notes = [*compared.notes, *([f"trained with: {signature}"] if signature else [])]
        if any(compared.intervals.values()):
            notes.insert(0, "The intervals are 95 %, by bootstrap over the images.")
        if given.rerank and self.others:
            notes.append(f"--rerank={given.rerank} changed the captions of {name} only")
        pictures = shown_paths(data, given.split, given.images, captions) if data else {}
        every = {name: captions, **self._captions_of_others()}
        title = f"{name}, {given.split}" if run else name
        shown = every, compared, self.references, pictures, self.attention
        count = report.write(given.report, *shown, title=title, notes=notes)
        given.say(f"{given.report}: {len(captions)} images, {count} of them with a picture")


def training_captions(run: "runs.Run | None", data: "PreparedData | None") -> list[str]:
    """Returns the captions that a model was trained on; empty if the training data is missing.

    For captions from a file and for a converted run, the training captions of `data` are returned.
    """
    from tfcap.data.prepared import PreparedData, stored_captions

    def digest(fingerprint):
        return fingerprint.get("splits", {}).get("train", {}).get("references_sha256")

    wanted = digest(run.fingerprint) if run else None  # a converted run has none
    if run and data and wanted and wanted != digest(data.fingerprint):
        with contextlib.suppress(ValueError):
            data = PreparedData.load(run.data_dir)
        if digest(data.fingerprint) != wanted:
            print(
                "note: no share of novel captions, because the data that the model was trained "
                f"on is not in {run.data_dir}"
            )
            return []
    if data is None or "train" not in data.fingerprint["splits"]:
        return []
    return [caption for own in stored_captions(data, "train").values() for caption in own]


def _others_of(items: Sequence[str], name: str) -> dict[str, str]:
    """Returns name -> path of the flags `--beside NAME=PATH`; names must differ."""
    paths: dict[str, str] = {}
    for item in items:
        other, equals, path = item.partition("=")
        if not equals or not other or other == name or other in paths:
            raise errors.UsageError(
                f"--beside {item!r} must be NAME=results.json or NAME=MODEL_DIR with a new name."
            )
        paths[other] = path
    return paths


def _captions(given: Any) -> Hypotheses:
    if isinstance(given, str | os.PathLike):
        return results.load_hypotheses(given)
    return Hypotheses({image: _texts([own], image) for image, own in _by_image(given)})


def _references(given: Any, partial: bool) -> dict[int, list[str]]:
    if isinstance(given, str | os.PathLike):
        return results.load_references(given, partial)
    texts = {image: _texts(own, image) for image, own in _by_image(given)}
    return {image: captions for image, captions in texts.items() if captions or not partial}


def _texts(captions: Any, image: int) -> list[str]:
    if isinstance(captions, str | Mapping) or not isinstance(captions, Iterable):
        raise ValueError(f"The references of image {image} must be a list of captions.")
    texts: list[Any] = [getattr(caption, "text", caption) for caption in captions]
    for text in texts:
        if not isinstance(text, str):  # None or NaN is a missing caption, and no word
            raise ValueError(
                f"A caption of image {image} is not text: {text!r:.200}. Leave it out."
            )
    return texts


def _by_image(given: Any) -> Any:
    return given.items() if isinstance(given, Mapping) else enumerate(given)


def main() -> None:
    _define_flags()
    cli.run(_run)


if __name__ == "__main__":
    main()
