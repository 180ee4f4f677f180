"""The page of a report holds all data, is safe against foreign text and is never incomplete."""

import base64
import io

import numpy as np
import pytest
from helpers import report_world
from PIL import Image

from tfcap.metrics.bootstrap import Compared
from tfcap.metrics.results import Scores
from tfcap.visualize import report
from tfcap.visualize.figures import full_strength


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    return report_world.write(tmp_path_factory.mktemp("report"))


def test_the_page_holds_scores_captions_references_and_pictures(written):
    path, result, (references, first, second), shown = written
    data = report_world.element(path, "data")
    assert data["title"] == "Tests <i>&" and "one note" in data["notes"]
    assert data["keys"] == ["BLEU-1", "BLEU-2", "BLEU-3", "BLEU-4", "CIDEr"]
    assert [run["name"] for run in data["runs"]] == ["first", "second & <b>"]
    for image in data["images"]:
        number = int(image["id"])  # as text: JavaScript rounds numbers above 2^53
        assert image["id"] == str(number) and image["refs"] == references[number]
        assert [run["text"] for run in image["runs"]] == [first[number], second[number]]
        score = result.scores["first"].per_image[number]["CIDEr"]
        assert image["runs"][0]["scores"][4] == pytest.approx(score, abs=1e-3)
        assert image["name"] == f"picture{image['id']}.png"
    (cider,) = [row for row in data["runs"][1]["scores"] if row["key"] == "CIDEr"]
    change = result.differences["second & <b>"]["CIDEr"]
    assert cider["change"] == pytest.approx(
        [change.value, change.low, change.high, "lower"], abs=1e-3
    )
    interval = result.intervals["second & <b>"]["CIDEr"]
    assert (cider["low"], cider["high"]) == pytest.approx((interval.low, interval.high), abs=1e-3)
    assert "plain tokenizer" in " ".join(data["notes"])
    small = report_world.element(path, "pictures")
    assert shown == report_world.IMAGES - 1 and small[6] is None
    with Image.open(io.BytesIO(base64.b64decode(small[0]))) as picture:
        assert picture.size == (160, 120) and picture.format == "JPEG"
        red, green, blue = picture.getpixel((45, 45))
        assert report_world.truth(1)[0] == "green" and green > 100 > max(red, blue)


def test_attention_is_stored_in_bytes_and_each_grid_once(written):
    data = report_world.element(written[0], "data")
    assert len(data["boxes"]) == 1  # one grid, written once
    assert "attended" not in data["images"][1]["runs"][0]  # image 2 has none
    boxes = np.frombuffer(base64.b64decode(data["boxes"][0][0]), "<u2").reshape(-1, 4) / 65535
    np.testing.assert_allclose(boxes, report_world.grid(4), atol=1e-5)
    first = data["images"][0]["runs"][0]["attended"]
    expected = report_world.attended(written[2][1][1])
    weights = np.frombuffer(base64.b64decode(first["weights"]), np.uint8).reshape(-1, 16)
    restored = weights * full_strength(expected.weights) / 255  # one scale for all words
    np.testing.assert_allclose(restored, expected.weights, atol=0.7 / 255)
    np.testing.assert_allclose(first["peaks"], expected.weights.max(1), atol=1e-4)
    assert (first["words"], first["kind"]) == (expected.words, "attention")
    assert data["boxes"][0][1] is True  # it is a grid


def test_foreign_text_cannot_end_its_element(written):
    text = written[0].read_text(encoding="utf-8")
    assert "onerror" in text and "<img" not in text and "</script><script>document" not in text
    assert text.count("<script") == text.count("</script>") == 4
    assert "<title>Tests &lt;i&gt;&amp;</title>" in text


def test_pictures_are_upright_on_white_and_bad_files_are_left_out(tmp_path):
    paths = {image: tmp_path / f"{image}.png" for image in (1, 2, 3)}
    turned = Image.new("RGB", (900, 600), "red")
    exif = turned.getexif()
    exif[0x0112] = 6  # the camera was held upright
    turned.save(paths[1], exif=exif)
    Image.new("RGBA", (20, 20), (0, 0, 0, 0)).save(paths[2])
    paths[3].write_bytes(b"GIF89a")
    first, second, third, none = report._thumbnails([*paths.values(), None])
    with Image.open(io.BytesIO(base64.b64decode(first))) as picture:
        assert picture.size == (213, 320) and picture.format == "JPEG"
    with Image.open(io.BytesIO(base64.b64decode(second))) as picture:
        assert min(picture.getpixel((10, 10))) > 250
    assert third is none is None


def test_nan_scores_are_written_as_null(tmp_path):
    path = tmp_path / "r.html"
    scores = Scores({"SPICE": float("nan")}, {1: {"SPICE": float("nan")}}, {"METEOR": "no Java"})
    compared = Compared({"a": scores}, {"a": {}}, {}, [])
    report.write(path, {"a": {1: "a dog"}}, compared, {1: ["a dog"]})
    data = report_world.element(path, "data")
    assert data["images"][0]["runs"][0]["scores"] == [None]
    assert data["notes"] == ["METEOR not computed: no Java"]
