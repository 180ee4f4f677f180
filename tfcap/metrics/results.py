"""Names of the metrics, the scores of a set of captions, and the files of captions and scores.

Letters: B images, Q counts of an image.
"""

import dataclasses
import itertools
import json
import os
import re
import zipfile
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from tfcap import errors
from tfcap.files import read_json, replacing, write_json
from tfcap.marks import left_out, mark_of

# Metrics that are computed only where they are named, and the keys of their scores.
ON_REQUEST = {
    "CHAIR": ("CHAIRi", "CHAIRs", "CHAIR-recall"),
    "CLIPScore": ("CLIPScore", "RefCLIPScore"),
}
DEFAULTS = ["BLEU", "METEOR", "ROUGE-L", "CIDEr", "SPICE"]
METRICS = [*DEFAULTS, *ON_REQUEST]  # what --scores names
KEYS = ["BLEU-1", "BLEU-2", "BLEU-3", "BLEU-4", "METEOR", "ROUGE-L", "CIDEr", "SPICE"]  # of scores
KEYS += [key for keys in ON_REQUEST.values() for key in keys]
LOWER = ("loss", "perplexity", "CHAIRi", "CHAIRs")  # values of a validation; a lower one is better

SUBMISSION_IMAGES = {"val2014": 40504, "test2014": 40775}  # of COCO's server
_REMEDY = "Give a whole file of captions in a COCO format."


class Unavailable(RuntimeError):
    """A metric cannot be computed; the message is one line that says what is missing."""


class Encoder(Protocol):
    """Two networks that map pictures and texts into one space: vectors float32 [B, D]."""

    def pictures(self, paths: Sequence[str]) -> np.ndarray: ...
    def texts(self, texts: Sequence[str]) -> np.ndarray: ...


@dataclasses.dataclass(frozen=True)
class Options:
    """The inputs that some metrics need besides captions. The flags of the commands set them."""

    labels: Mapping[int, Collection[str]] | None = None  # of CHAIR, see `chair.read_labels`
    pictures: Mapping[int, str] = dataclasses.field(default_factory=dict)  # paths, of CLIPScore
    clip: Encoder | None = None


@dataclasses.dataclass(frozen=True)
class Scores:
    """The scores of a set of captions of B images.

    Attributes:
      corpus: key of `KEYS` -> score of the whole set, times 100, for the computed metrics.
      per_image: image id -> key -> score of the image, times 100.
      unavailable: requested metric that was not computed -> the reason and what to install.
      notes: notes to print with the scores, one line each.
      statistics: "BLEU", "METEOR" and keys that are ratios -> counts of each image, float64 [B, Q],
        in the order of `per_image`. These corpus scores are not means over images: they are
        computed from the sums of the counts, see `bootstrap`.
    """

    corpus: dict[str, float]
    per_image: dict[int, dict[str, float]]
    unavailable: dict[str, str] = dataclasses.field(default_factory=dict)
    notes: list[str] = dataclasses.field(default_factory=list)
    statistics: dict[str, np.ndarray] = dataclasses.field(
        default_factory=dict, repr=False, compare=False
    )

    def add(self, key: str, corpus: float, each: Sequence[float]) -> None:
        """Adds a score, 0 to 1: `corpus`, and `each` in the order of `per_image`."""
        self.corpus[key] = 100.0 * float(corpus)
        for values, score in zip(self.per_image.values(), each, strict=True):
            values[key] = 100.0 * float(score)

    def add_ratio(self, key: str, counts: np.ndarray) -> None:
        """Adds a ratio of counts, float64 [B, 2]; an image with denominator 0 has the score 0."""
        parts, wholes = counts.T
        each = np.divide(parts, wholes, out=np.zeros(len(counts)), where=wholes > 0)
        self.add(key, parts.sum() / wholes.sum() if wholes.any() else 0.0, each.tolist())
        self.statistics[key] = counts


# Captions and references


@dataclasses.dataclass(frozen=True)
class Hypotheses:
    """Captions by image id, best first, and their scores (such as log P) by image id, or None."""

    captions: dict[int, list[str]]
    scores: dict[int, list[float]] | None = None

    def best(self) -> dict[int, str]:
        """Returns the first caption of each image."""
        return {image: captions[0] for image, captions in self.captions.items()}

    def of_images(self, images: Iterable[int]) -> "Hypotheses":
        images = list(images)
        scores = self.scores and {image: self.scores[image] for image in images}
        return Hypotheses({image: self.captions[image] for image in images}, scores)


def load_hypotheses(path: str | os.PathLike) -> Hypotheses:
    """Reads captions from a COCO result file, or from a file of `write_hypotheses`."""
    captions: dict[int, list[str]] = {}
    scores: dict[int, list[float]] = {}
    for entry in _entries(read_json(path, _REMEDY)):
        image: Any = entry.get("image_id")
        texts = entry.get("captions", [entry.get("caption")])
        if not _is_id(image) or not texts or not all(isinstance(text, str) for text in texts):
            raise ValueError(
                f'{path} is not a list of {{"image_id": 1, "caption": "a dog"}}, COCO\'s result '
                f"format: it has the entry {entry!r:.100}."
            )
        if image in captions:
            raise ValueError(f"{path} has two entries for image {image}. Keep one of them.")
        captions[image] = list(texts)
        if "scores" in entry:
            scores[image] = [float(score) for score in entry["scores"]]
    return Hypotheses(captions, scores if scores.keys() == captions.keys() else None)


