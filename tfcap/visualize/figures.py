"""Draws figures of attention over pictures, with a panel for each word.

Panels are composed as pixels, and matplotlib only writes the labels; this is many times faster than
an axis for each panel. matplotlib is imported when the first figure is drawn. The figures do not
use pyplot, so they need no display and do not affect other figures.

Letters: R regions, T' words of a caption, H x W pixels of a picture, h x w of a panel.
"""

import io
import os
from collections.abc import Sequence

import numpy as np
from PIL import Image

from tfcap.files import replacing
from tfcap.shading import full_strength, spread_evenly
from tfcap.visualize.attention import Attended, Details, grid
from tfcap.visualize.maps import channel_figure, encoded, expansion_figure, png

OUTLINE = (230, 25, 25)  # colour of the outline of the strongest region
SIZE = 180  # the longer side of a panel, in pixels
_GAP, _LABEL, _MARGIN = 10, 34, 12
_NAMES = 90  # pixels for the names of the rows of a table
_PAGE = 1150  # pixels across a page of details: six panels of a figure
_TITLES = {
    "attention": "attention",
    "contribution": "contribution of the regions (gradient x input)",
}


def panel(
    picture: np.ndarray,
    weights: np.ndarray,
    boxes: np.ndarray,
    size: int = SIZE,
    full: float | None = None,
) -> np.ndarray:
    """Draws the weights of one word over the picture.

    A grid gives a heat map. With other boxes the brightness of a pixel follows the strongest of its
    boxes, and the strongest region is outlined.

    Args:
      picture: uint8 [H, W, 3].
      weights: [R], the weight of each region.
      boxes: [R, 4], x1, y1, x2, y2 in 0..1.
      size: the longer side of the panel, in pixels.
      full: the weight that is drawn at full strength, for all words of a caption the same; None
        takes `shading.full_strength` of this word.

    Returns:
      uint8 [h, w, 3].
    """
    return _panel(resized(picture, size), weights, boxes, full or full_strength(weights))


def _panel(small, weights, boxes, full):
    if spread_evenly(weights):
        return small
    strength = np.nan_to_num(np.asarray(weights, np.float64)) / full
    cells = grid(boxes)
    if cells:
        return _heated(small, strength.reshape(cells))
    return _lit(small, strength, boxes)


def outlined_panel(
    small: np.ndarray, weights: np.ndarray, boxes: np.ndarray, full: float
) -> np.ndarray:
    """Draws a panel as `panel` does, and outlines the strongest region of a grid as well.

    Args:
      small: uint8 [h, w, 3], a result of `resized`.
      weights, boxes, full: as for `panel`.

    Returns:
      uint8 [h, w, 3].
    """
    drawn = _panel(small, weights, boxes, full)
    if grid(boxes) and np.nan_to_num(weights).max() > 0 and not spread_evenly(weights):
        drawn = _outlined(drawn, _places(boxes, drawn)[np.nan_to_num(weights).argmax()])
    return drawn


def figure(
    picture: np.ndarray,
    attended: Attended,
    size: int = SIZE,
    columns: int = 6,
) -> bytes:
    """Draws the figure of a caption as a PNG.

    All panels have one scale, see `shading.full_strength`. The weight of a uniform distribution is
    printed below the picture.

    Args:
      picture: uint8 [H, W, 3].
      attended: the caption and its weights.
      size: the longer side of a panel, in pixels.
      columns: number of panels in a row.
    """
    small, full = resized(picture, size), full_strength(attended.weights)
    panels = [_panel(small, row, attended.boxes, full) for row in attended.weights]
    shares = [share(row) for row in attended.weights]
    labels = [("", _uniform(attended)), *zip(attended.words, shares, strict=True)]
    title = f"{_TITLES[attended.kind]}: {' '.join(attended.words)}"
    return _page(title, [small, *panels], labels, columns, [])


def table(
    picture: np.ndarray,
    attended: Attended,
    rows: Sequence[tuple[str, np.ndarray]],
    size: int = 110,
    title: str = "",
    full: float = 0.0,
) -> bytes:
    """Draws a row of panels for each of `rows`, with a column for each word, as a PNG.

    Args:
      picture: uint8 [H, W, 3].
      attended: the caption.
      rows: names and weights [T', R].
      size: the longer side of a panel, in pixels.
      title: text above the table.
      full: the weight that is drawn at full strength; 0 takes the largest `shading.full_strength`
        of the rows.
    """
    small = resized(picture, size)
    full = full or max(full_strength(weights) for _, weights in rows)
    panels = [_panel(small, row, attended.boxes, full) for _, weights in rows for row in weights]
    labels = [(word, "") for word in attended.words]
    return _page(title, panels, labels, len(labels), [name for name, _ in rows])


