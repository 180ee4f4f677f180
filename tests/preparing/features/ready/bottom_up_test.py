"""The tsv files of bottom-up attention."""

import base64
import csv

import numpy as np
import pytest
from helpers.features import bottom_up, bottom_up_line, image, text

from tfcap.preparing.features.ready.bottom_up import BottomUp
from tfcap.preparing.features.ready.regions import checked

IMAGES = {391895: image(1), 9: image(2), 30: image(3)}


def opened(*paths):
    return BottomUp([file for path in paths for file in BottomUp.recognises(path)], None)


def test_features_and_boxes_are_read_from_several_files_in_any_order(tmp_path):
    bottom_up(tmp_path / "karpathy_train.tsv.0", {391895: IMAGES[391895]})
    bottom_up(tmp_path / "karpathy_train.tsv.1", {9: IMAGES[9], 30: IMAGES[30]})
    (tmp_path / "notes.tsv").write_text("word\tcount\ndog\t3\n")
    layout = opened(tmp_path)
    assert [path.name for path in layout.lines.paths] == [
        "karpathy_train.tsv.0",
        "karpathy_train.tsv.1",
    ]
    for key in (30, 391895, 9):
        found, expected = layout.read(str(key)), IMAGES[key]
        np.testing.assert_array_equal(found.features, expected.features)
        np.testing.assert_array_equal(found.boxes, expected.boxes)
        assert found.size == expected.size
        np.testing.assert_allclose(checked(found).boxes, expected.unit, atol=1e-6)
    assert layout.has("9") and not layout.has("10") and "2 files" in layout.about()


def test_rows_may_be_longer_than_the_field_limit_of_csv(tmp_path):
    long = image(1, 2048, regions=100)
    path = bottom_up(tmp_path / "a.tsv", {1: long})
    assert path.stat().st_size > csv.field_size_limit()
    found = opened(path).read("1")
    np.testing.assert_array_equal(found.features, long.features)


def test_a_header_and_text_of_bytes_are_accepted(tmp_path):
    """Python 3 programs write b'...' around base64."""
    path, one = tmp_path / "a.tsv", IMAGES[9]
    fields = bottom_up_line(9, one, b"").split(b"\t")
    fields[4:] = [b"b'%s'" % field for field in fields[4:]]
    header = b"image_id\timage_w\timage_h\tnum_boxes\tboxes\tfeatures\r\n"
    path.write_bytes(header + b"\t".join(fields) + b"\r\n")
    layout = opened(path)
    np.testing.assert_array_equal(layout.read("9").features, one.features)
    assert not layout.has("image_id")


def test_an_image_that_occurs_twice_counts_once(tmp_path):
    path = bottom_up(tmp_path / "a.tsv", {9: IMAGES[9]})
    path.write_bytes(path.read_bytes() + bottom_up_line(9, IMAGES[30]))
    layout = opened(path)
    np.testing.assert_array_equal(layout.read("9").features, IMAGES[9].features)
    assert "1 repeated line" in layout.about()


def test_the_ten_fields_of_lxmert_have_the_height_before_the_width(tmp_path):
    one, path = image(5, regions=36), tmp_path / "val2014_obj36.tsv"
    key, width, height, count, boxes, values = bottom_up_line(
        "COCO_val2014_000000000009", one
    ).split(b"\t")
    objects = base64.b64encode(np.arange(36, dtype=np.int64).tobytes())
    about = [objects, text(np.ones(36)), objects, text(np.ones(36))]
    path.write_bytes(b"\t".join([key, height, width, *about, count, boxes, values]))
    found = opened(path).read("COCO_val2014_000000000009")
    np.testing.assert_array_equal(found.features, one.features)
    assert found.size == one.size and one.size[0] != one.size[1]
    np.testing.assert_allclose(checked(found).boxes, one.unit, atol=1e-6)


def test_a_file_whose_first_line_is_cut_is_recognised(tmp_path):
    path = tmp_path / "a.tsv"
    path.write_bytes(GOOD[:6] + b"\n" + bottom_up_line(30, IMAGES[30]))
    np.testing.assert_array_equal(opened(path).read("30").features, IMAGES[30].features)


GOOD = bottom_up_line(9, IMAGES[9])


def changed(number, value):
    fields = GOOD.rstrip().split(b"\t")
    fields[number] = value(fields[number]) if callable(value) else value
    return b"\t".join(fields)


@pytest.mark.parametrize(
    "line, message",
    [
        (GOOD[: len(GOOD) // 2], "features must"),
        (GOOD[:-6], "features must have 4 x some"),
        (GOOD[:-3], "features must be base64"),
        (GOOD.rsplit(b"\t", 1)[0], "fields image_id, .* Received: 5 fields"),
        (changed(3, b"3"), "boxes must have 3 x 4 float32 numbers. Received: 64 bytes"),
        (changed(3, b"0"), "num_boxes must be 1 to 10000. Received: 0"),
        (changed(3, b"99999999"), "num_boxes must be 1 to 10000"),
        (changed(4, lambda text: text[:-4]), "boxes must have 4 x 4"),
        (changed(1, b"-5"), "must be whole numbers. Received: '-5'"),
    ],
)
def test_bad_lines_are_refused_and_others_are_read(tmp_path, line, message):
    path = bottom_up(tmp_path / "a.tsv", {30: IMAGES[30]})
    path.write_bytes(path.read_bytes() + line + b"\n" + bottom_up_line(391895, IMAGES[391895]))
    layout = opened(path)
    with pytest.raises(ValueError, match=rf"a.tsv, 9 at byte \d+: .*{message}"):
        layout.read("9")
    for key in (30, 391895):
        np.testing.assert_array_equal(layout.read(str(key)).features, IMAGES[key].features)


def test_zero_width_is_refused_with_the_boxes(tmp_path):
    path = tmp_path / "a.tsv"
    path.write_bytes(changed(1, b"0"))
    with pytest.raises(ValueError, match="one positive number each. Received: 0"):
        checked(opened(path).read("9"))
