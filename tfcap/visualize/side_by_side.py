"""Draws what several models look at, below each other: one row of panels for each model.

The form is that of figure 5 of the X-LAN paper (Pan et al., CVPR 2020): the picture, then a panel
for each word with the most attended region outlined.
"""

import os
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
from PIL import Image

from tfcap import cli, files
from tfcap.files import replacing
from tfcap.images import upright
from tfcap.shading import full_strength
from tfcap.visualize.attention import Attended
from tfcap.visualize.figures import SIZE, labelled, outlined_panel, resized, share

_GAP, _BELOW, _MARGIN, _HEAD = 10, 30, 12, 30
_COLUMNS = 8  # panels in a row, the picture included; a longer caption goes on in the next row


def rows(picture: np.ndarray, models: Sequence[tuple[str, Attended]], size: int = SIZE) -> bytes:
    """Draws a block for each model: its name and caption, the picture, and a panel for each word.

    Each model has its own scale, see `shading.full_strength`: models may read different regions, so
    that equal weights mean different things. The weight of a uniform distribution stands beside
    the name.

    Args:
      picture: uint8 [H, W, 3].
      models: name of each model, and the weights for its caption.
      size: the longer side of a panel, in pixels.

    Returns:
      A PNG.
    """
    small = resized(picture, size)
    height, width = small.shape[:2]
    titles = [f"{name}: {' '.join(seen.words)}   ({_about(seen)})" for name, seen in models]
    across = _MARGIN + _COLUMNS * (width + _GAP) - _GAP + _MARGIN
    across = max(across, 2 * _MARGIN + 8 * max(map(len, titles)))
    lines = [-(-max(1, len(seen.words)) // (_COLUMNS - 1)) for _, seen in models]
    step = height + _BELOW + _GAP
    whole = np.full((_MARGIN + sum(_HEAD + n * step for n in lines), across, 3), 255, np.uint8)
    texts, top = [], _MARGIN
    for (_, seen), title, count in zip(models, titles, lines, strict=True):
        texts.append((_MARGIN, top + _HEAD // 2 - 4, title, 12, "left", "#333333"))
        top += _HEAD
        whole[top : top + height, _MARGIN : _MARGIN + width] = small
        for place, panel in enumerate(_panels(small, seen)):
            line, column = divmod(place, _COLUMNS - 1)
            y, x = top + line * step, _MARGIN + (column + 1) * (width + _GAP)
            whole[y : y + height, x : x + width] = panel
            below = y + height + 12
            texts.append((x + 2, below, seen.words[place], 12, "left", "black"))
            weight = share(seen.weights[place])
            texts.append((x + width - 2, below, weight, 9, "right", "#666666"))
        top += count * step
    return labelled(whole, texts)


def _about(seen: Attended) -> str:
    return f"{seen.kind}, uniform {1 / max(1, len(seen.boxes)):.2g}"


def _panels(small: np.ndarray, seen: Attended) -> Iterator[np.ndarray]:
    full = full_strength(seen.weights)
    for weights in seen.weights:
        yield outlined_panel(small, weights, seen.boxes, full)


def figure_paths(folder: str | os.PathLike, pictures: Mapping[int, str]) -> dict[int, str]:
    """Returns the path of the figure of each picture.

    Args:
      folder: the directory for the files.
      pictures: path of the picture by image id. The figure gets the name of the picture, with the
        ending .png. If pictures in different folders have the same name, the name of the figure
        begins with the image id.

    Raises:
      ValueError: a figure would overwrite a picture.
    """
    stems = {image: os.path.splitext(os.path.basename(path))[0] for image, path in pictures.items()}
    same = len(set(stems.values())) < len(stems)
    names = {
        image: f"{image}-{stem}.png" if same else f"{stem}.png" for image, stem in stems.items()
    }
    paths = {image: os.path.join(folder, name) for image, name in names.items()}
    read = {os.path.realpath(path) for path in pictures.values()}
    for path in paths.values():
        if os.path.realpath(path) in read:
            raise ValueError(
                f"The directory of figures must not be that of the pictures. Received: {folder}, "
                f"where a figure would overwrite the picture {path}. Give another directory."
            )
    return paths


def write_figures(
    folder: str | os.PathLike,
    pictures: Mapping[int, str],
    models: Mapping[str, Mapping[int, Attended]],
) -> int:
    """Writes a figure for each image that has a picture and weights of the first model.

    Args:
      folder: the directory for the files; it is made if it does not exist.
      pictures: path of the picture by image id. `figure_paths` gives the names of the files.
      models: name of each model, and its weights by image id.

    Returns:
      The number of figures.

    Raises:
      ValueError: a figure would overwrite a picture.
    """
    paths = figure_paths(folder, pictures)
    files.make_directory(folder)
    first = next(iter(models.values()))
    images = [image for image in first if image in pictures]
    written = 0
    for image in cli.progress(images, len(images), "figures", "image"):
        pixels = _pixels(pictures[image])
        if pixels is None:
            continue
        each = [(name, seen[image]) for name, seen in models.items() if image in seen]
        with replacing(paths[image]) as temporary, open(temporary, "wb") as file:
            file.write(rows(pixels, each))
        written += 1
    return written


def _pixels(path: str) -> np.ndarray | None:
    """Returns a picture upright, uint8 [H, W, 3]; None if it cannot be read."""
    try:
        with Image.open(path) as image:
            return np.asarray(upright(image).convert("RGB"))
    except Exception:  # Pillow raises many kinds of errors for damaged files
        return None
