"""Draws attention over pictures, as PNG, PDF or SVG files.

Panels are composed as pixels, and matplotlib only writes the labels; this is many times faster than
an axis for each panel. matplotlib is imported when the first figure is drawn. The figures do not
use pyplot, so they need no display and do not affect other figures.

A unit is 1/100 inch, on a screen usually one pixel.

Letters: R regions, T' words of a caption, H x W pixels of a picture, h x w of a panel.
"""

import io
import math
import os
import re
import warnings
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from PIL import Image

from tfcap import errors, files, progress, segmentation
from tfcap.files import replacing
from tfcap.images import upright
from tfcap.visualize import fonts
from tfcap.visualize.attended import Attended

ENDINGS = (".png", ".pdf", ".svg")  # of the files of figures
TIMES_UNIFORM = 4  # full strength is at least so many times the weight of a uniform distribution
OUTLINE = (230, 25, 25)  # colour of the outline of the strongest region
SIZE = 180  # the longer side of a panel, in units
_PRINTED = 2  # pixels of a unit in the figure of one caption, which may be printed
# Heights and widths, in units.
_GAP = 10  # between two panels
_LABEL = 34  # below a panel of `figure`
_BELOW = 30  # below a panel of `compared`
_MARGIN = 12  # of the page
_HEAD = 30  # above the panels of a model
_COLUMNS = 8  # panels in a row of `compared`, the picture included
_LINE = 18  # from one line of a title to the next
_LETTER = 9  # width of a letter of a title
_BESIDE = 60  # beside a title
_LONGEST = 1500  # width of a page that a title makes wider than its panels
_TITLES = {
    "attention": "attention",
    "contribution": "contribution of the regions (gradient x input)",
}


def full_strength(weights: np.ndarray) -> float:
    """Returns the weight that is drawn with the strongest colour, one for all words of a caption.

    It is max(largest weight of any word, min(1, 4 / R)) for R regions. The second part keeps small
    differences between nearly uniform weights from being drawn strongly. All words share the
    result, because with a scale for each word a largest weight of 0.03 would look like one of 0.9.

    Args:
      weights: weights of the regions for each word, [..., R]; NaN counts as 0.
    """
    largest = float(np.nan_to_num(np.asarray(weights, np.float64)).max(initial=0.0))
    return max(largest, min(1.0, TIMES_UNIFORM / max(1, np.shape(weights)[-1])))


def _spread_evenly(weights: np.ndarray) -> bool:
    """True if the weights [R] of a word are nearly uniform, so that no region stands out.

    The largest weight is then below u (2 - u), where u = 1 / R is the uniform weight: nearly 2 u
    for many regions, 0.75 for two. Such a word would darken the whole picture, so the picture is
    shown without weights. `attention.js` has the same rule.
    """
    uniform = 1 / max(1, np.size(weights))
    largest = float(np.nan_to_num(np.asarray(weights, np.float64)).max(initial=0.0))
    return 0 < largest < uniform * (2 - uniform)


def grid(boxes: np.ndarray) -> tuple[int, int] | None:
    """Finds out whether boxes are the cells of a grid over the whole picture, row by row.

    Neighbouring cells may overlap. For example, they do if a network has 7 x 7 cells, and averages
    of them make a grid of 4 x 4.

    Args:
      boxes: corners of R boxes [R, 4], x1, y1, x2, y2 in 0..1.

    Returns:
      The number of rows and the number of columns; None if the boxes are no grid.
    """
    boxes = np.round(np.asarray(boxes, np.float64), 4)
    columns = np.unique(boxes[:, [0, 2]], axis=0)
    rows = np.unique(boxes[:, [1, 3]], axis=0)
    if len(rows) * len(columns) != len(boxes):
        return None
    cells = [[x1, y1, x2, y2] for y1, y2 in rows for x1, x2 in columns]
    for side in (rows, columns):
        whole = side[0, 0] == 0 and side[-1, 1] == 1 and (side[1:, 0] <= side[:-1, 1]).all()
        if not whole or np.ptp(side[:, 1] - side[:, 0]) > 1 / len(side):
            return None
    return (len(rows), len(columns)) if np.array_equal(cells, boxes) else None


