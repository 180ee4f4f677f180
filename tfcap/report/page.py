"""The page: what runs said about pictures, in one file that needs no network.

`write` puts three parts together: `page.html` with its style and scripts, the data as JSON, and the
pictures as JSON. What a stranger wrote (captions, references, names) reaches the page as JSON
only, where "<" is escaped, and the script shows it as text and never as markup; a content policy
in the page lets nothing run but this script and loads nothing but pictures inside the file.

Letters: T' words of a caption, R regions.
"""

import base64
import collections
import dataclasses
import hashlib
import html as html_lib
import importlib.resources
import json
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from tfcap.files import replacing
from tfcap.metrics import results
from tfcap.metrics.bootstrap import Difference, Interval
from tfcap.metrics.comparison import Compared
from tfcap.report import pictures as pictures_lib

# Mark in the page -> the file that takes its place.
_FILES = {
    "html": "page.html",
    "style": "page.css",
    "parts": "parts.js",
    "charts": "charts.js",
    "script": "page.js",
}


class Attended(Protocol):
    """Where a caption looked; `tfcap.visualize.Attended` is one.

    Attributes:
        words: T' words.
        weights: float [T', R].
        boxes: float [R, 4], x1, y1, x2, y2 of every region as shares of width and height.
        kind: What the weights are: "attention", or "contribution" of a model without it.
    """

    words: Sequence[str]
    weights: np.ndarray
    boxes: np.ndarray
    kind: str


@dataclasses.dataclass(frozen=True)
class Run:
    """One set of captions.

    Attributes:
        name: How the page calls it.
        predictions: Image id -> caption.
        scores: Of these captions.
        intervals: Key -> interval of the score.
        differences: Key -> this run minus the first one.
        attention: Image id -> where the caption looked; images may be missing.
    """

    name: str
    predictions: Mapping[int, str]
    scores: results.Scores
    intervals: Mapping[str, Interval] | None = None
    differences: Mapping[str, Difference] | None = None
    attention: Mapping[int, Attended] | None = None


def compared_runs(
    captions: Mapping[str, Mapping[int, str]],
    compared: Compared,
    attention: Mapping[int, Attended] | None = None,
) -> list[Run]:
    """Returns the runs of a page from their captions and the comparison of their scores.

    Args:
        captions: Name of each run -> image id -> caption; the first is the evaluated run.
        compared: Scores, intervals and differences of the same runs.
        attention: Attention of the captions of the first run, by image id.
    """
    first = next(iter(captions))
    return [
        Run(
            name,
            predictions,
            compared.scores[name],
            compared.intervals[name],
            compared.differences.get(name),
            attention if name == first else None,
        )
        for name, predictions in captions.items()
    ]


def write(
    path: str | os.PathLike,
    runs: Sequence[Run],
    references: Mapping[int, Sequence[str]],
    pictures: pictures_lib.Pictures | None = None,
    *,
    title: str = "Captions",
    names: Mapping[int, str] | None = None,
    notes: Sequence[str] = (),
    side: int = 320,
    quality: int = 75,
) -> int:
    """Writes the page, whole or not at all.

    Args:
        path: The file, say "report.html"; its directory must exist.
        runs: One or more, about the same images; the others are compared with the first.
        references: Image id -> reference captions, of the images of the runs.
        pictures: Image id -> path of its picture, or a function from id to bytes or None.
        title: Of the page.
        names: Image id -> what to call it; by default the name of its picture's file, or the id.
        notes: Lines shown under the scores.
        side: Longer side of the pictures, in pixels.
        quality: Of their JPEG.

    Returns:
        How many images have a picture.

    Raises:
        ValueError: No run, two of one name, other images, or attention of another caption.
    """
    _check(runs, references)
    images = list(runs[0].predictions)
    names = dict(names or pictures_lib.file_names(images, pictures))
    data = _data(runs, references, images, names, title, list(notes))
    shown = 0
    with replacing(path) as temporary, open(temporary, "w", encoding="utf-8") as file:
        before, between, after = _template(title)
        file.write(before + _json(data) + between)
        small = pictures_lib.thumbnails(images, pictures, side, quality)
        for position, picture in enumerate(small):
            file.write(("[\n" if position == 0 else ",\n") + json.dumps(picture))
            shown += picture is not None
        file.write("\n]" + after)
    return shown


