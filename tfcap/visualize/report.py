"""Writes the HTML report: captions and pictures of runs, in one file for offline use.

The page of a folder of pictures is a report without references and without scores of a corpus.

Text from other sources (captions, references, names) enters the page only as JSON with an escaped
"<", and the script shows it as text, never as markup.

Letters: T' words of a caption, R regions.
"""

import base64
import concurrent.futures
import html
import importlib.resources
import io
import itertools
import json
import math
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from PIL import Image

from tfcap import images as image_files
from tfcap import progress
from tfcap.files import replacing
from tfcap.metrics import results
from tfcap.visualize.figures import full_strength, grid

if TYPE_CHECKING:
    from tfcap.metrics.bootstrap import Compared

_SIDE, _QUALITY = 320, 75  # longer side of the pictures in pixels, and their JPEG quality
_MOST_LARGE = 1000  # pictures of this size on a page of captions; more are smaller
_SCORE = ["score"]  # the keys of a page of captions
_AT_ONCE = 64  # pictures in memory


def write(
    path: str | os.PathLike,
    captions: Mapping[str, Mapping[int, str]],
    compared: "Compared",
    references: Mapping[int, Sequence[str]],
    pictures: Mapping[int, str | os.PathLike] | None = None,
    attention: Mapping[str, Mapping[int, Any]] | None = None,
    *,
    title: str = "Captions",
    notes: Sequence[str] = (),
) -> int:
    """Writes the page. The file appears only when it is complete.

    Args:
      path: the file, for example "report.html"; its directory must exist.
      captions: name of each run -> image id -> caption; the first is the evaluated run.
      compared: scores, intervals and differences of the same runs.
      references: image id -> reference captions, for the images of the runs.
      pictures: image id -> path of the picture; a picture that cannot be read is left out.
      attention: `visualize.Attended` of the captions, by the name of the run and image id; runs and
        images may be missing.
      title: title of the page.
      notes: lines shown under the scores.

    Returns:
      The number of images with a picture.
    """
    images, pictures = list(next(iter(captions.values()))), pictures or {}
    content = _data(captions, compared, references, pictures, attention or {}, title, notes)
    return _write(path, content, _thumbnails([pictures.get(i) for i in images]))


def write_captions(
    path: str | os.PathLike,
    rows: Sequence[Sequence[str]],
    pictures: Sequence[str | os.PathLike],
    title: str,
) -> int:
    """Writes a page of captions that have no references.

    Args:
      path: as in `write`.
      rows: name of the picture, caption, and score of each.
      pictures: the path of each; a picture that cannot be read is left out.
      title: title of the page.

    Returns:
      The number of captions with a picture.
    """
    images = [
        {
            "id": "",
            "name": name,
            "refs": [],
            "runs": [{"text": text, "scores": [_number(float(score))]}],
        }
        for name, text, score in rows
    ]
    runs: list[dict[str, Any]] = [{"name": title, "scores": []}]
    content = {"title": title, "keys": _SCORE, "lower": [], "runs": runs, "notes": [], "boxes": []}
    side = max(64, round(_SIDE * math.sqrt(min(1, _MOST_LARGE / max(1, len(rows))))))
    small = progress.progress(_thumbnails(pictures, side), len(rows), "page", "picture")
    return _write(path, content | {"images": images}, small)


def read_captions(path: str | os.PathLike) -> Iterator[list[str]]:
    """Yields the rows of a page of `write_captions`; raises ValueError for another file."""
    with open(path, encoding="utf-8", errors="replace") as file:
        data = re.search('id="data">(.*?)</script>', file.read(), re.S)
    try:
        content = json.loads(data[1]) if data else {}
        if content["keys"] != _SCORE:
            raise ValueError("its scores are others")
        for image in content["images"]:
            [run] = image["runs"]
            yield [image["name"], run["text"], str(run["scores"][0])]
    except (ValueError, LookupError, TypeError):
        raise ValueError(
            f"{os.fspath(path)} is no page of captions. Name another one with --out."
        ) from None


