"""Computes and draws the attention of a captioner for each word of a caption.

`attention` computes the weights of a batch and `split` those of a whole split. `figures` draws them
over pictures, and `maps` draws heat maps of other weights.
"""

from tfcap.visualize.attention import (
    KINDS,
    Attended,
    Details,
    Layer,
    attended,
    details,
    grid,
    has_boxes,
)
from tfcap.visualize.figures import (
    figure,
    head_figure,
    panel,
    picture_path,
    sheet,
    write_picture,
)
from tfcap.visualize.maps import channel_figure, expansion_figure
from tfcap.visualize.split import attended_split

__all__ = [
    "KINDS",
    "Attended",
    "Details",
    "Layer",
    "attended",
    "attended_split",
    "channel_figure",
    "details",
    "expansion_figure",
    "figure",
    "grid",
    "has_boxes",
    "head_figure",
    "panel",
    "picture_path",
    "sheet",
    "write_picture",
]
