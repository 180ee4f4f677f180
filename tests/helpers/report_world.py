"""A small report for the tests: drawn pictures, two runs, and attention that is known."""

import dataclasses
import json

import numpy as np
from PIL import Image, ImageDraw

from tfcap.metrics import bootstrap, coco
from tfcap.visualize import report

IMAGES = 60
ATTACK = (
    "<img src=x onerror=document.title='owned'></script><script>document.title='owned'</script>"
)
COLOURS = ("red", "green", "blue", "orange")
SHAPES = ("circle", "square")


@dataclasses.dataclass
class Attended:
    """As `tfcap.visualize` has it."""

    words: list[str]
    weights: np.ndarray
    boxes: np.ndarray
    kind: str


def truth(image: int) -> tuple[str, str]:
    return COLOURS[image % 4], SHAPES[image // 4 % 2]


def draw(folder, image: int) -> str:
    """Draws the picture of an image and returns its path; image 7 is a broken file."""
    path = folder / f"picture{image}.png"
    colour, shape = truth(image)
    picture = Image.new("RGB", (160, 120), (235, 235, 240))
    pen = ImageDraw.Draw(picture)
    getattr(pen, {"circle": "ellipse", "square": "rectangle"}[shape])((20, 20, 70, 70), fill=colour)
    picture.save(path)
    if image == 7:
        path.write_bytes(b"\x89PNG\r\n\x1a\n and no more")
    return str(path)


def grid(side: int) -> np.ndarray:
    """Boxes [side * side, 4] of the cells, row by row."""
    rows, columns = np.divmod(np.arange(side * side), side)
    return np.stack([columns, rows, columns + 1, rows + 1], axis=1) / side


def attended(caption: str) -> Attended:
    """Word t looks at cell 5 t of 16 with 0.7, and at the others alike."""
    words = caption.split()
    weights = np.full((len(words), 16), 0.02)
    for position in range(len(words)):
        weights[position, 5 * position % 16] = 0.7
    return Attended(words, weights, grid(4), "attention")


def captions() -> tuple[dict[int, list[str]], dict[int, str], dict[int, str]]:
    """References, and the captions of two runs; the second mistakes every third colour."""
    references, first, second = {}, {}, {}
    for image in range(1, IMAGES + 1):
        colour, shape = truth(image)
        references[image] = [f"A {colour} {shape}.", f"there is a {colour} {shape} on the left"]
        first[image] = f"a {colour} {shape}" + (" on the left" if image % 5 == 0 else "")
        second[image] = f"a {'pink' if image % 3 == 0 else colour} {shape}"
    references[9][1] = ATTACK
    first[9] = f"a {ATTACK}"
    second[4] = ""
    return references, first, second


def write(folder):
    """Writes report.html into `folder`; returns its path, what was compared, and the captions."""
    references, first, second = captions()
    with coco.CocoScorer(("BLEU", "CIDEr"), java=None) as scorer:
        result = bootstrap.compare(
            {"first": first, "second & <b>": second}, references, scorer, samples=100
        )
    calls = {image: attended(text) for image, text in first.items() if image != 2}
    runs = {"first": first, "second & <b>": second}
    path = folder / "report.html"
    files = {image: draw(folder, image) for image in first}
    content = runs, result, references, files, {"first": calls}
    shown = report.write(path, *content, title="Tests <i>&", notes=["one note"])
    return path, result, (references, first, second), shown


def element(path, name: str):
    """What a JSON element of the page holds."""
    text = path.read_text(encoding="utf-8")
    mark = f'<script type="application/json" id="{name}">'
    return json.loads(text.split(mark)[1].split("</script>")[0])
