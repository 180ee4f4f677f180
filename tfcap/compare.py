"""Compares the scores of runs or result files, with confidence intervals.

python -m tfcap.compare runs/a runs/b --split val
python -m tfcap.compare A.json B.json --references references_val.json

All are scored with the same references. A run captions the split with its own decoding options, as
`tfcap.evaluate` does; the references come from the data of the first run whose data still exists. A
file holds captions in COCO's result format, or is a file of `tfcap.evaluate --hypotheses`, of which
the first caption of each image counts. All others are compared with the first set of captions by
paired bootstrap over the images (`tfcap.metrics.bootstrap`).
"""

import dataclasses
import os
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

from absl import flags

from tfcap import cli, errors, pretrained
from tfcap.files import read_json, write_json
from tfcap.metrics import bootstrap, chair, coco, results
from tfcap.metrics.bootstrap import Compared

_BATCH = 16  # pictures that a run captions together
_LISTED = 3  # images that gain most, and images that lose most
_WIDTH = 68  # longest caption in the list of images, in characters


def format_scores(compared: Compared) -> str:
    """Returns a table with a line per score and a column per set of captions."""
    names = list(compared.scores)
    width = max(26, *(len(name) + 2 for name in names))
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


def format_difference(differences: dict[str, bootstrap.Difference], name: str, first: str) -> str:
    """Returns a table with a line per score: set `name` minus set `first`."""
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


def format_images(
    compared: Compared,
    runs: dict[str, dict[int, str]],
    name: str,
    files: Mapping[int, str] | None = None,
) -> str:
    """Lists the images where set `name` gains most CIDEr over the first set, and loses most.

    `files` has the file name of each image, where it is known.
    """
    first = next(iter(runs))
    old, new = compared.scores[first].per_image, compared.scores[name].per_image
    change = {image: new[image]["CIDEr"] - old[image]["CIDEr"] for image in old}
    order = sorted(change, key=lambda image: -change[image])
    gains = [image for image in order[:_LISTED] if change[image] > 0]
    losses = [image for image in order[::-1][:_LISTED] if change[image] < 0]
    lines = []
    for title, images in (("gains most", gains), ("loses most", losses)):
        lines += [f"{name} {title}, by CIDEr"] if images else []
        for image in images:
            file = errors.escaped((files or {}).get(image, ""))
            lines.append(f"  {file}, image {image}" if file else f"  image {image}")
            for run, scores in ((first, old), (name, new)):
                text = " ".join(runs[run][image].split())
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


def _define_flags() -> None:
    flags.DEFINE_string(
        "references", None, "References for all files: a COCO annotation file. Runs need none."
    )
    flags.DEFINE_string("split", "val", "Split of their data that runs caption.")
    cli.define_scoring_flags()
    flags.DEFINE_integer("samples", 1000, "Number of bootstrap resamples.", lower_bound=1)
    flags.DEFINE_integer("seed", 1, "Random seed of the resamples.", lower_bound=0)
    flags.DEFINE_string("metrics", None, "File to write: all numbers as JSON.")


def _run(argv: list[str]) -> None:
    compare(argv[1:], **cli.flag_arguments(compare), show=True)


def compare(
    paths: Sequence[str],
    references: str | None = None,
    *,
    split: str = "val",
    partial: bool = False,
    scores: Sequence[str] | None = None,
    instances: Sequence[str] = (),
    samples: int = 1000,
    seed: int = 1,
    metrics: str | None = None,
    show: bool = False,
) -> Compared:
    """Compares runs or files of captions with the first of `paths` by paired bootstrap over images.

    Args:
      paths: two or more run directories or files of captions, in any mix.
      references: a COCO annotation file; None takes the references of the first run's data.
      split: the split that runs caption.
      scores: the scores to compute; None computes those of pycocoevalcap.
      metrics: JSON file to write.
      show: whether to print what the command prints.
      partial, instances, samples, seed: as the flags of the command.
    """
    paths = list(map(pretrained.place, paths))
    folders = [path for path in paths if os.path.isdir(path)]
    if len(set(paths)) < max(2, len(paths)) or bool(folders) == bool(references):
        raise errors.UsageError(
            "Give two or more runs, or two or more different result files and --references."
        )
    named = _named(paths)
    if folders:
        from tfcap.captioning import captioner_of_run
        from tfcap.inference import decode

        data = decode.data_of_first(folders)
        source = f"{data.folder}, split {split}"
        every = {image: texts for image, texts in data.references(split).items() if texts}
        arguments = named, every, data, split, list(every)
        found = decode.load_others(*arguments, captioner_of=captioner_of_run)
        decode.decode_others(found, split, list(every), _BATCH, 1, attention=None)
        runs = {name: other.captions for name, other in found.items()}
        names = data.file_names(split)
    else:
        source = references or ""
        every = results.load_references(source, partial)
        runs = {name: results.load_results(path) for name, path in named.items()}
        names = _file_names(source) if show else {}
        if partial:
            shared = results.common(every, runs.values())
            print(f"note: {len(shared)} of {len(every)} images with references are scored")
            every = {image: every[image] for image in shared}
            runs = {name: {image: run[image] for image in shared} for name, run in runs.items()}
    if len(every) < 2:
        raise errors.UsageError(
            f"{source} has references of {len(every)} image, and intervals need several. To score "
            "one image, use tfcap.evaluate."
        )
    for name, path in named.items():
        try:
            results.check_ids(every, runs[name])
        except ValueError as error:
            raise ValueError(f"{path}: {error}") from error
    options = results.Options(chair.read_labels(instances, every))
    with coco.CocoScorer(scores, options=options) as scorer:
        compared = bootstrap.compare(runs, every, scorer, samples=samples, seed=seed)
    if metrics:
        about = {"images": len(every), "samples": samples, "seed": seed}
        write_json(metrics, about | _as_json(compared), indent=2)
    if show:
        print(f"{len(every)} images of {source}, {samples} resamples, 95 % intervals\n")
        print(cli.with_flags(format_scores(compared)))
        for name, differences in compared.differences.items():
            print("\n" + format_difference(differences, name, next(iter(runs))))
            if "CIDEr" in differences and (images := format_images(compared, runs, name, names)):
                print("\n" + images)
    return compared


def main() -> None:
    _define_flags()
    cli.run(_run)


if __name__ == "__main__":
    main()
