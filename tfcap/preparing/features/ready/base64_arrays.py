"""Decodes arrays of float32 that are written as base64 in a text file."""

import binascii

import numpy as np


def float32_rows(text: bytes, rows: int, what: str, columns: int | None = None) -> np.ndarray:
    """Decodes rows of float32.

    Python 3 programs sometimes write `b'...'` around the text; this is removed.

    Args:
      text: base64.
      rows: number of rows that the file names.
      what: name of the array, for errors.
      columns: number of columns; None takes the number that the length gives.

    Returns:
      float32 [rows, columns].

    Raises:
      ValueError: not base64, or its length does not fit.
    """
    if text.startswith((b"b'", b'b"')):
        text = text[2:-1]
    try:
        raw = binascii.a2b_base64(text)
    except binascii.Error as error:
        raise ValueError(f"{what} must be base64. Received: {error}.") from None
    padding = 2 if text.endswith(b"==") else int(text.endswith(b"="))
    # The decoder leaves out characters that are not base64, and stops at padding.
    if len(raw) != len(text) // 4 * 3 - padding or len(text) % 4:
        raise ValueError(
            f"{what} must be base64. Received: {len(text)} characters that give {len(raw)} bytes."
        )
    if not rows or not raw or len(raw) % (4 * rows) or (columns and len(raw) != 4 * rows * columns):
        wanted = columns or "some"
        raise ValueError(
            f"{what} must have {rows} x {wanted} float32 numbers. Received: {len(raw)} bytes."
        )
    return np.frombuffer(raw, "<f4").reshape(rows, -1)
