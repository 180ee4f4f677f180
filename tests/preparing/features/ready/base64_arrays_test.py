"""Arrays of float32 in base64."""

import base64

import numpy as np
import pytest

from tfcap.preparing.features.ready.base64_arrays import float32_rows

VALUES = np.arange(10, dtype=np.float32)


@pytest.mark.parametrize("count", [6, 8, 10])  # the text ends in none, one or two "="
def test_numbers_are_read_as_they_were_written(count):
    text = base64.b64encode(VALUES[:count].tobytes())
    expected = VALUES[:count].reshape(2, -1)
    np.testing.assert_array_equal(float32_rows(text, 2, "features"), expected)
    np.testing.assert_array_equal(float32_rows(text, 2, "boxes", count // 2), expected)
    np.testing.assert_array_equal(float32_rows(b"b'%s'" % text, 2, "features"), expected)


TEXT = base64.b64encode(VALUES[:6].tobytes())


@pytest.mark.parametrize(
    "text, rows, columns, message",
    [
        (TEXT[:-4], 2, None, "2 x some float32 numbers. Received: 21 bytes"),
        (TEXT[:-1], 2, None, "be base64"),
        (TEXT[:4] + b"!" + TEXT[5:], 2, None, "be base64"),
        (TEXT[:4] + b"=" + TEXT[5:], 2, None, "be base64"),
        (TEXT + b"====", 2, None, "be base64"),
        (TEXT, 5, None, "5 x some float32 numbers. Received: 24 bytes"),
        (TEXT, 2, 4, "2 x 4 float32 numbers. Received: 24 bytes"),
        (TEXT, 0, None, "0 x some"),
        (b"", 2, None, "Received: 0 bytes"),
        (b"\xff\xfe\x00a", 1, None, "be base64"),
    ],
)
def test_text_that_does_not_fit_is_refused(text, rows, columns, message):
    with pytest.raises(ValueError, match=f"features must .*{message}"):
        float32_rows(text, rows, "features", columns)