def _write(
    path: str | os.PathLike, content: Mapping[str, Any], thumbnails: Iterable[str | None]
) -> int:
    """Writes a page; returns the number of its pictures."""
    before, between, after = page("report", content["title"])
    with replacing(path) as temporary, open(temporary, "w", encoding="utf-8") as file:
        file.write(before + _json(content))
        file.write(between + "[")
        shown = 0
        for number, picture in enumerate(thumbnails):
            file.write((",\n" if number else "\n") + json.dumps(picture))
            shown += picture is not None
        file.write("\n]" + after)
    return shown


def page(name: str, title: str, package: str = "tfcap.visualize") -> list[str]:
    """Returns the parts of NAME.html before, between and after {{data}} and {{pictures}}.

    The file is data of `package`. Styles and scripts that the page links to are inlined; those that
    the package does not have are shared by all pages, and stand beside this module.
    """
    folders = [importlib.resources.files(place) for place in (package, "tfcap.visualize")]

    def read(link: re.Match) -> str:
        kind = "style" if link[1].endswith(".css") else "script"
        file = next(f for folder in folders if (f := folder.joinpath(link[1])).is_file())
        return f"<{kind}>{file.read_text(encoding='utf-8')}</{kind}>"

    text = folders[0].joinpath(f"{name}.html").read_text(encoding="utf-8")
    linked = r'<(?:link rel="stylesheet" href|script src)="([a-z.]+)">(?:</script>)?'
    parts = re.split("{{data}}|{{pictures}}", re.sub(linked, read, text))
    return [part.replace("{{title}}", html.escape(title)) for part in parts]


def _data(captions, compared, references, pictures, attention, title, notes) -> dict[str, Any]:
    """Builds the data for the script of the page; `report.js` describes its keys."""
    names, scores = list(captions), compared.scores
    images = list(captions[names[0]])
    keys = [key for key in results.KEYS if key in scores[names[0]].per_image[images[0]]]
    boxes: dict[tuple[str, bool], int] = {}

    def entry(name, image):
        each = scores[name].per_image[image]
        found = {
            "text": captions[name][image],
            "scores": [_number(each.get(key)) for key in keys],
        }
        seen = attention.get(name, {}).get(image)
        if seen is not None:
            # All images of a grid have the same boxes, so each set of boxes is written once.
            packed = packed_boxes(seen.boxes), grid(seen.boxes) is not None
            found["seen"] = {
                **packed_weights(seen.weights),
                "words": list(seen.words),
                "boxes": boxes.setdefault(packed, len(boxes)),
                "kind": seen.kind,
            }
        return found

    rows = [
        {
            "id": str(image),  # JavaScript rounds numbers above 2^53
            "name": os.path.basename(pictures[image]) if image in pictures else str(image),
            "refs": list(references[image]),
            "runs": [entry(name, image) for name in names],
        }
        for image in images
    ]
    notes = list(notes)
    for one in scores.values():
        notes += [f"{key} not computed: {why}" for key, why in one.unavailable.items()]
        notes += one.notes
    return {
        "title": title,
        "keys": keys,
        "lower": [key for key in results.KEYS if key in results.LOWER],
        "runs": [{"name": name, "scores": list(_corpus(compared, name))} for name in names],
        "notes": list(dict.fromkeys(notes)),
        "images": rows,
        "boxes": list(boxes),
    }


def _corpus(compared: "Compared", name: str) -> Iterator[dict[str, Any]]:
    """Yields the corpus scores with their intervals and differences."""
    corpus = compared.scores[name].corpus
    for key in results.KEYS:
        if key not in corpus:
            continue
        row: dict[str, Any] = {"key": key, "value": _number(corpus[key])}
        if interval := compared.intervals[name].get(key):
            row |= {"low": _number(interval.low), "high": _number(interval.high)}
        if change := compared.differences.get(name, {}).get(key):
            ends = [_number(end) for end in (change.value, change.low, change.high)]
            row["change"] = [*ends, change.verdict]
        yield row


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


def _thumbnails(
    paths: Sequence[str | os.PathLike | None], side: int = _SIDE
) -> Iterator[str | None]:
    """Yields a thumbnail for each path, in order; None without a readable picture."""

    def make(path):
        try:
            with Image.open(path) as image:
                image.draft("RGB", (2 * side, 2 * side))  # lets JPEG decode a smaller picture
                return thumbnail(image_files.upright(image), side)
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
