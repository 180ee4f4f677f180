"""Draws attention over pictures, as PNG, PDF or SVG files.

Panels are composed as pixels, and matplotlib only writes the labels; this is many times faster than
an axis for each panel. matplotlib is imported when the first figure is drawn. The figures do not
use pyplot, so they need no display and do not affect other figures.

Letters: R regions, T' words of a caption, H x W pixels of a picture, h x w of a panel.
"""

import io
import os
import warnings
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
from PIL import Image

from tfcap import errors, files, progress
from tfcap.files import replacing
from tfcap.images import upright
from tfcap.visualize import FIGURES, fonts

if TYPE_CHECKING:
    from tfcap.visualize.attention import Attended

TIMES_UNIFORM = 4  # full strength is at least so many times the weight of a uniform distribution
OUTLINE = (230, 25, 25)  # colour of the outline of the strongest region
SIZE = 180  # the longer side of a panel, in units of 1/100 inch
_PRINTED = 2  # pixels of a unit in the figure of one caption, which may be printed
_GAP, _LABEL, _BELOW, _MARGIN, _HEAD = 10, 34, 30, 12, 30
_COLUMNS = 8  # panels in a row of `compared`, the picture included
_TITLES = {
    "attention": "attention",
    "contribution": "contribution of the regions (gradient x input)",
}


def full_strength(weights: np.ndarray) -> float:
    """Returns the weight that is drawn at full strength, the same for all words of a caption.

    It is the largest weight of any word, but at least 4 / R (at most 1), so that small differences
    between nearly uniform weights are not drawn strongly. If each word had its own scale, a weight
    of 0.03 among weights of 0.02 would be as red as 0.9.

    Args:
      weights: [..., R], weights over R regions; NaN counts as 0.
    """
    largest = float(np.nan_to_num(np.asarray(weights, np.float64)).max(initial=0.0))
    return max(largest, min(1.0, TIMES_UNIFORM / max(1, np.shape(weights)[-1])))


def spread_evenly(weights: np.ndarray) -> bool:
    """Whether the weights [R] of a word are nearly uniform, so that no region stands out.

    The largest weight is then below twice the uniform weight 1 / R (below 0.75 for two regions).
    Such a word would darken the whole picture, so the picture is shown without weights.
    `attention.js` has the same rule.
    """
    uniform = 1 / max(1, np.size(weights))
    largest = float(np.nan_to_num(np.asarray(weights, np.float64)).max(initial=0.0))
    return 0 < largest < uniform * (2 - uniform)


