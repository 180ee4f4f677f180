"""The page of a report holds all data, is safe against foreign text and is never incomplete."""

import base64
import dataclasses
import hashlib
import io
import re

import numpy as np
import pytest
from helpers import report_world
from PIL import Image

from tfcap import report
from tfcap.metrics.results import Scores
from tfcap.report import pictures
from tfcap.shading import full_strength


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    return report_world.write(tmp_path_factory.mktemp("report"))


def small_run(name="a", image=1, **changes):
    run = report.Run(name, {image: "a dog"}, Scores({"CIDEr": 1.0}, {image: {"CIDEr": 1.0}}))
    return dataclasses.replace(run, **changes)


def test_the_page_holds_scores_captions_references_and_pictures(written):
    path, found, (references, first, second), shown = written
    data = report_world.element(path, "data")
    assert data["title"] == "Tests <i>&" and "one note" in data["notes"]
    assert data["keys"] == ["BLEU-1", "BLEU-2", "BLEU-3", "BLEU-4", "CIDEr"]
    assert [run["name"] for run in data["runs"]] == ["first", "second & <b>"]
    for image in data["images"]:
        number = int(image["id"])  # as text: JavaScript rounds numbers above 2^53
        assert image["id"] == str(number) and image["refs"] == references[number]
        assert [run["text"] for run in image["runs"]] == [first[number], second[number]]
        score = found.scores["first"].per_image[number]["CIDEr"]
        assert image["runs"][0]["scores"][4] == pytest.approx(score, abs=1e-3)
        assert image["name"] == f"picture{image['id']}.png"
    (cider,) = [row for row in data["runs"][1]["scores"] if row["key"] == "CIDEr"]
    change = found.differences["second & <b>"]["CIDEr"]
    assert cider["change"] == pytest.approx(
        [change.value, change.low, change.high, "lower"], abs=1e-3
    )
    interval = found.intervals["second & <b>"]["CIDEr"]
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
    assert "seen" not in data["images"][1]["runs"][0]  # image 2 has none
    boxes = np.frombuffer(base64.b64decode(data["boxes"][0][0]), "<u2").reshape(-1, 4) / 65535
    np.testing.assert_allclose(boxes, report_world.grid(4), atol=1e-5)
    first = data["images"][0]["runs"][0]["seen"]
    expected = report_world.attended(written[2][1][1])
    weights = np.frombuffer(base64.b64decode(first["weights"]), np.uint8).reshape(-1, 16)
    restored = weights * full_strength(expected.weights) / 255  # one scale for all words
    np.testing.assert_allclose(restored, expected.weights, atol=0.7 / 255)
    np.testing.assert_allclose(first["peaks"], expected.weights.max(1), atol=1e-4)
    assert (first["words"], first["kind"]) == (expected.words, "attention")
    assert data["boxes"][0][1] is True  # it is a grid
    assert not pictures.tiles(np.array([[0, 0, 0.5, 0.5], [0.4, 0.4, 0.9, 0.9]]))
    assert not pictures.tiles(np.array([[0, 0, 0.5, 1], [0.5, 0, 1, 0.8]]))


def test_foreign_text_cannot_end_its_element(written):
    text = written[0].read_text(encoding="utf-8")
    assert "onerror" in text and "<img" not in text and "</script><script>document" not in text
    assert text.count("<script") == text.count("</script>") == 6
    assert "<title>Tests &lt;i&gt;&amp;</title>" in text


def test_the_content_policy_allows_only_the_scripts_of_the_page(written):
    text = written[0].read_text(encoding="utf-8")
    (policy,) = re.findall(r'Content-Security-Policy" content="([^"]*)"', text)
    rules = dict(rule.strip().split(" ", 1) for rule in policy.split(";"))
    assert rules["default-src"] == "'none'" and rules["img-src"] == "data:"
    for tag, rule in (("script", "script-src"), ("style", "style-src")):
        bodies = re.findall(f"<{tag}>(.*?)</{tag}>", text, re.DOTALL)
        hashes = [
            "'sha256-" + base64.b64encode(hashlib.sha256(body.encode()).digest()).decode() + "'"
            for body in bodies
        ]
        assert hashes and rules[rule].split() == hashes
    assert not re.findall(r"""<\w[^<>]*\b(?:src|href|action)\s*=\s*(?!["']?(?:#|data:))""", text)
    addresses = set(re.findall(r"https?://[^\s\"']+", text))
    assert addresses == {
        "http://www.w3.org/2000/svg"
    }  # the name of the SVG namespace, which is not loaded


