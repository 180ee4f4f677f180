"""Features in the tsv files of bottom-up attention (Anderson et al., CVPR 2018).

A line has six fields with tabs between them: image id, width and height of the image, number of
boxes, boxes and features. The last two are float32 in base64, boxes [R, 4] in pixels. The files
have no header, lines end in CR LF, and there may be several files.
"""

import os
import pathlib
import re
from collections.abc import Sequence

from tfcap.preparing.features.ready.base64_arrays import float32_rows
from tfcap.preparing.features.ready.layout import Layout, first_bytes, layout, listed
from tfcap.preparing.features.ready.lines import HEAD, Lines
from tfcap.preparing.features.ready.regions import Found

_FIELDS = ("image_id", "image_w", "image_h", "num_boxes", "boxes", "features")
_LINE = re.compile(rb"([^\t\r\n]{1,200})\t\d{1,9}\t\d{1,9}\t\d{1,9}\t(?:b['\"])?[A-Za-z0-9+/]{2,}")
_HEADER = re.compile(rb"image_id\t[^\n]{1,200}\n")
_MOST_BOXES = 10_000


@layout
class BottomUp(Layout):
    """tsv files of bottom-up attention."""

    title = "bottom-up tsv"

    def __init__(self, paths: Sequence[pathlib.Path], cache: str | os.PathLike | None):
        self.lines = Lines(paths, _key, cache)

    @staticmethod
    def recognises(path: pathlib.Path) -> list[pathlib.Path]:
        return [file for file in listed(path, [".tsv"]) if _is_bottom_up(file)]

    def has(self, key: str) -> bool:
        return key in self.lines

    def place(self, key: str) -> str:
        return self.lines.place(key)

    def about(self) -> str:
        return f"{self.title}, {self.lines.about()}"

    def read(self, key: str) -> Found:
        fields = self.lines.read(key).split(b"\t")
        try:
            if len(fields) != len(_FIELDS):
                raise ValueError(
                    f"a line must have the fields {', '.join(_FIELDS)}. Received: {len(fields)} "
                    "fields."
                )
            width, height, boxes = (_whole(field) for field in fields[1:4])
            if not 0 < boxes <= _MOST_BOXES:
                raise ValueError(f"num_boxes must be 1 to {_MOST_BOXES}. Received: {boxes}.")
            corners = float32_rows(fields[4], boxes, "boxes", 4)
            features = float32_rows(fields[5], boxes, "features")
        except ValueError as error:
            raise ValueError(f"{self.place(key)}: {error} {self.remedy}") from None
        return Found(features, corners, (width, height), pixels=True)


def _is_bottom_up(path: pathlib.Path) -> bool:
    head = first_bytes(path, 2 * HEAD)
    header = _HEADER.match(head)
    return _LINE.match(head, header.end() if header else 0) is not None


def _key(head: bytes) -> bytes | None:
    """Returns the image id; None for a line that is not of this layout."""
    key, tab, _ = head.partition(b"\t")
    return key.strip() if tab and key != b"image_id" else None


def _whole(field: bytes) -> int:
    text = field.decode("ascii", "replace")
    if not text.isascii() or not text.isdecimal() or len(text) > 9:
        raise ValueError(
            f"image_w, image_h and num_boxes must be whole numbers. Received: {text[:40]!r}."
        )
    return int(text)
