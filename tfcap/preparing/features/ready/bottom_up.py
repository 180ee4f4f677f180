"""Features in the tsv files of bottom-up attention (Anderson et al., CVPR 2018).

A line has six fields with tabs between them: image id, width and height of the image, number of
boxes, boxes and features. The last two are float32 in base64, boxes [R, 4] in pixels. The files
have no header, lines end in CR LF, and there may be several files.

The files of LXMERT (Tan and Bansal, EMNLP 2019) have ten fields: id, height and width of the image,
four fields about objects and attributes, number of boxes, boxes and features.
"""

import os
import pathlib
import re
from collections.abc import Sequence

from tfcap.preparing.features.ready.base64_arrays import float32_rows
from tfcap.preparing.features.ready.layout import DAMAGED, Layout, first_bytes, layout, listed
from tfcap.preparing.features.ready.lines import Lines
from tfcap.preparing.features.ready.regions import Found

_FIELDS = ("image_id", "image_w", "image_h", "num_boxes", "boxes", "features")
_LXMERT = (
    *("img_id", "img_h", "img_w", "objects_id", "objects_conf", "attrs_id", "attrs_conf"),
    *("num_boxes", "boxes", "features"),
)
_BASE64 = rb"(?:b['\"])?[A-Za-z0-9+/]{2,}"
# The first line may be damaged, or a header.
_LINE = re.compile(
    rb"(?m)^[^\t\r\n]{1,200}\t\d{1,9}\t\d{1,9}\t(?:(?:%b=*['\"]?\t){4})?\d{1,9}\t%b"
    % (_BASE64, _BASE64)
)
_RECOGNISED = 1 << 16  # bytes: LXMERT's fields before the boxes have up to 4 kB
_MOST_BOXES = 10_000


@layout
class BottomUp(Layout):
    """tsv files of bottom-up attention and of LXMERT."""

    title = "bottom-up tsv"

    def __init__(self, paths: Sequence[pathlib.Path], cache: str | os.PathLike | None):
        self.lines = Lines(paths, _key, cache)

    @staticmethod
    def recognises(path: pathlib.Path) -> list[pathlib.Path]:
        return [file for file in listed(path, [".tsv"]) if _is_bottom_up(file)]

    def copies(self, key: str) -> int:
        return self.lines.copies(key)

    def place(self, key: str, copy: int = 0) -> str:
        return self.lines.place(key, copy)

    def example(self) -> str:
        return self.lines.example()

    def about(self) -> str:
        return f"{self.title}, {self.lines.about()}"

    def read(self, key: str, copy: int = 0) -> Found:
        values = self.lines.read(key, copy).split(b"\t")
        is_lxmert = len(values) == len(_LXMERT)
        names: Sequence[str] = _LXMERT if is_lxmert else _FIELDS
        try:
            if len(values) != len(names):
                raise ValueError(
                    f"a line must have the fields {', '.join(_FIELDS)}. Received: {len(values)} "
                    "fields."
                )
            fields = dict(zip(names, values, strict=True))
            size = ("img_w", "img_h") if is_lxmert else ("image_w", "image_h")
            width, height, boxes = (_whole(fields[name]) for name in (*size, "num_boxes"))
            if not 0 < boxes <= _MOST_BOXES:
                raise ValueError(f"num_boxes must be 1 to {_MOST_BOXES}. Received: {boxes}.")
            corners = float32_rows(fields["boxes"], boxes, "boxes", 4)
            features = float32_rows(fields["features"], boxes, "features")
        except ValueError as error:
            raise ValueError(f"{self.place(key, copy)}: {error} {DAMAGED}") from None
        return Found(features, corners, (width, height), pixels=True)


def _is_bottom_up(path: pathlib.Path) -> bool:
    return _LINE.search(first_bytes(path, _RECOGNISED)) is not None


def _key(head: bytes) -> bytes | None:
    """Returns the image id; None for a line that is not of this layout."""
    key, tab, _ = head.partition(b"\t")
    return key.strip() if tab and key not in (b"image_id", b"img_id") else None


def _whole(field: bytes) -> int:
    text = field.decode("ascii", "replace")
    if not text.isascii() or not text.isdecimal() or len(text) > 9:
        raise ValueError(
            f"image_w, image_h and num_boxes must be whole numbers. Received: {text[:40]!r}."
        )
    return int(text)