def load_results(path: str | os.PathLike) -> dict[int, str]:
    """Reads image id -> the first caption of the image, see `load_hypotheses`."""
    return load_hypotheses(path).best()


def load_runs(paths: Mapping[str, str], references: Mapping[int, Any]) -> dict[str, dict[int, str]]:
    """Reads name -> image id -> caption, for the images of `references` and in their order."""
    runs = {}
    for name, path in paths.items():
        captions = load_results(path)
        if missing := [image for image in references if image not in captions]:
            raise ValueError(
                f"{path} has no caption for image {missing[0]} of the split. Give a result file "
                "of the same split, or --partial."
            )
        runs[name] = {image: captions[image] for image in references}
    return runs


def load_references(path: str | os.PathLike, partial: bool = False) -> dict[int, list[str]]:
    """Reads captions by image id from a file in the COCO annotation format, in the file's order.

    Captions that the file marks as unusable are left out, and images that have no other caption; a
    note counts them. Other images without captions are an error, or left out with `partial`.
    """
    content = read_json(path, _REMEDY)
    content = content if isinstance(content, dict) else {}
    images = _entries(content.get("images", []))
    references: dict[int, list[str]] = {entry["id"]: [] for entry in images if "id" in entry}
    marks: dict[int, list[str]] = {}  # of the captions that are left out
    for entry in _entries(content.get("annotations", [])) if references else ():
        image: Any = entry.get("image_id")
        caption: Any = entry.get("caption")
        try:
            mark = mark_of(entry)
        except ValueError as error:
            raise ValueError(f"{path} has the annotation {entry!r:.100}: {error}.") from None
        if image not in references or not (mark or isinstance(caption, str)):
            raise ValueError(
                f'{path} has the annotation {entry!r:.100}: its "image_id" must be the "id" of one '
                'of "images", and its "caption" text.'
            )
        if mark:
            marks.setdefault(image, []).append(mark)
        else:
            references[image].append(caption)
    if not references or not all(map(_is_id, references)):
        raise ValueError(
            f'{path} is not in COCO\'s annotation format: "images" with a whole number '
            f'"id" each, and "annotations" with "image_id" and "caption". {_REMEDY}'
        )
    references = _without_marked(path, references, marks)
    bare = [image for image, captions in references.items() if not captions]
    if bare and not partial:
        raise ValueError(
            f"{path} has no captions for {some(bare)}. Add captions, drop the images, or score "
            "the others with --partial."
        )
    return {image: captions for image, captions in references.items() if captions}


def _without_marked(
    path: str | os.PathLike, references: dict[int, list[str]], marks: Mapping[int, Sequence[str]]
) -> dict[int, list[str]]:
    """Leaves out images that have only marked captions, and prints what the file marks."""
    if not marks:
        return references
    note = left_out(itertools.chain.from_iterable(marks.values()))
    bare = [image for image in marks if not references[image]]
    more = f", and {some(bare)} without another caption" if bare else ""
    print(f"note: {path}: {note}{more}", flush=True)
    if len(bare) == len(references):
        raise ValueError(f"{path} marks all captions as unusable. Remove the marks to use them.")
    return {image: own for image, own in references.items() if own or image not in marks}


def _entries(content: Any) -> list[dict]:
    """Returns the entries of a list; anything else becomes one entry, which later fails."""
    content = content if isinstance(content, list) else [content]
    return [entry if isinstance(entry, dict) else {"": entry} for entry in content]


def _is_id(image: Any) -> bool:
    return type(image) is int  # True is an int as well


def common(references: Mapping[int, Any], runs: Iterable[Mapping[int, Any]]) -> list[int]:
    """Returns the ids in `references` that have captions in all runs, for `--partial`."""
    runs = list(runs)
    images = [image for image in references if all(image in captions for captions in runs)]
    if not images:
        raise ValueError("No image has both references and captions. Give files of one data set.")
    return images


def check_ids(references: Mapping[int, Any], predictions: Mapping[int, Any]) -> None:
    """Checks that predictions and references have the same image ids."""
    remedy = (
        "Give files of the same split, such as references_val.json of the prepared data, or score "
        "only the images that both have: --partial (in Python partial=True)."
    )
    if unknown := [image for image in predictions if image not in references]:
        raise ValueError(
            f"There are no references for {some(unknown)} of the {len(predictions)} predictions. "
            f"{remedy}"
        )
    if missing := [image for image in references if image not in predictions]:
        raise ValueError(
            f"There are no predictions for {some(missing)} of the {len(references)} images with "
            f"references. {remedy}"
        )
    if not references:
        raise ValueError("There is nothing to score: no predictions and no references.")


