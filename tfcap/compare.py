"""Compares the scores of runs or result files, with confidence intervals.

python -m tfcap.compare runs/a runs/b --split val
python -m tfcap.compare A.json B.json --references references_val.json

All captions are scored with the same references. A run captions the split with its own decoding
options, as `tfcap.evaluate` does. If there are runs, the references come from the data of the first
run whose data still exists. A file holds captions in COCO's result format, or is a file of
`tfcap.evaluate --hypotheses`, of which the first caption of each image counts. The second and every
later run or file is compared with the first one, by paired bootstrap over the images
(`tfcap.metrics.bootstrap`).
"""

import dataclasses
import logging
import os
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

from tfcap import cli, errors, pretrained
from tfcap.arguments import argument, arguments, takes
from tfcap.files import read_json, write_json
from tfcap.inference.subject import tokens_of_directory
from tfcap.metrics import bootstrap, chair, coco, results
from tfcap.metrics.bootstrap import Compared
from tfcap.metrics.scoring_arguments import ScoringArguments

_log = logging.getLogger("tfcap.compare")  # as a command, the module has another name

_BATCH = 16  # pictures that a run captions together
_LISTED = 3  # images that gain most, and images that lose most
_WIDTH = 68  # longest caption in the list of images, in characters


def _format_scores(compared: Compared) -> str:
    """Returns a table as text, with a line for each score and a column for each set of captions."""
    names = list(compared.scores)
    width = max([26, *(len(name) + 2 for name in names)])
    first = max(
        [8, *(len(key) + 1 for scores in compared.scores.values() for key in scores.corpus)]
    )
    lines = [" " * first + "".join(f"{name:>{width}}" for name in names)]
    for key in results.KEYS:
        cells = []
        for name in names:
            interval = compared.intervals[name].get(key)
            if interval is not None:
                cells.append(f"{interval.value:.2f} [{interval.low:.2f}, {interval.high:.2f}]")
            else:
                cells.append("-" if key in compared.scores[name].unavailable else "")
        if any(cells):
            lines.append(f"{key:<{first}}" + "".join(f"{cell:>{width}}" for cell in cells))
    for scores in compared.scores.values():
        missing = [f"{key} not computed: {why}" for key, why in scores.unavailable.items()]
        for text in missing + scores.notes:
            note = f"note: {text}"
            if note not in lines:  # most notes are the same for all sets of captions
                lines.append(note)
    return "\n".join(lines + [f"note: {note}" for note in compared.notes])


def _format_difference(differences: dict[str, bootstrap.Difference], name: str, first: str) -> str:
    """Returns a table as text, with a line for each score: its value for `name` minus `first`."""
    width = max([8, *(len(key) + 1 for key in differences)])
    title = f"{'difference':>28}{'p':>9}{'higher in':>11}"
    lines = [f"{name} minus {first}", " " * width + title]
    for key in results.KEYS:
        if key in differences:
            change = differences[key]
            cell = f"{change.value:+.2f} [{change.low:+.2f}, {change.high:+.2f}]"
            wins = f"{100 * change.wins:.1f} %"
            lines.append(f"{key:<{width}}{cell:>28}{change.p:>9.3g}{wins:>11}  {change.verdict}")
    return "\n".join(lines)


def _format_images(
    compared: Compared,
    captions: Mapping[str, Mapping[int, str]],
    name: str,
    file_names: Mapping[int, str] | None = None,
) -> str:
    """Lists the images for which a set has most more CIDEr than the first set, or most less.

    Args:
      compared: the scores of all sets.
      captions: name of the set -> image id -> caption.
      name: the name of the set.
      file_names: image id -> name of the picture file; images may be missing.
    """
    first = next(iter(captions))
    old = compared.scores[first].per_image
    new = compared.scores[name].per_image
    change = {image: new[image]["CIDEr"] - old[image]["CIDEr"] for image in old}
    order = sorted(change, key=lambda image: -change[image])
    gains = [image for image in order[:_LISTED] if change[image] > 0]
    losses = [image for image in order[::-1][:_LISTED] if change[image] < 0]
    lines = []
    for title, images in (("gains most", gains), ("loses most", losses)):
        lines += [f"{name} {title}, by CIDEr"] if images else []
        for image in images:
            file = errors.escaped((file_names or {}).get(image, ""))
            lines.append(f"  {file}, image {image}" if file else f"  image {image}")
            for run, scores in ((first, old), (name, new)):
                text = " ".join(captions[run][image].split())
                text = text if len(text) <= _WIDTH else text[: _WIDTH - 1] + "…"
                lines.append(f"    {scores[image]['CIDEr']:7.1f}  {text}  ({run})")
    return "\n".join(lines)