def panel(
    picture: np.ndarray,
    weights: np.ndarray,
    boxes: np.ndarray,
    full: float,
    outline_cell: bool = False,
) -> np.ndarray:
    """Draws the weights of one word over a picture.

    Boxes that are a grid give a heat map. Otherwise each pixel is as bright as the largest weight
    of the boxes that contain it, and the box with the largest weight has an outline. If the largest
    weight is positive but below u (2 - u) with u = 1 / R, the weights are nearly uniform, and the
    result is `picture`.

    Args:
      picture: pixels of the picture, uint8 [height, width, 3].
      weights: the weight of each of R regions, [R].
      boxes: corners of the regions [R, 4], x1, y1, x2, y2 in 0..1.
      full: the weight that is drawn with the strongest colour, see `full_strength`.
      outline_cell: whether the cell with the largest weight has an outline, too, if the boxes are a
        grid.

    Returns:
      The pixels, in the form of `picture`.
    """
    if _spread_evenly(weights):
        return picture
    strength = np.nan_to_num(np.asarray(weights, np.float64)) / full
    cells = grid(boxes)
    corners = _corners(boxes, picture)
    drawn = _heated(picture, strength.reshape(cells)) if cells else _lit(picture, strength, corners)
    if strength.max() > 0 and (outline_cell or not cells):
        _outline(drawn, corners[strength.argmax()])
    return drawn


def figure(
    picture: np.ndarray,
    attended: Attended,
    size: int = SIZE,
    columns: int = 6,
    scale: int = 1,
    form: str = "png",
) -> bytes:
    """Draws a picture, and next to it the picture again for each word of a caption.

    The pictures for the words show the weights of the regions, all with one scale of colours, see
    `full_strength`. Below the first picture stands 1 / R, the weight of each of R regions if all
    are equal.

    Args:
      picture: pixels of the picture, uint8 [height, width, 3].
      attended: the caption and its weights.
      size: the longer side of each picture of the figure, in 1/100 inch.
      columns: number of pictures in a row.
      scale: number of pixels per 1/100 inch.
      form: kind of the file: `png`, `pdf` or `svg`.

    Returns:
      The content of the file.
    """
    small = _resized(picture, size, scale)
    full = full_strength(attended.weights)
    panels = [small, *(panel(small, row, attended.boxes, full) for row in attended.weights)]
    words = ["", *attended.words]
    notes = [_uniform(attended), *map(_share, attended.weights)]
    title = f"{_TITLES[attended.kind]}: {attended.caption}"
    height = small.shape[0] // scale
    width = small.shape[1] // scale
    columns = min(columns, len(panels))
    rows = math.ceil(len(panels) / columns)
    across = max(2 * _MARGIN + columns * (width + _GAP) - _GAP, _width_of([title]))
    lines = _lines(title, across)
    top = _MARGIN + 24 + _LINE * (len(lines) - 1)
    page = _page(top + rows * (height + _LABEL + _GAP), across, scale)
    labels = _title(_MARGIN + 4, lines)
    for number, (pixels, word, note) in enumerate(zip(panels, words, notes, strict=True)):
        row, column = divmod(number, columns)
        x = _MARGIN + column * (width + _GAP)
        y = top + row * (height + _LABEL + _GAP)
        labels += _paste(page, pixels, x, y, word, note, scale)
    return _labelled(page, labels, scale, form)