def write_results(
    path: str | os.PathLike, predictions: Mapping[int, str], names: Mapping[int, str] | None = None
) -> None:
    """Writes captions in the COCO result format, with file names if there are `names`."""
    entries: list[dict[str, Any]] = []
    for image, caption in predictions.items():
        name = {"file_name": names[image]} if names else {}
        entries.append({"image_id": int(image), **name, "caption": caption})
    write_json(path, entries, indent=None)


def write_hypotheses(
    path: str | os.PathLike,
    captions: Mapping[int, Sequence[str]],
    scores: Mapping[int, Sequence[float]] | None = None,
) -> None:
    """Writes several captions per image, `[{"image_id": 1, "captions": ["a dog", …]}, …]`."""
    entries = []
    for image, texts in captions.items():
        entries.append({"image_id": int(image), "captions": list(texts)})
        if scores is not None:
            entries[-1]["scores"] = [float(score) for score in scores[image]]
    write_json(path, entries, indent=None)


# The archive that COCO's caption server takes: a result file for each of two splits.


def check_submission(split: str, images: int) -> str:
    """Returns `val2014` or `test2014`; raises UsageError for other splits or missing images."""
    name = f"{split.removesuffix('2014')}2014"
    if name not in SUBMISSION_IMAGES:
        raise errors.UsageError(
            f"--submission is for the splits val2014 and test2014, not {split}."
        )
    if images != SUBMISSION_IMAGES[name]:
        raise errors.UsageError(
            f"--submission needs all {SUBMISSION_IMAGES[name]} images of {name}, and the split has "
            f"{images}."
        )
    return name


def add_submission(path: str, split: str, captions: Mapping[int, str]) -> str:
    """Adds the captions of a split to an archive, NAME.zip or captions_NAME_results.zip.

    Returns a line that says which split the archive has and which is still missing.
    """
    split = check_submission(split, len(captions))
    stem = os.path.splitext(os.path.basename(path))[0]
    name = re.sub(r"^captions_|_results$", "", stem)
    members = {}
    if os.path.exists(path):
        with zipfile.ZipFile(path) as archive:
            members = {member: archive.read(member) for member in archive.namelist()}
    entries = [{"image_id": int(i), "caption": captions[i]} for i in sorted(captions)]
    members[f"captions_{split}_{name}_results.json"] = json.dumps(entries).encode()
    with replacing(path) as temporary, zipfile.ZipFile(temporary, "w") as archive:
        for member in sorted(members):
            archive.writestr(member, members[member], zipfile.ZIP_DEFLATED)
    lacking = [o for o in SUBMISSION_IMAGES if not any(o in member for member in members)]
    rest = f"; give the same --submission with the split {lacking[0]}" if lacking else ""
    return f"{path}: captions of all images of {split}{rest}"


# Scores


def write_metrics(
    path: str | os.PathLike,
    scores: Scores,
    signature: str = "",
    others: Mapping[str, Any] | None = None,
) -> None:
    """Writes the corpus scores as a JSON object, with `others` and how the model was trained.

    "unavailable" and "notes" are written if they are not empty, so that a reader of the numbers
    also sees their limits.
    """
    content: dict[str, Any] = {key: scores.corpus[key] for key in KEYS if key in scores.corpus}
    further = {"signature": signature, "unavailable": scores.unavailable, "notes": scores.notes}
    content |= {key: value for key, value in further.items() if value} | dict(others or {})
    write_json(path, content, indent=2)


def write_per_image(
    path: str | os.PathLike,
    scores: Scores,
    perplexities: Mapping[int, Sequence[float]] | None = None,
) -> None:
    """Writes {image id: {score: value, "perplexities": [value of each reference]}} as JSON."""
    content: dict[str, Any] = {str(i): dict(values) for i, values in scores.per_image.items()}
    for image, values in (perplexities or {}).items():
        content[str(image)]["perplexities"] = [float(value) for value in values]
    write_json(path, content, indent=None)


def format_table(scores: Scores, intervals: Mapping[str, str] | None = None) -> str:
    """Returns the corpus scores as text: one line per metric, then reasons and notes.

    `intervals` is key -> text of `bootstrap.shown`.
    """
    intervals = intervals or {}
    shown = [key for key in KEYS if key in scores.corpus or key in scores.unavailable]
    width = max([8, *map(len, shown)])
    lines = [f"{'metric':<{width}} {'score':>7}", f"{'-' * width} {'-' * 7}"]
    for key in shown:
        value = f"{scores.corpus[key]:7.2f}" if key in scores.corpus else f"{'-':>7}"
        lines.append(f"{key:<{width}} {value}{intervals.get(key, '')}")
    if intervals:
        lines.append(f"{len(scores.per_image)} images; in brackets 95 % intervals (bootstrap)")
    lines += [f"{key} is not computed: {why}" for key, why in scores.unavailable.items()]
    lines += [f"note: {note}" for note in scores.notes]
    return "\n".join(lines)


def some(images: Iterable[int]) -> str:
    """Names up to three images for an error message."""
    images = list(images)
    shown = ", ".join(map(str, images[:3]))
    more = f", … ({len(images)} images)" if len(images) > 3 else ""
    return f"image {shown}" if len(images) == 1 else f"images {shown}{more}"
