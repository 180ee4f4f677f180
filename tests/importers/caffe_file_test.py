"""Weights in .caffemodel files: good ones are read, and others give one sentence."""

import numpy as np
import pytest
from helpers.released_detectors import blob, field, layer

from tfcap.importers import caffe_file

NUMBERS = np.arange(1.5, 13.5, dtype="<f4")
BYTES = NUMBERS.tobytes()


def test_blobs_arrive_by_layer_and_number(tmp_path):
    path = tmp_path / "net.caffemodel"
    content = field(1, b"net") + layer("data") + layer("rpn_conv/3x3", blob([2, 3, 2, 1], BYTES))
    # Floats may come in chunks; a number on its own has no dimension.
    content += layer("fc", blob([12], BYTES[:20], BYTES[20:]), blob([], BYTES[:4]))
    path.write_bytes(content)
    arrays = caffe_file.read_tensors(path)
    assert list(arrays) == ["rpn_conv/3x3[0]", "fc[0]", "fc[1]"]
    np.testing.assert_array_equal(arrays["rpn_conv/3x3[0]"], NUMBERS.reshape(2, 3, 2, 1))
    np.testing.assert_array_equal(arrays["fc[0]"], NUMBERS)
    assert arrays["fc[1]"] == 1.5 and {array.dtype for array in arrays.values()} == {np.dtype("f4")}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "holds no layers"),
        (b'name: "ResNet-101"\nlayer {\n', "no usable .caffemodel"),
        (layer("fc", blob([12], BYTES))[:-9], "no usable .caffemodel"),
        (layer("fc", blob([13], BYTES)), r"12 numbers, but the shape \[13\]"),
        (layer("fc", blob([-3, -4], BYTES)), r"12 numbers, but the shape \[-3, -4\]"),
        (layer("fc", blob([1 << 40, 1 << 40], BYTES)), "12 numbers, but the shape"),
        (layer("fc", blob([12], BYTES[:-1])), "no usable .caffemodel"),
        (field(100, field(7, blob([12], BYTES))), "no usable .caffemodel"),
        (field(2, field(4, b"fc") + field(6, blob([12], BYTES))), "layout of 2014"),
    ],
)
def test_other_files_are_refused_in_one_sentence(tmp_path, content, message):
    path = tmp_path / "net.caffemodel"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=message) as error:
        caffe_file.read_tensors(path)
    assert str(error.value).startswith(str(path)) and "\n" not in str(error.value)
