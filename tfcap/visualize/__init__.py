"""Computes and draws the attention of a captioner for each word of a caption.

`attention` computes the weights of a batch and `split` those of a whole split. `figures` draws them
over pictures, and `maps` draws heat maps of other weights. The functions, and TensorFlow and
Matplotlib with them, are imported at their first use: flags need `KINDS` only.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tfcap.visualize.attention import (
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
        panel,
        picture_path,
        sheet,
        table,
        write_picture,
    )
    from tfcap.visualize.maps import channel_figure, expansion_figure
    from tfcap.visualize.side_by_side import figure_paths, write_figures
    from tfcap.visualize.split import attended_split, pictures_of, shown_paths

KINDS = ("attention", "contribution")  # what can be computed for each word

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
    "figure_paths",
    "grid",
    "has_boxes",
    "panel",
    "picture_path",
    "pictures_of",
    "shown_paths",
    "sheet",
    "table",
    "write_figures",
    "write_picture",
]


def __getattr__(name: str) -> Any:
    """Imports the functions when the first of them is used."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from tfcap.visualize import attention, figures, maps, side_by_side, split

    for module in (attention, figures, maps, side_by_side, split):
        globals().update({key: vars(module)[key] for key in __all__ if key in vars(module)})
    return globals()[name]