def _check(runs: Sequence[Run], references: Mapping[int, Sequence[str]]) -> None:
    if not runs:
        raise ValueError("a report needs at least one run; received none")
    twice = [name for name, n in collections.Counter(run.name for run in runs).items() if n > 1]
    if twice:
        raise ValueError(f"runs of a report need different names; received {twice[0]!r} twice")
    for run in runs:
        results.check_ids(references, run.predictions)
        results.check_ids(references, run.scores.per_image)
        for image, attended in (run.attention or {}).items():
            said = run.predictions.get(image, "").split()
            if image in run.predictions and list(attended.words)[: len(said)] != said:
                raise ValueError(
                    f"attention of run {run.name}, image {image}, belongs to another caption: "
                    f"{' '.join(attended.words)!r:.100} and not {' '.join(said)!r:.100}"
                )


def _data(
    runs: Sequence[Run],
    references: Mapping[int, Sequence[str]],
    images: Sequence[int],
    names: Mapping[int, str],
    title: str,
    notes: list[str],
) -> dict[str, Any]:
    """What the script of the page reads; see there."""
    each = [key for key in results.KEYS if key in next(iter(runs[0].scores.per_image.values()))]
    boxes: dict[tuple[str, bool], int] = {}
    rows = []
    for image in images:
        told = [_caption(run, image, each, boxes) for run in runs]
        rows.append(
            {
                "id": image,
                "name": str(names.get(image, image)),
                "refs": [str(caption) for caption in references[image]],
                "runs": told,
            }
        )
    for run in runs:
        notes += [f"{key} not computed: {why}" for key, why in run.scores.unavailable.items()]
        notes += run.scores.notes
    return {
        "title": title,
        "keys": each,
        "runs": [{"name": run.name, "scores": list(_corpus(run))} for run in runs],
        "notes": list(dict.fromkeys(notes)),
        "images": rows,
        "boxes": [list(packed) for packed in boxes],
    }


def _corpus(run: Run) -> Iterator[dict[str, Any]]:
    """The scores of the corpus with their intervals and differences."""
    for key in results.KEYS:
        if key not in run.scores.corpus:
            continue
        row: dict[str, Any] = {"key": key, "value": _number(run.scores.corpus[key])}
        if run.intervals and key in run.intervals:
            interval = run.intervals[key]
            row |= {"low": _number(interval.low), "high": _number(interval.high)}
        if run.differences and key in run.differences:
            change = run.differences[key]
            ends = [_number(end) for end in (change.value, change.low, change.high)]
            row["change"] = [*ends, change.verdict]
        yield row


def _caption(
    run: Run, image: int, keys: Sequence[str], boxes: dict[tuple[str, bool], int]
) -> dict[str, Any]:
    found: dict[str, Any] = {
        "text": run.predictions[image],
        "scores": [_number(run.scores.per_image[image].get(key)) for key in keys],
    }
    attended = (run.attention or {}).get(image)
    if attended is not None:
        weights, peaks = pictures_lib.packed_weights(attended.weights)
        # Grids are the same for all images: each set of boxes is written once.
        packed = pictures_lib.packed_boxes(attended.boxes), pictures_lib.tiles(attended.boxes)
        index = boxes.setdefault(packed, len(boxes))
        found["seen"] = {
            "words": list(attended.words),
            "weights": weights,
            "peaks": peaks,
            "boxes": index,
            "kind": attended.kind,
        }
    return found


def _number(value: float | None) -> float | None:
    return None if value is None or not math.isfinite(value) else round(float(value), 3)


def _json(content: Any) -> str:
    """JSON that can stand in a page: no "<" can end the element that it is in."""
    text = json.dumps(content, allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c")


def _template(title: str) -> list[str]:
    """The page before the data, between data and pictures, and after them."""
    folder = importlib.resources.files("tfcap.report")
    files = {name: (folder / name).read_text(encoding="utf-8") for name in _FILES.values()}
    html = files[_FILES["html"]]
    scripts = " ".join(f"'{_hash(text)}'" for name, text in files.items() if name.endswith(".js"))
    policy = (
        f"default-src 'none'; img-src data:; style-src '{_hash(files[_FILES['style']])}'; "
        f"script-src {scripts}; base-uri 'none'; form-action 'none'"
    )
    # Braces too: a title must not look like one of the marks.
    marks = {"policy": policy, "title": html_lib.escape(title).replace("{", "&#123;")}
    marks |= {mark: files[name] for mark, name in _FILES.items() if mark != "html"}
    for mark, text in marks.items():
        html = html.replace("{{" + mark + "}}", text, 1)
    before, rest = html.split("{{data}}")
    between, after = rest.split("{{pictures}}")
    return [before, between, after]


def _hash(content: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()
