"""Pictures of what a captioner looks at, word by word.

`attention` computes the weights, `figures` draws them over pictures, `maps` as heat maps.
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

__all__ = [
    "KINDS",
    "Attended",
    "Details",
    "Layer",
    "attended",
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
