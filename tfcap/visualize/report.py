"""Writes the HTML report: captions and pictures of runs, in one file for offline use.

`write` makes a report that compares runs. `write_captions` makes a page of the same form with the
captions of a folder of pictures, without references.

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
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from PIL import Image

from tfcap import images as image_files
from tfcap import progress, segmentation
from tfcap.files import replacing
from tfcap.metrics import results
from tfcap.metrics.bootstrap import Compared
from tfcap.visualize.attended import Attended
from tfcap.visualize.figures import full_strength, grid

_SIDE = 320  # longer side of the pictures, in pixels
_QUALITY = 75  # of their JPEG files
_MOST_LARGE = 1000  # pictures on a page of captions; if there are more, all are smaller
_KEYS = ["score", "confidence"]  # of a page of captions; the second one of calibrated models
_AT_ONCE = 64  # pictures in memory


def write(
    path: str | os.PathLike,
    captions: Mapping[str, Mapping[int, str]],
    compared: Compared,
    references: Mapping[int, Sequence[str]],
    pictures: Mapping[int, str | os.PathLike] | None = None,
    attention: Mapping[str, Mapping[int, Attended]] | None = None,
    *,
    title: str = "Captions",
    notes: Sequence[str] = (),
    figure: str = "",
    text_of: Callable[[str], str] = str,
    joined: bool = False,
) -> int:
    """Writes an HTML report that shows captions of runs, their scores and the pictures.

    The file needs no other file and no network. It appears only when it is complete.

    Args:
      path: the file, for example "report.html"; its directory must exist.
      captions: name of the run -> image id -> caption. The first run is the one that is evaluated;
        the others are shown for comparison.
      compared: the result of `tfcap.metrics.bootstrap.compare` for the same captions: scores with
        their confidence intervals, and differences from the first run.
      references: image id -> reference captions, for the images of the runs.
      pictures: image id -> path of the picture; a picture that cannot be read is left out.
      attention: name of the run -> image id -> caption with the weights of the regions, which are
        drawn over the picture. A run or an image without an entry has no weights drawn.
      title: the title of the page.
      notes: lines to show under the scores, before those of the scores themselves.
      figure: an SVG element to show under the notes; "" shows none.
      text_of: a function of a note that returns the text to show. A command replaces the names of
        arguments by those of its flags in this way.
      joined: whether captions, which have spaces between their words, are shown without those that
        their language does not have.

    Returns:
      The number of images with a picture.
    """
    images = list(next(iter(captions.values())))
    pictures = pictures or {}
    content = _data(captions, compared, references, pictures, attention or {}, title, notes, joined)
    content["notes"] = [text_of(note) for note in content["notes"]]
    content["figure"] = figure
    return _write(path, content, _thumbnails([pictures.get(image) for image in images]))


def write_captions(
    path: str | os.PathLike,
    rows: Sequence[Sequence[str]],
    pictures: Sequence[str | os.PathLike],
    title: str,
) -> int:
    """Writes an HTML page that shows pictures with their captions, but no references.

    Args:
      path: the file; its directory must exist.
      rows: for each caption three texts: the name of its picture, the caption, and its score. A
        fourth one is the confidence in it; it may be missing or empty.
      pictures: the path of the picture of each caption; a picture that cannot be read is left out.
      title: the title of the page.

    Returns:
      The number of captions with a picture.
    """
    keys = _KEYS[: max((len(row) - 2 for row in rows), default=1)]
    images = []
    for name, text, *numbers in rows:
        scores = [_number(float(number)) if number else None for number in numbers]
        scores += [None] * (len(keys) - len(scores))
        runs_of = [{"text": text, "scores": scores}]
        images.append({"id": "", "name": name, "refs": [], "runs": runs_of})
    runs: list[dict[str, Any]] = [{"name": title, "scores": []}]
    content = {"title": title, "keys": keys, "lower": [], "runs": runs, "notes": [], "boxes": []}
    side = max(64, round(_SIDE * math.sqrt(min(1, _MOST_LARGE / max(1, len(rows))))))
    small = progress.progress(_thumbnails(pictures, side), len(rows), "page", "picture")
    return _write(path, content | {"images": images}, small)


def read_captions(path: str | os.PathLike) -> Iterator[list[str]]:
    """Reads the captions of a page that `write_captions` wrote.

    Args:
      path: the file.

    Yields:
      For each caption the texts of `write_captions`: the name of its picture, the caption, its
      score, and the confidence in it if it is known.

    Raises:
      ValueError: `write_captions` did not write the file.
    """
    with open(path, encoding="utf-8", errors="replace") as file:
        data = re.search('id="data">(.*?)</script>', file.read(), re.S)
    try:
        content = json.loads(data[1]) if data else {}
        if content["keys"] not in (_KEYS[:1], _KEYS):
            raise ValueError  # it is a report of runs
        for image in content["images"]:
            [run] = image["runs"]
            score, *more = run["scores"]
            yield [
                image["name"],
                run["text"],
                str(score),
                *(str(one) for one in more if one is not None),
            ]
    except (ValueError, LookupError, TypeError):
        raise ValueError(
            f"{os.fspath(path)} is no page of captions, so it cannot be continued. Give another "
            "file as `out`."
        ) from None


def _write(
    path: str | os.PathLike, content: Mapping[str, Any], thumbnails: Iterable[str | None]
) -> int:
    """Writes a page with its data and its pictures; returns the number of its pictures."""
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


def page(name: str, title: str, package: str = __package__) -> list[str]:
    """Reads an HTML page of a package, and replaces its links to styles and scripts by their text.

    Args:
      name: the name of the page, whose file is NAME.html.
      title: the title of the page.
      package: the package that has the page, and styles and scripts of its own. Other styles and
        scripts are taken from `tfcap.visualize`.

    Returns:
      The page as a list of texts: the parts before, between and after the marks {{data}} and
      {{pictures}}.
    """
    text = _resource(package, f"{name}.html")
    assert text is not None, f"{package} has no page {name}"

    def inlined(link: re.Match) -> str:
        kind = "style" if link[1].endswith(".css") else "script"
        return f"<{kind}>{_resource(package, link[1]) or _resource(__package__, link[1])}</{kind}>"

    linked = r'<(?:link rel="stylesheet" href|script src)="([a-z.]+)">(?:</script>)?'
    parts = re.split("{{data}}|{{pictures}}", re.sub(linked, inlined, text))
    return [part.replace("{{title}}", html.escape(title)) for part in parts]


def _resource(package: str, name: str) -> str | None:
    """Returns the text of a file of a package; None if the package does not have it."""
    file = importlib.resources.files(package).joinpath(name)
    return file.read_text(encoding="utf-8") if file.is_file() else None


def _data(
    captions, compared, references, pictures, attention, title, notes, joined
) -> dict[str, Any]:
    """Builds the data for the script of the page; `report.js` describes its keys."""
    names = list(captions)
    scores = compared.scores
    images = list(captions[names[0]])
    keys = [key for key in results.KEYS if key in scores[names[0]].per_image[images[0]]]
    boxes: dict[tuple[str, bool], int] = {}

    def entry(name, image):
        values = scores[name].per_image[image]
        result = {
            "text": captions[name][image],
            "scores": [_number(values.get(key)) for key in keys],
        }
        if joined:
            result["words"] = result["text"].split()
            result["text"] = segmentation.joined(result["words"])
        attended = attention.get(name, {}).get(image)
        if attended is not None:
            # All images with the same grid have the same boxes: each set of boxes is written once.
            packed = packed_boxes(attended.boxes), grid(attended.boxes) is not None
            result["attended"] = {
                **packed_weights(attended.weights),
                "words": list(attended.words),
                "boxes": boxes.setdefault(packed, len(boxes)),
                "kind": attended.kind,
            }
        return result

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
    for run_scores in scores.values():
        notes += [f"{key} not computed: {why}" for key, why in run_scores.unavailable.items()]
        notes += run_scores.notes
    return {
        "title": title,
        "keys": keys,
        "lower": [key for key in results.KEYS if key in results.LOWER],
        "runs": [{"name": name, "scores": list(_corpus(compared, name))} for name in names],
        "notes": list(dict.fromkeys(notes)),
        "images": rows,
        "boxes": list(boxes),
    }


def _corpus(compared: Compared, name: str) -> Iterator[dict[str, Any]]:
    """Yields the scores of a whole run, with their intervals and differences."""
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
    """Rounds a score; returns None for what JSON has no number for."""
    return None if value is None or not math.isfinite(value) else round(float(value), 3)


def _json(content: object) -> str:
    """Returns JSON that is safe inside a page: without "<", nothing can end its element."""
    text = json.dumps(content, allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c")


def thumbnail(picture: Image.Image, side: int = _SIDE) -> str:
    """Returns a small copy of a picture, as the base64 text of a JPEG file.

    Transparent pixels become white.

    Args:
      picture: the picture.
      side: largest length of the longer side, in pixels; a smaller picture keeps its size.
    """
    if "A" in picture.getbands() or "transparency" in picture.info:
        picture = picture.convert("RGBA")
        picture = Image.alpha_composite(Image.new("RGBA", picture.size, "white"), picture)
    small = picture.convert("RGB")
    quality = 92 if max(small.size) <= side else _QUALITY  # a small picture is shown enlarged
    small.thumbnail((side, side), Image.Resampling.LANCZOS, reducing_gap=2.0)
    content = io.BytesIO()
    small.save(content, "JPEG", quality=quality, optimize=True)
    return base64.b64encode(content.getvalue()).decode()


def _thumbnails(
    paths: Sequence[str | os.PathLike | None], side: int = _SIDE
) -> Iterator[str | None]:
    """Yields a thumbnail for each path, in order; None without a readable picture.

    Of a folder, which is a clip or has the pictures of one image, the first picture is shown.
    """

    def make(path):
        try:
            if os.path.isdir(path):
                names = filter(image_files.is_picture_name, os.listdir(path))
                path = os.path.join(path, min(names, key=image_files.by_numbers))
            with Image.open(path) as image:
                image.draft("RGB", (2 * side, 2 * side))  # lets JPEG decode a smaller picture
                return thumbnail(image_files.upright(image), side)
        except Exception:  # Pillow raises many kinds of errors for damaged files
            return None

    with concurrent.futures.ThreadPoolExecutor(os.cpu_count() or 1) as pool:
        remaining = iter(paths)
        while block := list(itertools.islice(remaining, _AT_ONCE)):
            yield from pool.map(make, block)


def packed_weights(weights: np.ndarray) -> dict[str, Any]:
    """Encodes the weights of the regions for each word of a caption, for the script of a page.

    Args:
      weights: T' words and R regions, [T', R].

    Returns:
      A dictionary for JSON. "weights": base64 text of uint8 [T', R], where 255 stands for the
      weight `figures.full_strength` of the caption. "peaks": for each word its largest weight.
    """
    weights = np.nan_to_num(np.asarray(weights, np.float64)).clip(0.0)
    scaled = np.rint(255 * weights / full_strength(weights)).astype(np.uint8)
    peaks = weights.max(axis=1, initial=0.0)
    return {
        "weights": base64.b64encode(scaled.tobytes()).decode(),
        "peaks": [round(float(peak), 4) for peak in peaks],
    }


def packed_boxes(boxes: np.ndarray) -> str:
    """Encodes the boxes of regions for the script of a page.

    Args:
      boxes: corners of R regions [R, 4], x1, y1, x2, y2 in 0..1.

    Returns:
      Base64 text of little-endian uint16 [R, 4], where 65535 stands for 1.
    """
    boxes = np.nan_to_num(np.asarray(boxes, np.float64)).clip(0.0, 1.0)
    return base64.b64encode(np.rint(65535 * boxes).astype("<u2").tobytes()).decode()
