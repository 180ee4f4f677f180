"""Draws heat maps of weights without boxes: channels, and expansions of ExpansionNet.

matplotlib is imported with the first figure. The figures do not use pyplot, so they need no display
and do not affect other figures.

Letters: T' words of a caption, H heads, d channels of a head, R regions, E expansion vectors.
"""

import io
import warnings
from collections.abc import Sequence

import numpy as np
from PIL import Image

from tfcap.visualize.attention import Layer


def channel_figure(words: Sequence[str], layer: Layer) -> bytes:
    """Draws channel attention [H, T', d], a row per word with the heads side by side, as a PNG."""
    heads, times, depth = layer.weights.shape
    strips = layer.weights.transpose(1, 0, 2).reshape(times, heads * depth)
    drawing, (axis,) = _axes(1, 11, 1.3 + 0.28 * times)
    _heat_map(drawing, axis, strips, f"{layer.path}: gates of the channels", 1)
    axis.set_yticks(range(times), words, fontsize=11)
    for h in range(1, heads):
        axis.axvline(h * depth - 0.5, color="white", linewidth=1)
    middles = [(h + 0.5) * depth - 0.5 for h in range(heads)]
    axis.set_xticks(middles, [f"head {h + 1}" for h in range(heads)], fontsize=11)
    return png(drawing)


def expansion_figure(layers: Sequence[Layer], words: Sequence[str] = ()) -> bytes:
    """Draws the forward and backward weights of one expansion as heat maps in a PNG.

    Rows are expansion vectors; for a dynamic expansion they are grouped by word. Columns of forward
    weights are the inputs of a vector; columns of backward weights are the outputs that read it.

    Args:
      layers: layers of one block from `Details`: `forward_a`, `backward_a` and so on.
      words: the words of the caption for a dynamic expansion; empty for a static one, whose inputs
        are regions.
    """
    drawing, axes = _axes(len(layers), 2.9 * len(layers), 4.6 if words else 3.8)
    for axis, layer in zip(axes, layers, strict=True):
        direction, name = layer.kind.split("_")
        weights = layer.weights
        if direction == "backward":  # the axis of outputs becomes the last one
            weights = np.moveaxis(weights, 0, -1)
        _heat_map(drawing, axis, weights.reshape(-1, weights.shape[-1]), None, None)
        axis.set_title(f"{direction} {name.upper()}", fontsize=11)
        if not words:
            axis.set_xlabel("region", fontsize=11)
            axis.set_ylabel("vector", fontsize=11)
            continue
        # The inputs of a vector are the start mark and the words before its position.
        columns = ["(start)", *words[:-1]] if direction == "forward" else words
        axis.set_xticks(range(len(columns)), columns, rotation=60, ha="right", fontsize=10)
        vectors = weights.shape[1]
        middles = [(t + 0.5) * vectors - 0.5 for t in range(len(words))]
        axis.set_yticks(middles, words, fontsize=10)
        for t in range(1, len(words)):
            axis.axhline(t * vectors - 0.5, color="white", linewidth=0.6)
    drawing.suptitle(layers[0].path, fontsize=12)
    return png(drawing)


def png(drawing) -> bytes:
    """Returns a matplotlib figure as the bytes of a PNG."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    canvas = FigureCanvasAgg(drawing)
    with warnings.catch_warnings():
        # For scripts that the font lacks, or that matplotlib before 3.11 cannot shape.
        for message in ("Glyph .* missing", "Matplotlib currently does not support"):
            warnings.filterwarnings("ignore", message)
        canvas.draw()
    return encoded(Image.fromarray(np.asarray(canvas.buffer_rgba())[..., :3].copy()))


def encoded(image: Image.Image) -> bytes:
    """Returns an image as the bytes of a PNG."""
    buffer = io.BytesIO()
    image.save(buffer, "PNG")
    return buffer.getvalue()


def _axes(count, width, height):
    from matplotlib.figure import Figure

    drawing = Figure(figsize=(width, height), dpi=100, layout="constrained")
    return drawing, list(drawing.subplots(1, count, squeeze=False)[0])


def _heat_map(drawing, axis, values, title, high):
    """Draws `values` [rows, columns] with a colour bar from 0 to `high`."""
    image = axis.imshow(
        values, aspect="auto", cmap="viridis", vmin=0, vmax=high, interpolation="nearest"
    )
    axis.set_title(title, fontsize=12)
    axis.tick_params(labelsize=10)
    drawing.colorbar(image, ax=axis, fraction=0.04).ax.tick_params(labelsize=10)