def _file_names(references: str) -> dict[int, str]:
    """Returns the file names in a COCO annotation file that was read before, by image id."""
    names: dict[int, str] = {}
    for image in read_json(references, "")["images"]:
        if isinstance(image, dict) and {"id", "file_name"} <= image.keys():
            names[image["id"]] = str(image["file_name"])
    return names


def _as_json(compared: Compared) -> dict[str, Any]:
    runs: dict[str, dict[str, Any]] = {}
    for name, scores in compared.scores.items():
        ends = {key: dataclasses.asdict(end) for key, end in compared.intervals[name].items()}
        more = {"unavailable": scores.unavailable, "notes": scores.notes}
        runs[name] = {"scores": ends} | {key: value for key, value in more.items() if value}
    differences = {
        name: {
            key: dataclasses.asdict(change) | {"verdict": change.verdict}
            for key, change in changes.items()
        }
        for name, changes in compared.differences.items()
    }
    return {"runs": runs, "against": next(iter(runs)), "differences": differences}


def _named(paths: list[str]) -> dict[str, str]:
    """Returns name -> path; the name is the file's stem, or its path if the stem occurs twice.

    A directory keeps its whole name, because names of runs have dots, as in lr0.002.
    """
    stems = [getattr(pathlib.Path(p), "name" if os.path.isdir(p) else "stem") for p in paths]
    names = [s if stems.count(s) == 1 else p for s, p in zip(stems, paths, strict=True)]
    return dict(zip(map(errors.escaped, names), paths, strict=True))


@arguments
class Compare(ScoringArguments):
    """The arguments of the function `compare`, which are also the flags of the command."""

    paths: Sequence[str] = argument(
        "Two or more run directories or files of captions, in any mix; the command line has them "
        "without a flag.",
        name="-",
        kw_only=False,
    )
    references: str | None = argument(
        "References for all files: a COCO annotation file. Runs need none.",
        default=None,
        kw_only=False,
    )
    split: str = argument("Split of their data that runs caption.", default="val")
    scores: Sequence[str] | None = argument(
        f"Scores to compute, some of {', '.join((*results.DEFAULTS, 'CHAIR'))}; by default all "
        "but CHAIR. Only tfcap.evaluate computes CLIPScore.",
        default=tuple(results.DEFAULTS),
        many="commas",
    )
    samples: int = argument("Number of bootstrap resamples.", default=1000, least=1)
    seed: int = argument("Random seed of the resamples.", default=1, least=0)
    metrics: str | None = argument("File to write: all numbers as JSON.", default=None)
    show: bool = argument(
        "Whether to print the scores, as the command does. Notes go to the logger `tfcap`.",
        default=False,
        name="-",
    )


def _define_flags() -> None:
    cli.define(Compare)


def _run(argv: list[str]) -> None:
    compare(argv[1:], **cli.values(Compare), show=True)


@takes(Compare)
def compare(args: Compare) -> Compared:
    """Compares the scores of runs or files of captions with the scores of the first of `paths`.

    All captions are scored with the same references. The comparison is a paired bootstrap over the
    images.

    Returns:
      A `Compared`. It has for each run or file, by its name, the scores with 95 % confidence
      intervals. For all but the first it also has the differences from the scores of the first.
    """
    paths = _paths(args)
    task = _caption(args, paths) if any(map(os.path.isdir, paths.values())) else _read(args, paths)
    if len(task.references) < 2:
        raise errors.UsageError(
            f"A comparison needs references of several images, but {task.source} has only "
            f"{len(task.references)}. To score a single image, use tfcap.evaluate."
        )
    for name, path in paths.items():
        try:
            results.check_ids(task.references, task.captions[name])
        except ValueError as error:
            raise ValueError(f"{path}: {error}") from error
    options = results.Options(chair.read_labels(args.instances, task.references))
    with coco.CocoScorer(args.scores, options=options, tokens=task.tokens) as scorer:
        compared = bootstrap.compare(
            task.captions, task.references, scorer, samples=args.samples, seed=args.seed
        )
    if args.metrics:
        about = {"images": len(task.references), "samples": args.samples, "seed": args.seed}
        write_json(args.metrics, about | _as_json(compared), indent=2)
    if args.show:
        _show(args, task, compared)
    return compared


