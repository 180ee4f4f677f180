"""Writes the HTML page of a report: captions and pictures of runs, in one file for offline use.

`write` combines three parts: `page.html` with its style and scripts, the data as JSON, and the
pictures as JSON. Text from other sources (captions, references, names) enters the page only as JSON
with an escaped "<", and the script shows it as text, never as markup. A content security policy in
the page allows only these scripts to run and only pictures inside the file to load.

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
from tfcap.metrics.bootstrap import Compared, Difference, Interval
from tfcap.report import pictures as pictures_lib

# Placeholder in page.html -> the file that replaces it.
_FILES = {
    "html": "page.html",
    "theme": "theme.css",
    "style": "page.css",
    "attention": "attention.js",
    "parts": "parts.js",
    "charts": "charts.js",
    "script": "page.js",
}


class Attended(Protocol):
    """The attention of a caption; `tfcap.visualize.Attended` implements this protocol.

    Attributes:
        words: T' words.
        weights: float [T', R], the weights of the regions for each word.
        boxes: float [R, 4], x1, y1, x2, y2 of every region as shares of width and height.
        kind: Meaning of the weights: "attention", or "contribution" for a model without attention.
    """

    @property
    def words(self) -> Sequence[str]: ...
    @property
    def weights(self) -> np.ndarray: ...
    @property
    def boxes(self) -> np.ndarray: ...
    @property
    def kind(self) -> str: ...


@dataclasses.dataclass(frozen=True)
class Run:
    """A set of captions with its scores.

    Attributes:
        name: Name shown on the page.
        predictions: Image id -> caption.
        scores: Scores of these captions.
        intervals: Key -> interval of the score.
        differences: Key -> this run minus the first run.
        attention: Image id -> attention of the caption; images may be missing.
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
    attention: Mapping[str, Mapping[int, Attended]] | None = None,
) -> list[Run]:
    """Returns the runs of a page from their captions and the comparison of their scores.

    Args:
        captions: Name of each run -> image id -> caption; the first is the evaluated run.
        compared: Scores, intervals and differences of the same runs.
        attention: Attention of the captions, by the name of the run and image id; runs may be
            missing.
    """
    return [
        Run(
            name,
            predictions,
            compared.scores[name],
            compared.intervals[name],
            compared.differences.get(name),
            (attention or {}).get(name),
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
    """Writes the page. The file appears only when it is complete.

    Args:
        path: The file, for example "report.html"; its directory must exist.
        runs: One or more runs with captions of the same images; the page compares the others with
            the first one.
        references: Image id -> reference captions, for the images of the runs.
        pictures: Image id -> path of the picture, or a function from id to bytes or None.
        title: Title of the page.
        names: Image id -> name of the image; by default the name of the picture's file, or the id.
        notes: Lines shown under the scores.
        side: Longer side of the pictures, in pixels.
        quality: JPEG quality of the pictures.

    Returns:
        The number of images with a picture.

    Raises:
        ValueError: There is no run, two runs have the same name, the image ids differ, or the
            attention belongs to another caption.
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
        raise ValueError("runs must hold at least one run. Received: none. Give a run to report.")
    twice = [name for name, n in collections.Counter(run.name for run in runs).items() if n > 1]
    if twice:
        raise ValueError(
            f"Runs of a report must have different names. Received: {twice[0]!r} twice. Rename one."
        )
    for run in runs:
        results.check_ids(references, run.predictions)
        results.check_ids(references, run.scores.per_image)
        for image, attended in (run.attention or {}).items():
            words = run.predictions.get(image, "").split()
            if image in run.predictions and list(attended.words)[: len(words)] != words:
                raise ValueError(
                    f"Attention of run {run.name}, image {image}, must belong to the caption "
                    f"{' '.join(words)!r:.100}. Received: {' '.join(attended.words)!r:.100}. "
                    "Compute the attention again for this caption."
                )


def _data(
    runs: Sequence[Run],
    references: Mapping[int, Sequence[str]],
    images: Sequence[int],
    names: Mapping[int, str],
    title: str,
    notes: list[str],
) -> dict[str, Any]:
    """Builds the data for the script of the page; `parts.js` describes its keys."""
    each = [key for key in results.KEYS if key in next(iter(runs[0].scores.per_image.values()))]
    boxes: dict[tuple[str, bool], int] = {}
    rows = []
    for image in images:
        captions = [_caption(run, image, each, boxes) for run in runs]
        rows.append(
            {
                "id": str(image),  # JavaScript rounds numbers above 2^53
                "name": str(names.get(image, image)),
                "refs": [str(caption) for caption in references[image]],
                "runs": captions,
            }
        )
    for run in runs:
        notes += [f"{key} not computed: {why}" for key, why in run.scores.unavailable.items()]
        notes += run.scores.notes
    return {
        "title": title,
        "keys": each,
        "lower": [key for key in results.KEYS if key in results.LOWER],
        "runs": [{"name": run.name, "scores": list(_corpus(run))} for run in runs],
        "notes": list(dict.fromkeys(notes)),
        "images": rows,
        "boxes": [list(packed) for packed in boxes],
    }


def _corpus(run: Run) -> Iterator[dict[str, Any]]:
    """Yields the corpus scores with their intervals and differences."""
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
    """Builds the entry of one caption; adds its boxes to `boxes` if they are new."""
    entry: dict[str, Any] = {
        "text": run.predictions[image],
        "scores": [_number(run.scores.per_image[image].get(key)) for key in keys],
    }
    attended = (run.attention or {}).get(image)
    if attended is not None:
        weights, peaks = pictures_lib.packed_weights(attended.weights)
        # All images of a grid have the same boxes, so each set of boxes is written once.
        packed = pictures_lib.packed_boxes(attended.boxes), pictures_lib.tiles(attended.boxes)
        index = boxes.setdefault(packed, len(boxes))
        entry["seen"] = {
            "words": list(attended.words),
            "weights": weights,
            "peaks": peaks,
            "boxes": index,
            "kind": attended.kind,
        }
    return entry


def _number(value: float | None) -> float | None:
    return None if value is None or not math.isfinite(value) else round(float(value), 3)


def _json(content: Any) -> str:
    """Returns JSON that is safe inside a page: without "<", nothing can end its element."""
    text = json.dumps(content, allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c")


def _template(title: str) -> list[str]:
    """Returns three parts of the page: before the data, up to the pictures, and after them."""
    folder = importlib.resources.files("tfcap.report")
    files = {name: (folder / name).read_text(encoding="utf-8") for name in _FILES.values()}
    html = files[_FILES["html"]]
    styles, scripts = (
        " ".join(f"'{_hash(text)}'" for name, text in files.items() if name.endswith(ending))
        for ending in (".css", ".js")
    )
    policy = (
        f"default-src 'none'; img-src data:; style-src {styles}; script-src {scripts}; "
        "base-uri 'none'; form-action 'none'"
    )
    # Braces are escaped too, so that a title cannot look like a placeholder.
    marks = {"policy": policy, "title": html_lib.escape(title).replace("{", "&#123;")}
    marks |= {mark: files[name] for mark, name in _FILES.items() if mark != "html"}
    for mark, text in marks.items():
        html = html.replace("{{" + mark + "}}", text, 1)
    before, rest = html.split("{{data}}")
    between, after = rest.split("{{pictures}}")
    return [before, between, after]


def _hash(content: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()