def share(weights: np.ndarray) -> str:
    """Returns the largest weight [R] of a word as text."""
    if spread_evenly(weights):
        return f"{weights.max():.2f}, spread evenly"
    return f"{weights.max():.2f}" if weights.max() > 0 else "nothing"


def _uniform(attended: Attended) -> str:
    return f"uniform {1 / max(1, len(attended.boxes)):.2g}"


def sheet(picture: np.ndarray, details: Details) -> bytes:
    """Draws all recorded weights of a caption on one page, as a PNG.

    The page shows every decoder layer with attention over regions (mean over heads), the heads and
    channels of the last such layer, and the forward and backward weights of the last expansions.
    """
    seen = details.attended
    lines = [[figure(picture, seen)]]
    if not seen.words:
        return lines[0][0]
    cross = [x for x in details.decoder if (x.kind, x.over) == ("attention", "regions")]
    rows = []
    if len(cross) > 1:
        rows += [(layer.path.rsplit("/", 1)[0], layer.weights.mean(0)) for layer in cross]
    if cross and len(cross[-1].weights) > 1:
        rows += [(f"head {h + 1}", weights) for h, weights in enumerate(cross[-1].weights)]
    if rows:
        lines.append(_tables(picture, seen, rows, cross[-1].path))
    for layer in details.decoder:
        if layer.kind == "channel" and cross and layer.path == cross[-1].path:
            lines.append([channel_figure(seen.words, layer)])
    for layers, words in ((details.encoder, ()), (details.decoder, seen.words)):
        last = [layer for layer in layers if layer.kind.startswith(("forward", "backward"))][-4:]
        last.sort(key=lambda layer: layer.kind[-1])
        if last:
            lines.append([expansion_figure(last, words)])
    return _together(lines)


