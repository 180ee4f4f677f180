"""Writes the HTML page of a report: captions and pictures of runs, in one file for offline use.

Text from other sources (captions, references, names) enters the page only as JSON with an escaped
"<", and the script shows it as text, never as markup.

Letters: T' words of a caption, R regions.
"""

import base64
import concurrent.futures
import dataclasses
import html
import importlib.resources
import io
import itertools
import json
import math
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from PIL import Image

from tfcap import images as image_files
from tfcap.files import replacing
from tfcap.metrics import results
from tfcap.metrics.bootstrap import Compared, Difference, Interval
from tfcap.visualize.figures import full_strength, grid

_SIDE, _QUALITY = 320, 75  # longer side of the pictures in pixels, and their JPEG quality
_AT_ONCE = 64  # pictures in memory


@dataclasses.dataclass(frozen=True)
class Run:
    """A set of captions with its scores.

    Attributes:
      name: name shown on the page.
      predictions: image id -> caption.
      scores: scores of these captions.
      intervals: key -> interval of the score.
      differences: key -> this run minus the first run.
      attention: image id -> `visualize.Attended` of the caption; images may be missing.
    """

    name: str
    predictions: Mapping[int, str]
    scores: results.Scores
    intervals: Mapping[str, Interval] | None = None
    differences: Mapping[str, Difference] | None = None
    attention: Mapping[int, Any] | None = None


