"""Attention over pictures, figures, the HTML report and the demo page.

`attention` computes what a captioner looks at, `figures` draws it, `report` writes a page of
captions, and `demo` serves the demo page. The names below, and TensorFlow, are imported at the
first use, because flags need `KINDS` only.
"""

# ruff: noqa: F401
import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tfcap.visualize.attention import (
        Attended,
        attended,
        attended_split,
        has_boxes,
        pictures_of,
        shown_paths,
    )
    from tfcap.visualize.figures import (
        figure,
        figure_paths,
        grid,
        panel,
        picture_path,
        write_figures,
        write_picture,
    )

KINDS = ("attention", "contribution")  # what can be computed for each word
FIGURES = (".png", ".pdf", ".svg")  # endings of the files of figures
_MODULES = {
    "attention": "Attended attended attended_split has_boxes pictures_of shown_paths",
    "figures": "figure figure_paths grid panel picture_path write_figures write_picture",
}


def __getattr__(name: str) -> Any:
    for module, names in _MODULES.items():
        if name in names.split():
            return getattr(importlib.import_module(f"{__name__}.{module}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