def grid(boxes: np.ndarray) -> tuple[int, int] | None:
    """Returns the numbers of rows and columns if `boxes` [R, 4] are the cells of a grid, or None.

    The cells are in order, row by row, and together they cover the picture. Neighbours may overlap:
    this happens if a network's grid is averaged to a smaller size that does not divide it.
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
    """Draws the weights [R] of one word over `picture` uint8 [h, w, 3]; returns the same shape.

    A grid gives a heat map. With other boxes the brightness of a pixel follows the strongest of its
    boxes, and the strongest region is outlined; `outline_cell` outlines it in a grid, too. `boxes`
    [R, 4] are x1, y1, x2, y2 in 0..1. `full` is the weight that is drawn at full strength, the same
    for all words of a caption.
    """
    if spread_evenly(weights):
        return picture
    strength = np.nan_to_num(np.asarray(weights, np.float64)) / full
    cells, places = grid(boxes), _places(boxes, picture)
    drawn = _heated(picture, strength.reshape(cells)) if cells else _lit(picture, strength, places)
    if strength.max() > 0 and (outline_cell or not cells):
        _outline(drawn, places[strength.argmax()])
    return drawn


def figure(
    picture: np.ndarray,
    seen: "Attended",
    size: int = SIZE,
    columns: int = 6,
    scale: int = 1,
    form: str = "png",
) -> bytes:
    """Draws the picture and a panel for each word of a caption, as the content of a file.

    All panels have one scale, see `full_strength`. The weight of a uniform distribution is printed
    below the picture.

    Args:
      picture: uint8 [H, W, 3].
      seen: the caption and its weights.
      size: the longer side of a panel, in units.
      columns: number of panels per row.
      scale: number of pixels of a unit.
      form: `png`, `pdf` or `svg`.
    """
    small, full = _resized(picture, size, scale), full_strength(seen.weights)
    panels = [small, *(panel(small, row, seen.boxes, full) for row in seen.weights)]
    labels = [("", _uniform(seen)), *zip(seen.words, map(_share, seen.weights), strict=True)]
    title = f"{_TITLES[seen.kind]}: {' '.join(seen.words)}"
    height, width = small.shape[0] // scale, small.shape[1] // scale
    columns = min(columns, len(panels))
    lines, top = -(-len(panels) // columns), _MARGIN + 24
    across = max(2 * _MARGIN + columns * (width + _GAP) - _GAP, 60 + 8 * fonts.width(title))
    whole = _page(top + lines * (height + _LABEL + _GAP), across, scale)
    texts = [(_MARGIN, _MARGIN + 4, title, 12, "left", "#333333")]
    for number, (pixels, label) in enumerate(zip(panels, labels, strict=True)):
        row, column = divmod(number, columns)
        x, y = _MARGIN + column * (width + _GAP), top + row * (height + _LABEL + _GAP)
        texts += _paste(whole, pixels, x, y, *label, scale)
    return _labelled(whole, texts, scale, form)


def compared(
    picture: np.ndarray, models: Sequence[tuple[str, "Attended"]], size: int = SIZE
) -> bytes:
    """Draws a block for each model: its name and caption, the picture, and a panel for each word.

    The form is that of figure 5 of the X-LAN paper (Pan et al., CVPR 2020): the region with the
    largest weight is outlined. A long caption goes on in the next row. Each model has its own
    scale, because models may read different regions; the weight of a uniform distribution stands
    beside the name.

    Args:
      picture: uint8 [H, W, 3].
      models: name of each model, and the weights for its caption.
      size: the longer side of a panel, in pixels.

    Returns:
      A PNG.
    """
    small = _resized(picture, size)
    height, width = small.shape[:2]
    titles = [
        f"{name}: {' '.join(seen.words)}   ({seen.kind}, {_uniform(seen)})" for name, seen in models
    ]
    across = 2 * _MARGIN + max(_COLUMNS * (width + _GAP) - _GAP, 8 * max(map(fonts.width, titles)))
    lines = [-(-max(1, len(seen.words)) // (_COLUMNS - 1)) for _, seen in models]
    step = height + _BELOW + _GAP
    whole = _page(_MARGIN + sum(_HEAD + n * step for n in lines), across)
    texts, top = [], _MARGIN
    for (_, seen), title, count in zip(models, titles, lines, strict=True):
        texts.append((_MARGIN, top + _HEAD // 2 - 4, title, 12, "left", "#333333"))
        top += _HEAD
        whole[top : top + height, _MARGIN : _MARGIN + width] = small
        full = full_strength(seen.weights)
        for number, (word, weights) in enumerate(zip(seen.words, seen.weights, strict=True)):
            line, column = divmod(number, _COLUMNS - 1)
            y, x = top + line * step, _MARGIN + (column + 1) * (width + _GAP)
            drawn = panel(small, weights, seen.boxes, full, outline_cell=True)
            texts += _paste(whole, drawn, x, y, word, _share(weights))
        top += count * step
    return _labelled(whole, texts)


def figure_paths(folder: str | os.PathLike, pictures: Mapping[int, str]) -> dict[int, str]:
    """Returns the path of the figure of each picture.

    A figure gets the name of its picture, with the ending .png. If pictures in different folders
    have the same name, the names of the figures begin with the image id.
    """
    stems = {image: os.path.splitext(os.path.basename(path))[0] for image, path in pictures.items()}
    same = len(set(stems.values())) < len(stems)
    paths = {
        image: os.path.join(folder, f"{image}-{stem}.png" if same else f"{stem}.png")
        for image, stem in stems.items()
    }
    read = {os.path.realpath(path) for path in pictures.values()}
    for path in paths.values():
        if os.path.realpath(path) in read:
            raise errors.UsageError(
                f"A figure would overwrite the picture {path}. Give another directory."
            )
    return paths


def write_figures(
    folder: str | os.PathLike,
    pictures: Mapping[int, str],
    models: Mapping[str, Mapping[int, "Attended"]],
) -> int:
    """Writes `compared` for each image that has a picture and weights of the first model.

    Args:
      folder: the directory for the files, see `figure_paths`.
      pictures: path of the picture by image id.
      models: name of each model, and its weights by image id.

    Returns:
      The number of figures.
    """
    paths = figure_paths(folder, pictures)
    files.make_directory(folder)
    images = [image for image in next(iter(models.values())) if image in pictures]
    written = 0
    for image in progress.progress(images, len(images), "figures", "image"):
        picture = _opened(pictures[image])
        if picture is None:
            continue
        rows = [(name, seen[image]) for name, seen in models.items() if image in seen]
        _write(paths[image], compared(np.asarray(picture), rows))
        written += 1
    return written


def write_picture(path: str | os.PathLike, picture: np.ndarray, seen: "Attended") -> None:
    """Writes the figure of a caption on `picture` uint8 [H, W, 3]; the ending says its form."""
    path = os.path.expanduser(path)
    if not path.lower().endswith(FIGURES):
        raise ValueError(f"The name of a figure, {path}, must end in {', '.join(FIGURES)}.")
    _write(path, figure(picture, seen, scale=_PRINTED, form=path[-3:].lower()))


def picture_path(path: str, image: str, several: bool) -> str:
    """Returns the path of the figure: `path`, or `out-dog.png` for one of several images."""
    if not several:
        return path
    stem, ending = os.path.splitext(path)
    return f"{stem}-{os.path.splitext(os.path.basename(image))[0]}{ending}"


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
    sides = width, height
    return np.asarray(Image.fromarray(picture).resize(sides, Image.Resampling.BICUBIC))


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


def _lit(picture, strength, places):
    """Dims `picture` [h, w, 3] outside of strong boxes; `places` are from `_places`."""
    light = np.zeros(picture.shape[:2])
    for ((x1, y1), (x2, y2)), value in zip(places, strength, strict=True):
        light[y1:y2, x1:x2] = np.maximum(light[y1:y2, x1:x2], value)
    part = 0.25 + 0.75 * light[..., None]
    return (part * picture + (1 - part) * 255).astype(np.uint8)


def _places(boxes, picture):
    """Returns the boxes [R, 4] as pixels of `picture` [h, w, 3]: int [R, 2 corners, x and y]."""
    height, width = picture.shape[:2]
    places = np.asarray(boxes) * [width, height, width, height]
    return np.stack([np.floor(places[:, :2]), np.ceil(places[:, 2:])], 1).astype(int)


def _outline(picture, place):
    """Draws the outline of a box [2 corners, x and y] inside `picture` [h, w, 3]."""
    (x1, y1), (x2, y2) = place
    edge = max(2, max(picture.shape[:2]) // 60)
    inside = picture[y1 + edge : y2 - edge, x1 + edge : x2 - edge].copy()
    picture[y1:y2, x1:x2] = OUTLINE
    picture[y1 + edge : y2 - edge, x1 + edge : x2 - edge] = inside


def _uniform(seen: "Attended") -> str:
    return f"uniform {1 / max(1, len(seen.boxes)):.2g}"


def _share(weights: np.ndarray) -> str:
    """Returns the largest weight [R] of a word as text."""
    if spread_evenly(weights):
        return f"{weights.max():.2f}, spread evenly"
    return f"{weights.max():.2f}" if weights.max() > 0 else "nothing"


def _paste(whole, pixels, x, y, word, note, scale=1):
    """Puts a panel at x, y of a page, in units, and returns the texts below it."""
    height, width = pixels.shape[:2]
    whole[scale * y : scale * y + height, scale * x : scale * x + width] = pixels
    height, width = height // scale, width // scale
    below = y + height + 12
    return [
        (x + 2, below, word, 12, "left", "black"),
        (x + width - 2, below, note, 9, "right", "#666666"),
    ]


def _labelled(
    pixels: np.ndarray, texts: Sequence[tuple], scale: int = 1, form: str = "png"
) -> bytes:
    """Writes texts (x, y of the middle, text, size, alignment, colour) on `pixels`.

    x and y are in units of `scale` pixels, and sizes are in points.
    """
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
    families = fonts.families("".join(text for _, _, text, *_ in texts))
    for x, y, text, size, side, colour in texts:
        place = x / width, 1 - y / height
        style = {"fontsize": size, "color": colour, "ha": side, "va": "center"}
        drawing.text(*place, text, parse_math=False, fontfamily=families, **style)
    with warnings.catch_warnings():
        # `fonts.families` has said so.
        for message in ("Glyph .* missing", "Matplotlib currently does not support"):
            warnings.filterwarnings("ignore", message)
        return _png(drawing) if form == "png" else _vector(drawing, form)


def _png(drawing) -> bytes:
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    canvas, buffer = FigureCanvasAgg(drawing), io.BytesIO()
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