def compared(
    picture: np.ndarray, models: Sequence[tuple[str, Attended]], size: int = SIZE
) -> bytes:
    """Draws a figure that shows what several models looked at for each word of their captions.

    Each model has a block: its name and caption, the picture, and the picture again for each word
    with the weights of the regions. The region with the largest weight is outlined, as in figure 5
    of the X-LAN paper (Pan et al., CVPR 2020). A long caption goes on in the next row. Each model
    has its own scale of colours, because models may read different regions. Beside the name stands
    1 / R, the weight of each of its R regions if all are equal.

    Args:
      picture: pixels of the picture, uint8 [height, width, 3].
      models: the name of each model, and its caption with the weights.
      size: the longer side of each picture of the figure, in pixels.

    Returns:
      The content of a PNG file.
    """
    small = _resized(picture, size)
    height, width = small.shape[:2]
    titles = [
        f"{name}: {attended.caption}   ({attended.kind}, {_uniform(attended)})"
        for name, attended in models
    ]
    across = max(2 * _MARGIN + _COLUMNS * (width + _GAP) - _GAP, _width_of(titles))
    heads = [_lines(title, across) for title in titles]
    rows = [math.ceil(max(1, len(attended.words)) / (_COLUMNS - 1)) for _, attended in models]
    step = height + _BELOW + _GAP  # from one row to the next
    tall = sum(_HEAD + _LINE * (len(lines) - 1) for lines in heads) + sum(rows) * step
    page = _page(_MARGIN + tall, across)
    labels = []
    top = _MARGIN
    for (_, attended), lines, count in zip(models, heads, rows, strict=True):
        labels += _title(top + _HEAD // 2 - 4, lines)
        top += _HEAD + _LINE * (len(lines) - 1)
        page[top : top + height, _MARGIN : _MARGIN + width] = small
        full = full_strength(attended.weights)
        words = zip(attended.words, attended.weights, strict=True)
        for number, (word, weights) in enumerate(words):
            row, column = divmod(number, _COLUMNS - 1)
            x = _MARGIN + (column + 1) * (width + _GAP)
            y = top + row * step
            drawn = panel(small, weights, attended.boxes, full, outline_cell=True)
            labels += _paste(page, drawn, x, y, word, _share(weights))
        top += count * step
    return _labelled(page, labels)


def figure_paths(directory: str | os.PathLike, pictures: Mapping[int, str]) -> dict[int, str]:
    """Chooses the paths of the figures of several pictures.

    A figure gets the name of its picture, with the ending .png. If two pictures from different
    directories have the same name, the names of all figures begin with the image id.

    Args:
      directory: the directory for the figures.
      pictures: image id -> path of the picture.

    Returns:
      Image id -> path of the figure.

    Raises:
      UsageError: a figure would overwrite one of the pictures.
    """
    stems = {image: os.path.splitext(os.path.basename(path))[0] for image, path in pictures.items()}
    same = len(set(stems.values())) < len(stems)
    paths = {
        image: os.path.join(directory, f"{image}-{stem}.png" if same else f"{stem}.png")
        for image, stem in stems.items()
    }
    sources = {os.path.realpath(path) for path in pictures.values()}
    for path in paths.values():
        if os.path.realpath(path) in sources:
            raise errors.UsageError(
                f"A figure would overwrite the picture {path}. Give another directory for figures."
            )
    return paths


def write_figures(
    directory: str | os.PathLike,
    pictures: Mapping[int, str],
    models: Mapping[str, Mapping[int, Attended]],
) -> int:
    """Writes a figure for each image, as a PNG file that compares the models, see `compared`.

    Only images that have a picture and an entry of the first model get a figure.

    Args:
      directory: the directory for the files; `figure_paths` gives their names.
      pictures: image id -> path of the picture; a picture that cannot be read has no figure.
      models: name of the model -> image id -> caption with the weights.

    Returns:
      The number of figures.

    Raises:
      UsageError: a figure would overwrite one of the pictures.
    """
    paths = figure_paths(directory, pictures)
    files.make_directory(directory)
    images = [image for image in next(iter(models.values())) if image in pictures]
    written = 0
    for image in progress.progress(images, len(images), "figures", "image"):
        picture = _opened(pictures[image])
        if picture is None:
            continue
        shown = [(name, attended[image]) for name, attended in models.items() if image in attended]
        _write(paths[image], compared(np.asarray(picture), shown))
        written += 1
    return written


def write_figure(path: str | os.PathLike, picture: np.ndarray, attended: Attended) -> None:
    """Writes the figure of a caption, see `figure`, as a PNG, PDF or SVG file.

    Args:
      path: the file; its ending, .png, .pdf or .svg, says its kind.
      picture: pixels of the picture, uint8 [height, width, 3].
      attended: the caption and its weights.

    Raises:
      ValueError: the path has another ending.
    """
    path = os.path.expanduser(path)
    if not path.lower().endswith(ENDINGS):
        raise ValueError(
            f"A figure needs a file name that ends in one of {', '.join(ENDINGS)}, not {path}."
        )
    _write(path, figure(picture, attended, scale=_PRINTED, form=path[-3:].lower()))


def figure_path(path: str, picture: str, several: bool) -> str:
    """Returns the path of the figure of one of the captioned pictures.

    Args:
      path: the path that the user gave, such as "out.png".
      picture: path of the picture, such as "dog.jpg".
      several: whether there are several pictures. If so, the name of the picture is added:
        "out-dog.png". If not, the result is `path`.
    """
    if not several:
        return path
    stem, ending = os.path.splitext(path)
    return f"{stem}-{os.path.splitext(os.path.basename(picture))[0]}{ending}"


def _opened(path: str) -> Image.Image | None:
    """Returns a picture upright in RGB; None if it cannot be read."""
    try:
        with Image.open(path) as image:
            return upright(image).convert("RGB")
    except Exception:  # Pillow raises many kinds of errors for damaged files
        return None


def _page(height: int, width: int, scale: int = 1) -> np.ndarray:
    """Returns a white page uint8 [scale height, scale width, 3]."""
    return np.full((scale * height, scale * width, 3), 255, np.uint8)


def _resized(picture: np.ndarray, size: int, scale: int = 1) -> np.ndarray:
    """Returns a picture uint8 [H, W, 3] whose longer side has `scale` * `size` pixels."""
    longer = max(picture.shape[:2])
    height, width = (scale * max(1, round(side * size / longer)) for side in picture.shape[:2])
    return np.asarray(Image.fromarray(picture).resize((width, height), Image.Resampling.BICUBIC))


def _heated(picture, strength):
    """Draws a heat map of `strength` [rows, columns] in 0..1 over `picture` [h, w, 3]."""
    import matplotlib

    height, width = picture.shape[:2]
    cells = Image.fromarray(strength.astype(np.float32))
    smooth = np.asarray(cells.resize((width, height), Image.Resampling.BICUBIC))
    smooth = np.clip(smooth, 0, 1)
    heat = matplotlib.colormaps["jet"](0.3 + 0.7 * smooth)[..., :3] * 255  # from cyan to red
    part = 0.7 * smooth[..., None] ** 0.8
    pale = 0.85 * picture + 0.15 * 255
    return np.uint8((1 - part) * pale + part * heat)


def _lit(picture, strength, corners):
    """Dims `picture` [h, w, 3] outside of strong boxes; `corners` are those of `_corners`."""
    light = np.zeros(picture.shape[:2])
    for ((x1, y1), (x2, y2)), value in zip(corners, strength, strict=True):
        light[y1:y2, x1:x2] = np.maximum(light[y1:y2, x1:x2], value)
    part = 0.25 + 0.75 * light[..., None]
    return (part * picture + (1 - part) * 255).astype(np.uint8)


def _corners(boxes, picture):
    """Returns the boxes [R, 4] as pixels of `picture` [h, w, 3]: int [R, 2 corners, x and y]."""
    height, width = picture.shape[:2]
    pixels = np.asarray(boxes) * [width, height, width, height]
    return np.stack([np.floor(pixels[:, :2]), np.ceil(pixels[:, 2:])], 1).astype(int)


def _outline(picture, corners):
    """Draws the outline of a box int [2 corners, x and y] into `picture` [h, w, 3]."""
    (x1, y1), (x2, y2) = corners
    edge = max(2, max(picture.shape[:2]) // 60)
    inside = picture[y1 + edge : y2 - edge, x1 + edge : x2 - edge].copy()
    picture[y1:y2, x1:x2] = OUTLINE
    picture[y1 + edge : y2 - edge, x1 + edge : x2 - edge] = inside


def _uniform(attended: Attended) -> str:
    """Returns the weight of a region in a uniform distribution, as text."""
    return f"uniform {1 / max(1, len(attended.boxes)):.2g}"


def _share(weights: np.ndarray) -> str:
    """Returns the largest weight [R] of a word as text."""
    if _spread_evenly(weights):
        return f"{weights.max():.2f}, spread evenly"
    return f"{weights.max():.2f}" if weights.max() > 0 else "nothing"


class _Label(NamedTuple):
    """A text on a page."""

    x: int  # of its left or right end, in units
    y: int  # of its middle, in units
    text: str
    size: int  # in points
    side: str  # the end that is at x: left or right
    colour: str


def _title(y: int, lines: Sequence[str]) -> list[_Label]:
    return [
        _Label(_MARGIN, y + _LINE * number, line, 12, "left", "#333333")
        for number, line in enumerate(lines)
    ]


def _width_of(titles: Sequence[str]) -> int:
    """Returns the width of a page for titles of one line each, at most `_LONGEST`."""
    return min(_LONGEST, _BESIDE + _LETTER * max(map(fonts.width, titles)))


def _lines(title: str, across: int) -> list[str]:
    """Breaks a title into lines that a page of the width `across` has room for.

    A line ends at a space, or behind a letter of a script without spaces.
    """
    room = (across - _BESIDE) // _LETTER
    lines = [""]
    for part in re.split(f"(?= )|(?<=[{segmentation.NO_SPACES}])", title):
        if lines[-1] and fonts.width(lines[-1] + part) > room:
            lines.append(part.lstrip())
        else:
            lines[-1] += part
    return lines


def _paste(page, pixels, x, y, word, note, scale=1) -> list[_Label]:
    """Puts a panel at x, y of a page, in units, and returns the labels below it."""
    height, width = pixels.shape[:2]
    page[scale * y : scale * y + height, scale * x : scale * x + width] = pixels
    below = y + height // scale + 12
    right = x + width // scale - 2
    return [
        _Label(x + 2, below, word, 12, "left", "black"),
        _Label(right, below, note, 9, "right", "#666666"),
    ]


def _labelled(
    pixels: np.ndarray, labels: Sequence[_Label], scale: int = 1, form: str = "png"
) -> bytes:
    """Writes labels on a page `pixels`, with `scale` pixels a unit; returns the file."""
    from matplotlib.figure import Figure

    height, width = (side / scale for side in pixels.shape[:2])
    # matplotlib before 3.11 cuts a size of 401.9999 pixels to 401.
    drawing = Figure(figsize=((width + 0.01) / 100, (height + 0.01) / 100), dpi=100 * scale)
    if form == "png":
        drawing.figimage(pixels, 0, 0, origin="upper")
    else:
        drawing.add_axes((0, 0, 1, 1), frameon=False).imshow(
            pixels, aspect="auto", interpolation="none"
        )
    families = fonts.families("".join(label.text for label in labels))
    for label in labels:
        drawing.text(
            label.x / width,
            1 - label.y / height,
            label.text,
            fontsize=label.size,
            color=label.colour,
            ha=label.side,
            va="center",
            parse_math=False,
            fontfamily=families,
        )
    with warnings.catch_warnings():
        # `fonts.families` has said so.
        for message in ("Glyph .* missing", "Matplotlib currently does not support"):
            warnings.filterwarnings("ignore", message)
        return _png(drawing) if form == "png" else _vector(drawing, form)


def _png(drawing) -> bytes:
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    canvas = FigureCanvasAgg(drawing)
    buffer = io.BytesIO()
    canvas.draw()
    Image.fromarray(np.asarray(canvas.buffer_rgba())[..., :3].copy()).save(buffer, "PNG")
    return buffer.getvalue()


def _vector(drawing, form: str) -> bytes:
    """Returns a PDF or SVG file. It has no date, so that equal figures are equal files."""
    import matplotlib

    buffer = io.BytesIO()
    undated = {"pdf": {"CreationDate": None}, "svg": {"Date": None}}
    with matplotlib.rc_context({"svg.hashsalt": "tfcap", "savefig.bbox": None}):
        drawing.savefig(buffer, format=form, metadata=undated[form])
    return buffer.getvalue()


def _write(path: str | os.PathLike, content: bytes) -> None:
    with replacing(path) as temporary, open(temporary, "wb") as file:
        file.write(content)