@dataclasses.dataclass(frozen=True)
class _Task:
    """What is compared.

    Attributes:
      source: where the references come from, as text.
      references: image id -> references.
      captions: name of the run or of the file -> image id -> caption.
      file_names: image id -> name of the picture file; images may be missing.
      tokens: how captions and references are cut into words, one of `segmentation.WAYS`.
    """

    source: str
    references: dict[int, list[str]]
    captions: dict[str, dict[int, str]]
    file_names: Mapping[int, str]
    tokens: str


def _paths(args: Compare) -> dict[str, str]:
    """Returns name -> path of what is compared; raises UsageError if it cannot be compared."""
    paths = [pretrained.directory_of(path) for path in args.paths]
    if len(paths) < 2:
        raise errors.UsageError("Give two or more runs or files of captions to compare.")
    for path in paths:
        if paths.count(path) > 1:
            raise errors.UsageError(f"{path} is given twice. Give different runs or files.")
    runs = [path for path in paths if os.path.isdir(path)]
    if runs and args.references:
        raise errors.UsageError(
            f"{runs[0]} is a run, whose data has the references. Leave out `references`."
        )
    if not (runs or args.references):
        raise errors.UsageError(
            "`references` is missing. Files of captions need it: give a COCO annotation file."
        )
    return _named(paths)


def _caption(args: Compare, paths: Mapping[str, str]) -> _Task:
    """Captions the split with the runs, and reads the files."""
    from tfcap.captioning import captioner_of_run
    from tfcap.inference import others

    data = others.data_of_first([path for path in paths.values() if os.path.isdir(path)])
    references = {image: texts for image, texts in data.references(args.split).items() if texts}
    images = list(references)
    loaded = others.load_others(
        paths, references, data, args.split, images, captioner_of=captioner_of_run
    )
    others.decode_others(loaded, args.split, images, batch_size=_BATCH, seed=1, attention=None)
    captions = {name: other.written() for name, other in loaded.items()}
    source = f"{data.folder}, split {args.split}"
    tokens = args.tokens or data.vocab.tokens
    return _Task(source, references, captions, data.file_names(args.split), tokens)


def _read(args: Compare, paths: Mapping[str, str]) -> _Task:
    """Reads the references and the files of captions."""
    assert args.references is not None
    references = results.load_references(args.references, args.partial)
    captions = {name: results.load_results(path) for name, path in paths.items()}
    if args.partial:
        images = results.common(references, captions.values())
        _log.info(f"note: {len(images)} of {len(references)} images with references are scored")
        references = {image: references[image] for image in images}
        captions = {
            name: {image: texts[image] for image in images} for name, texts in captions.items()
        }
    names = _file_names(args.references) if args.show else {}
    tokens = args.tokens or tokens_of_directory(args.references)
    return _Task(args.references, references, captions, names, tokens)


def _show(args: Compare, task: _Task, compared: Compared) -> None:
    """Prints the tables, and the images that gain and lose most."""
    first = next(iter(task.captions))
    number = f"{len(task.references)} images of {task.source}"
    print(f"{number}, {args.samples} resamples, 95 % intervals\n")
    print(cli.with_flags(_format_scores(compared)))
    for name, differences in compared.differences.items():
        print("\n" + _format_difference(differences, name, first))
        if "CIDEr" in differences:
            if images := _format_images(compared, task.captions, name, task.file_names):
                print("\n" + images)


def main() -> None:
    _define_flags()
    cli.run(_run)


if __name__ == "__main__":
    main()