def test_a_title_that_looks_like_a_placeholder_stays_a_title(tmp_path):
    path = tmp_path / "r.html"
    report.write(path, [small_run()], {1: ["a dog"]}, title="{{data}} {{script}} {{pictures}}")
    assert report_world.element(path, "data")["title"] == "{{data}} {{script}} {{pictures}}"
    assert report_world.element(path, "pictures") == [None]


def test_the_same_input_gives_the_same_page(tmp_path, written):
    assert report_world.write(tmp_path)[0].read_bytes() == written[0].read_bytes()


@pytest.mark.parametrize("error", [OSError("disk gone"), KeyboardInterrupt()])
def test_after_an_error_the_old_page_remains(tmp_path, error):
    path = tmp_path / "report.html"
    path.write_text("the old one")

    def picture(image):
        if image == 2:
            raise error
        return None

    two = Scores({}, {1: {}, 2: {}})
    run = report.Run("a", {1: "a", 2: "b"}, two)
    with pytest.raises(type(error)):
        report.write(path, [run], {1: ["a"], 2: ["b"]}, picture)
    assert path.read_text() == "the old one"
    assert [item.name for item in tmp_path.iterdir()] == ["report.html"]


def test_pictures_may_be_bytes_with_given_names(tmp_path):
    stream = io.BytesIO()
    Image.new("L", (900, 600), 128).save(stream, "PNG")
    path = tmp_path / "r.html"
    shown = report.write(
        path, [small_run()], {1: ["a"]}, lambda image: stream.getvalue(), names={1: "mine.png"}
    )
    assert shown == 1
    assert report_world.element(path, "data")["images"][0]["name"] == "mine.png"
    (small,) = report_world.element(path, "pictures")
    with Image.open(io.BytesIO(base64.b64decode(small))) as picture:
        assert picture.size == (320, 213)


def test_pictures_are_turned_upright_and_put_on_white():
    stream = io.BytesIO()
    turned = Image.new("RGB", (60, 30), "red")
    exif = turned.getexif()
    exif[0x0112] = 6  # the camera was held upright
    turned.save(stream, "JPEG", exif=exif)
    with Image.open(io.BytesIO(pictures.thumbnail(stream.getvalue()))) as picture:
        assert picture.size == (30, 60)
    stream = io.BytesIO()
    Image.new("RGBA", (20, 20), (0, 0, 0, 0)).save(stream, "PNG")
    with Image.open(io.BytesIO(pictures.thumbnail(stream.getvalue()))) as picture:
        assert min(picture.getpixel((10, 10))) > 250


@pytest.mark.parametrize("content", [b"", b"GIF89a", b"\xff\xd8\xff\xe0 cut off"])
def test_files_that_are_not_pictures_are_left_out(content):
    with pytest.raises(ValueError, match="not a picture that can be read"):
        pictures.thumbnail(content)
    assert list(pictures.thumbnails([1, 2], {1: "/nowhere.jpg"})) == [None, None]
    assert list(pictures.thumbnails([1], lambda image: content)) == [None]


def test_zero_and_nan_weights_are_encoded():
    packed, peaks = pictures.packed_weights(np.array([[0.0, 0.0], [np.nan, 2.0]]))
    assert base64.b64decode(packed) == bytes([0, 0, 0, 255]) and peaks == [0.0, 2.0]


def test_runs_that_do_not_belong_together_are_refused(tmp_path):
    path, references = tmp_path / "r.html", {1: ["a dog"]}
    other = report_world.attended("a cat")
    for runs, message in (
        ([], "at least one run"),
        ([small_run(), small_run()], "different names. Received: 'a' twice"),
        ([small_run(), small_run("b", image=2)], "no references for image 2"),
        ([small_run(scores=Scores({}, {2: {}}))], "no references for image 2"),
        (
            [small_run(attention={1: other})],
            "image 1, must belong to the caption 'a dog'. Received: 'a cat'",
        ),
    ):
        with pytest.raises(ValueError, match=message):
            report.write(path, runs, references)
    assert not list(tmp_path.iterdir())
    with pytest.raises(OSError, match="No such file"):
        report.write(tmp_path / "no" / "r.html", [small_run()], references)


def test_nan_scores_are_written_as_null(tmp_path):
    path = tmp_path / "r.html"
    scores = Scores({"SPICE": float("nan")}, {1: {"SPICE": float("nan")}}, {"METEOR": "no Java"})
    report.write(path, [small_run(scores=scores)], {1: ["a dog"]})
    data = report_world.element(path, "data")
    assert data["images"][0]["runs"][0]["scores"] == [None]
    assert data["notes"] == ["METEOR not computed: no Java"]