def compared_runs(
    captions: Mapping[str, Mapping[int, str]],
    compared: Compared,
    attention: Mapping[str, Mapping[int, Any]] | None = None,
) -> list[Run]:
    """Returns the runs of a page from their captions and the comparison of their scores.

    Args:
      captions: name of each run -> image id -> caption; the first is the evaluated run.
      compared: scores, intervals and differences of the same runs.
      attention: attention of the captions, by the name of the run and image id; runs may be
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
    pictures: Mapping[int, str | os.PathLike] | None = None,
    *,
    title: str = "Captions",
    notes: Sequence[str] = (),
) -> int:
    """Writes the page. The file appears only when it is complete.

    Args:
      path: the file, for example "report.html"; its directory must exist.
      runs: one or more runs with captions of the same images; the page compares the others with
        the first one.
      references: image id -> reference captions, for the images of the runs.
      pictures: image id -> path of the picture; a picture that cannot be read is left out.
      title: title of the page.
      notes: lines shown under the scores.

    Returns:
      The number of images with a picture.
    """
    images, pictures = list(runs[0].predictions), pictures or {}
    before, between, after = page("report", title)
    with replacing(path) as temporary, open(temporary, "w", encoding="utf-8") as file:
        file.write(before + _json(_data(runs, references, images, pictures, title, notes)))
        file.write(between + "[")
        shown = 0
        for number, picture in enumerate(_thumbnails([pictures.get(i) for i in images])):
            file.write((",\n" if number else "\n") + json.dumps(picture))
            shown += picture is not None
        file.write("\n]" + after)
    return shown


def page(name: str, title: str) -> list[str]:
    """Returns the parts of NAME.html around its marks {{data}} and {{pictures}}.

    The styles and scripts that the page links to are put into it.
    """
    folder = importlib.resources.files("tfcap.visualize")

    def read(link: re.Match) -> str:
        kind = "style" if link[1].endswith(".css") else "script"
        return f"<{kind}>{folder.joinpath(link[1]).read_text(encoding='utf-8')}</{kind}>"

    text = folder.joinpath(f"{name}.html").read_text(encoding="utf-8")
    linked = r'<(?:link rel="stylesheet" href|script src)="([a-z.]+)">(?:</script>)?'
    parts = re.split("{{data}}|{{pictures}}", re.sub(linked, read, text))
    return [part.replace("{{title}}", html.escape(title)) for part in parts]


def _data(runs, references, images, pictures, title, notes) -> dict[str, Any]:
    """Builds the data for the script of the page; `report.js` describes its keys."""
    keys = [key for key in results.KEYS if key in next(iter(runs[0].scores.per_image.values()))]
    boxes: dict[tuple[str, bool], int] = {}
    rows = [
        {
            "id": str(image),  # JavaScript rounds numbers above 2^53
            "name": os.path.basename(pictures[image]) if image in pictures else str(image),
            "refs": list(references[image]),
            "runs": [_caption(run, image, keys, boxes) for run in runs],
        }
        for image in images
    ]
    notes = list(notes)
    for run in runs:
        notes += [f"{key} not computed: {why}" for key, why in run.scores.unavailable.items()]
        notes += run.scores.notes
    return {
        "title": title,
        "keys": keys,
        "lower": [key for key in results.KEYS if key in results.LOWER],
        "runs": [{"name": run.name, "scores": list(_corpus(run))} for run in runs],
        "notes": list(dict.fromkeys(notes)),
        "images": rows,
        "boxes": list(boxes),
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


def _caption(run: Run, image: int, keys: Sequence[str], boxes: dict) -> dict[str, Any]:
    """Builds the entry of one caption; adds its boxes to `boxes` if they are new."""
    entry: dict[str, Any] = {
        "text": run.predictions[image],
        "scores": [_number(run.scores.per_image[image].get(key)) for key in keys],
    }
    seen = (run.attention or {}).get(image)
    if seen is not None:
        # All images of a grid have the same boxes, so each set of boxes is written once.
        packed = packed_boxes(seen.boxes), grid(seen.boxes) is not None
        entry["seen"] = {
            **packed_weights(seen.weights),
            "words": list(seen.words),
            "boxes": boxes.setdefault(packed, len(boxes)),
            "kind": seen.kind,
        }
    return entry


def _number(value: float | None) -> float | None:
    return None if value is None or not math.isfinite(value) else round(float(value), 3)


def _json(content: Any) -> str:
    """Returns JSON that is safe inside a page: without "<", nothing can end its element."""
    text = json.dumps(content, allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c")


def thumbnail(picture: Image.Image, side: int = _SIDE) -> str:
    """Returns base64 of a JPEG on white whose longer side is at most `side` pixels."""
    if "A" in picture.getbands() or "transparency" in picture.info:
        picture = picture.convert("RGBA")
        picture = Image.alpha_composite(Image.new("RGBA", picture.size, "white"), picture)
    small, quality = picture.convert("RGB"), _QUALITY
    if max(small.size) <= side:
        quality = 92  # a small picture is shown enlarged
    small.thumbnail((side, side), Image.Resampling.LANCZOS, reducing_gap=2.0)
    content = io.BytesIO()
    small.save(content, "JPEG", quality=quality, optimize=True)
    return base64.b64encode(content.getvalue()).decode()


def _thumbnails(paths: Sequence[str | os.PathLike | None]) -> Iterator[str | None]:
    """Yields a thumbnail for each path, in order; None without a readable picture."""

    def make(path):
        try:
            with Image.open(path) as image:
                image.draft("RGB", (2 * _SIDE, 2 * _SIDE))  # lets JPEG decode a smaller picture
                return thumbnail(image_files.upright(image))
        except Exception:  # Pillow raises many kinds of errors for damaged files
            return None

    with concurrent.futures.ThreadPoolExecutor(os.cpu_count() or 1) as pool:
        rest = iter(paths)
        while block := list(itertools.islice(rest, _AT_ONCE)):
            yield from pool.map(make, block)


def packed_weights(weights: np.ndarray) -> dict[str, Any]:
    """Encodes weights [T', R] as `weights`, base64 of uint8 [T', R], and `peaks` of the words.

    255 stands for `figures.full_strength` of all words. A peak is the largest weight of a word.
    """
    weights = np.nan_to_num(np.asarray(weights, np.float64)).clip(0.0)
    scaled = np.rint(255 * weights / full_strength(weights)).astype(np.uint8)
    peaks = weights.max(axis=1, initial=0.0)
    return {
        "weights": base64.b64encode(scaled.tobytes()).decode(),
        "peaks": [round(float(peak), 4) for peak in peaks],
    }


def packed_boxes(boxes: np.ndarray) -> str:
    """Encodes boxes [R, 4] (x1, y1, x2, y2 in 0..1) as base64 of little-endian uint16."""
    boxes = np.nan_to_num(np.asarray(boxes, np.float64)).clip(0.0, 1.0)
    return base64.b64encode(np.rint(65535 * boxes).astype("<u2").tobytes()).decode()
