"""The tsv files of VinVL."""

import json

import numpy as np
import pytest
from helpers.features import text, vinvl, vinvl_image

from tfcap.preparing.features.ready import lines
from tfcap.preparing.features.ready.regions import checked
from tfcap.preparing.features.ready.vinvl import VinVL, line_index

IMAGES = {9: vinvl_image(1), 30: vinvl_image(2)}


def test_features_are_read_and_their_last_columns_give_the_boxes(tmp_path, monkeypatch):
    vinvl(tmp_path / "features.tsv", IMAGES)
    (tmp_path / "predictions.tsv").write_text('9\t{"objects": []}\n')
    monkeypatch.setattr(lines, "_scan", None)  # the .lineidx is used
    layout = VinVL(VinVL.recognises(tmp_path), None)
    assert layout.about() == "VinVL tsv, 1 file"
    for key, one in IMAGES.items():
        found = layout.read(str(key))
        np.testing.assert_array_equal(found.features, one.features)
        np.testing.assert_allclose(checked(found).boxes, one.unit, atol=1e-6)


def test_num_boxes_may_stand_behind_the_features(tmp_path):
    one = IMAGES[9]
    content = {"features": text(one.features).decode(), "num_boxes": len(one.features)}
    path = tmp_path / "a.tsv"
    path.write_text(f"9\t{json.dumps(content)}\n")
    layout = VinVL(VinVL.recognises(path), None)
    np.testing.assert_array_equal(layout.read("9").features, one.features)


@pytest.mark.parametrize(
    "index", ["", "0\n", "0\n5\n", "0\n-1\n", "0\nx\n", "0\n99999999\n", f"0\n{9**40}\n", "1\n"]
)
def test_an_index_that_does_not_fit_is_not_used(tmp_path, capsys, index):
    path = vinvl(tmp_path / "a.tsv", IMAGES)
    good = path.with_suffix(".lineidx").read_text()
    assert line_index(path).tolist() == [int(start) for start in good.split()]
    path.with_suffix(".lineidx").write_text(index)
    layout = VinVL([path], None)
    np.testing.assert_array_equal(layout.read("30").features, IMAGES[30].features)
    assert "a.lineidx does not fit a.tsv" in capsys.readouterr().out


@pytest.mark.parametrize(
    "content, message",
    [
        ("{", "Expecting property name"),
        ("[]", "not a JSON object"),
        ('{"features": "AAAA"}', "no 'num_boxes'"),
        ('{"num_boxes": true, "features": "AAAA"}', "num_boxes must be 1 to 10000"),
        ('{"num_boxes": 1e3, "features": "AAAA"}', "num_boxes must be 1 to 10000"),
        ('{"num_boxes": 1, "features": 3}', "features must be base64"),
        ('{"num_boxes": 1, "features": "AAAA"}', "1 x some float32 numbers. Received: 3 bytes"),
        ("[" * 100_000, "not a JSON object|Expecting value"),
        ('{"num_boxes": 1, "features": "\\ud800"}', "surrogates"),
    ],
)
def test_bad_lines_are_refused(tmp_path, content, message):
    path = vinvl(tmp_path / "a.tsv", IMAGES, index=False)
    path.write_text(f"{path.read_text()}7\t{content}\n")
    layout = VinVL(VinVL.recognises(path), None)
    with pytest.raises(ValueError, match=rf"a.tsv, 7 at byte \d+: .*({message})"):
        layout.read("7")