def _tables(picture, seen, rows, path) -> list[bytes]:
    """Draws the mean and `rows`: as two tables side by side if the caption is short."""
    rows, words = [("mean", seen.weights), *rows], len(seen.words)
    full = max(full_strength(weights) for _, weights in rows)
    size = min(110, max(60, (_PAGE - _NAMES) // words - _GAP))
    half = (_PAGE // 2 - _NAMES - 2 * _MARGIN) // words - _GAP
    parts = 2 if half >= 70 and len(rows) > 4 else 1
    size, each = min(size, half) if parts == 2 else size, -(-len(rows) // parts)
    title = f"layers, and heads of {path}   ({_uniform(seen)})"
    return [
        table(picture, seen, rows[i : i + each], size, "" if i else title, full)
        for i in range(0, len(rows), each)
    ]


def _together(lines: Sequence[Sequence[bytes]]) -> bytes:
    """Puts lines of pictures below each other, and the pictures of a line side by side."""
    opened = [[Image.open(io.BytesIO(part)).convert("RGB") for part in line] for line in lines]
    width = max(sum(part.width for part in line) for line in opened)
    heights = [max(part.height for part in line) for line in opened]
    whole = Image.new("RGB", (width, sum(heights)), "white")
    top = 0
    for line, height in zip(opened, heights, strict=True):
        left = 0
        for part in line:
            whole.paste(part, (left, top))
            left += part.width
        top += height
    return encoded(whole)


def write_picture(
    path: str | os.PathLike, picture: np.ndarray, seen: Attended | Details, size: int = SIZE
) -> None:
    """Writes the figure of a caption, or the page of its details.

    The file appears only when it is complete.

    Args:
      path: name of the file, with the ending `.png`.
      picture: uint8 [H, W, 3].
      seen: a result of `attended` or of `details`.
      size: the longer side of a panel in pixels, for a result of `attended`.

    Raises:
      ValueError: the ending is not `.png`, or the picture has another shape or dtype.
    """
    path = os.path.expanduser(path)
    if not path.lower().endswith(".png"):
        raise ValueError(f"The figure is a PNG: its name must end in .png. Received: {path}")
    content = sheet(picture, seen) if isinstance(seen, Details) else figure(picture, seen, size)
    with replacing(path) as temporary, open(temporary, "wb") as file:
        file.write(content)


def picture_path(path: str, image: str, several: bool) -> str:
    """Returns the path of an image's figure: `path`, or for several images `out-dog.png`."""
    if not several:
        return path
    stem, ending = os.path.splitext(path)
    return f"{stem}-{os.path.splitext(os.path.basename(image))[0]}{ending}"


def resized(picture: np.ndarray, size: int) -> np.ndarray:
    """Returns a picture uint8 [H, W, 3] whose longer side has `size` pixels."""
    picture = np.asarray(picture)
    if picture.ndim != 3 or picture.shape[2] != 3 or picture.dtype != np.uint8:
        raise ValueError(
            "picture must be uint8 [height, width, 3]. Received: "
            f"{picture.dtype} {list(picture.shape)}"
        )
    height, width = picture.shape[:2]
    scale = size / max(height, width)
    sides = max(1, round(width * scale)), max(1, round(height * scale))
    return np.asarray(Image.fromarray(picture).resize(sides, Image.Resampling.BICUBIC))


def _heated(picture, strength):
    """Draws a heat map of `strength` [rows, columns] in 0..1 over `picture` [h, w, 3]."""
    import matplotlib

    height, width = picture.shape[:2]
    cells = Image.fromarray(strength.astype(np.float32))
    smooth = np.asarray(cells.resize((width, height), Image.Resampling.BICUBIC))
    smooth = np.clip(smooth, 0, 1)
    heat = matplotlib.colormaps["jet"](0.3 + 0.7 * smooth)[..., :3] * 255  # from cyan to red
    share = 0.7 * smooth[..., None] ** 0.8
    pale = 0.85 * picture + 0.15 * 255
    return np.uint8((1 - share) * pale + share * heat)


def _lit(picture, strength, boxes):
    """Dims `picture` [h, w, 3] outside strong boxes [R, 4] and outlines the strongest box."""
    light, places = np.zeros(picture.shape[:2]), _places(boxes, picture)
    for (x1, y1), (x2, y2), value in zip(places[:, 0], places[:, 1], strength, strict=True):
        light[y1:y2, x1:x2] = np.maximum(light[y1:y2, x1:x2], value)
    part = 0.25 + 0.75 * light[..., None]
    out = (part * picture + (1 - part) * 255).astype(np.uint8)
    return _outlined(out, places[strength.argmax()]) if strength.max() > 0 else out


def _places(boxes, picture):
    """Returns the boxes [R, 4] as pixels of `picture` [h, w, 3]: int [R, 2 corners, x and y]."""
    height, width = picture.shape[:2]
    places = np.asarray(boxes) * [width, height, width, height]
    return np.stack([np.floor(places[:, :2]), np.ceil(places[:, 2:])], 1).astype(int)


def _outlined(picture, place):
    """Draws the outline of a box [2 corners, x and y] inside `picture` [h, w, 3]."""
    (x1, y1), (x2, y2) = place
    edge = max(2, max(picture.shape[:2]) // 60)
    inside = picture[y1 + edge : y2 - edge, x1 + edge : x2 - edge].copy()
    picture[y1:y2, x1:x2] = OUTLINE
    picture[y1 + edge : y2 - edge, x1 + edge : x2 - edge] = inside
    return picture


def _page(title, panels, labels, columns, names):
    """Draws a table of panels with `columns` columns, as a PNG.

    Without `names` each panel has its label (word, note) below it. With `names`, which are drawn
    before the rows, the labels belong to the columns.
    """
    height, width = panels[0].shape[:2]
    columns = max(1, min(columns, len(panels)))
    lines, below = -(-len(panels) // columns), 0 if names else _LABEL
    left = _MARGIN + (_NAMES if names else 0)
    top = _MARGIN + 24 + (_LABEL if names else 0)
    across = max(left + columns * (width + _GAP) - _GAP + _MARGIN, 60 + 8 * len(title))
    whole = np.full((top + lines * (height + below + _GAP), across, 3), 255, np.uint8)
    texts = [(_MARGIN, _MARGIN + 4, title, 12, "left", "#333333")]
    places = []
    for number, pixels in enumerate(panels):
        row, column = divmod(number, columns)
        x, y = left + column * (width + _GAP), top + row * (height + below + _GAP)
        whole[y : y + height, x : x + width] = pixels
        places.append((x, y))
    for (x, y), (word, note) in zip(places, labels, strict=False):
        y = y - 12 if names else y + height + 12
        if names and len(word) > width // 9:  # a column is as wide as its panels
            word = f"{word[: width // 9 - 1]}…"
        texts.append((x + 2, y, word, 12, "left", "black"))
        texts.append((x + width - 2, y, note, 9, "right", "#666666"))
    for (_, y), name in zip(places[::columns], names, strict=False):
        texts.append((left - 8, y + height // 2, name, 11, "right", "#333333"))
    return labelled(whole, texts)


def labelled(pixels: np.ndarray, texts: Sequence[tuple]) -> bytes:
    """Writes texts (x, y of the middle, text, size, alignment, colour) on `pixels`, as a PNG."""
    from matplotlib.figure import Figure

    height, width = pixels.shape[:2]
    # matplotlib before 3.11 cuts a size of 401.9999 pixels to 401.
    drawing = Figure(figsize=((width + 0.01) / 100, (height + 0.01) / 100), dpi=100)
    drawing.figimage(pixels, 0, 0, origin="upper")
    for x, y, text, size, side, colour in texts:
        drawing.text(
            x / width,
            1 - y / height,
            text,
            fontsize=size,
            color=colour,
            ha=side,
            va="center",
            parse_math=False,
        )
    return png(drawing)
