"""The page of a portable captioner in a real browser: pictures, no network, damaged files.

The tests need Debian's chromium and chromium-driver and the package selenium, else are skipped.
"""

import json
import pathlib
import time

import numpy as np
import pytest
import tensorflow as tf
from helpers.browser import all_of, brightness, colours, one, requested, resize, start
from helpers.webpages import folder_served
from PIL import Image, ImageCms

from tfcap import segmentation
from tfcap.backbones import swin
from tfcap.layers.trees import portable_graphs
from tfcap.serving import saved_model, web

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def browser():
    yield from start()


def fill(folder, function, side, words, specs=None, **card):
    """Writes a portable captioner with the page."""
    specs = {"images": tf.TensorSpec([1, side, side, 3], tf.float32, "images"), **(specs or {})}
    with portable_graphs():
        traced = tf.function(function, autograph=False).get_concrete_function(**specs)
    owner = tf.Module()
    owner.read = list(traced.variables)
    converter = tf.lite.TFLiteConverter.from_concrete_functions([traced], owner)
    folder.mkdir()
    (folder / "captioner.tflite").write_bytes(converter.convert())
    (folder / "words.txt").write_text("\n".join(words) + "\n", encoding="utf-8")
    card = {
        "file": "captioner.tflite",
        "image_size": side,
        "title": "Mine",
        "licence": "Own",
        **card,
    }
    (folder / "captioner.json").write_text(json.dumps(card))
    web.write(str(folder))
    return folder


@pytest.fixture(scope="module")
def captioner_folder(run, browser, tmp_path_factory):
    """The page of a small trained captioner."""
    captions = saved_model.server(run)
    backbone, model, search = captions.require_backbone(), captions.model, captions.search

    def caption(images):
        features = backbone.extract(images)
        mask = tf.ones(tf.shape(features)[:2], tf.bool)
        found = search(model, model.encode({"features": features, "mask": mask}), None)
        return {"tokens": found.tokens, "scores": found.scores}

    folder = tmp_path_factory.mktemp("web") / "captioner"
    return fill(folder, caption, backbone.decoded_shape[0], run.vocab.words, resize="bilinear")


def python_captions(folder, images):
    """(captions [K], scores [K]) of resized pixels [side, side, 3], by LiteRT for Python."""
    from ai_edge_litert.interpreter import Interpreter

    runner = Interpreter(str(folder / "captioner.tflite")).get_signature_runner()
    result = runner(images=np.asarray(images, np.float32)[None])
    words = (folder / "words.txt").read_text().splitlines()
    ids = [[int(token) for token in row if token > 2] for row in result["tokens"][0]]
    return [" ".join(words[token] for token in row) for row in ids], result["scores"][0]


def until(condition, seconds=60):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "nothing came"
        time.sleep(0.02)


def wait(page, beginning):
    until(lambda: one(page, "#state").text.startswith(beginning))


def show(page, picture):
    """Gives the page a picture; returns the captions and scores that it shows."""
    one(page, "#file").send_keys(str(picture))
    wait(page, f"Captioned {pathlib.Path(picture).name}")
    rows = [row.text.split(maxsplit=1) for row in all_of(page, "#beams li")]
    return [row[1] for row in rows], [float(row[0].replace("\u2212", "-")) for row in rows]


def drawn(path, size, seed=1, **options):
    """Draws a picture of coloured squares, [height, width] pixels, and saves it."""
    squares = np.random.default_rng(seed).integers(0, 256, (9, 7, 3), np.uint8)
    image = Image.fromarray(squares).resize(size[::-1], Image.Resampling.NEAREST)
    image.save(path, **options)
    return np.asarray(image)


def test_the_page_captions_as_python_does_and_then_without_network(
    browser, captioner_folder, tmp_path
):
    side = json.loads((captioner_folder / "captioner.json").read_text())["image_size"]
    wanted = []
    for seed in range(2):
        pixels = drawn(tmp_path / f"{seed}.png", (300, 400), seed)
        resized = tf.image.resize(pixels, [side, side], antialias=True)
        wanted.append(python_captions(captioner_folder, resized))
    with folder_served(captioner_folder) as (address, end):
        requested(browser)
        browser.get(address)
        wait(browser, "Ready.")
        assert one(browser, "#about").text == "Mine · Own"
        texts, scores = show(browser, tmp_path / "0.png")
        assert texts == [text or "(empty)" for text in wanted[0][0]]
        assert scores == pytest.approx(wanted[0][1], abs=0.006)
        assert one(browser, "#text").text == texts[0]
        until(lambda: one(browser, "#offline").is_displayed())
        end()
        assert show(browser, tmp_path / "1.png")[0] == [text or "(empty)" for text in wanted[1][0]]
        browser.get(address)
        wait(browser, "Ready.")
        assert show(browser, tmp_path / "0.png")[0] == texts
        assert not [
            url
            for url in requested(browser)
            if not url.startswith((address, f"blob:{address}", "data:"))
        ]
    assert browser.get_log("browser") == []  # no error of a script and no blocked request


@pytest.fixture(scope="module")
def pixel_folders(browser, tmp_path_factory):
    """Pages whose scores are the pixels that the model reads; by the kind of resizing.

    The model has the random draws of one that samples, from 0 to below 1.
    """

    def read(images, draws):
        read = images + tf.floor(draws)
        return {"tokens": tf.ones([1, 4 * 4 * 3, 1], tf.int32), "scores": tf.reshape(read, [1, -1])}

    folder, words = tmp_path_factory.mktemp("pixels"), ["<pad>", "word"]
    specs = {"draws": tf.TensorSpec([1, 4, 4, 1], tf.float32, "draws")}
    ways = ("bilinear", "pillow")
    return {how: fill(folder / how, read, 4, words, specs, resize=how) for how in ways}


def test_words_of_a_language_without_spaces_are_shown_joined_with_the_confidence(browser, tmp_path):
    def caption(images):
        tokens = tf.constant([[[3, 4, 5, 6, 2, 3]]], tf.int32) + tf.cast(
            0 * images[0, 0, 0, 0], tf.int32
        )
        zero = 0 * images[:, 0, 0, 0][None]
        return {"tokens": tokens, "scores": zero - 1, "confidences": zero + 0.25}

    words = ["<pad>", "<bos>", "<eos>", "两", "只", "hot", "dog"]
    joining = {"joining": segmentation.JOINING}
    folder = fill(tmp_path / "page", caption, 4, words, resize="bilinear", **joining)
    drawn(tmp_path / "some.png", (8, 8))
    with folder_served(folder) as (address, _):
        browser.get(address)
        wait(browser, "Ready.")
        assert not one(browser, "#confidence").is_displayed()
        assert show(browser, tmp_path / "some.png")[0] == ["两只hot dog"]
        assert one(browser, "#confidence").text == "confidence 0.25"


@pytest.mark.parametrize("how", ["bilinear", "pillow"])
def test_the_model_reads_the_pixels_that_python_would_give_it(
    browser, pixel_folders, tmp_path, how
):
    with folder_served(pixel_folders[how]) as (address, _):
        browser.get(address)
        wait(browser, "Ready.")
        for size in ((90, 70), (2, 3), (5000, 1000)):  # the last one is read in two strips
            pixels = drawn(tmp_path / "some.png", size)
            _, read = show(browser, tmp_path / "some.png")
            wanted = tf.image.resize(pixels, [4, 4], antialias=True)
            wanted = swin.resize(tf.constant(pixels), 4) if how == "pillow" else wanted
            assert read == pytest.approx(wanted.numpy().ravel(), abs=0.006)


def test_pictures_are_turned_upright_and_keep_their_numbers(browser, pixel_folders, tmp_path):
    """Transparent parts become black, and profiles of colours are ignored."""
    exif = Image.Exif()
    exif[0x0112] = 6
    pixels = drawn(tmp_path / "turned.jpg", (63, 49), quality=100, subsampling=0, exif=exif)
    Image.fromarray(np.zeros([8, 8, 4], np.uint8)).save(tmp_path / "glass.png")
    profile = ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB")).tobytes()
    swapped = profile.replace(b"rXYZ", b"....").replace(b"gXYZ", b"rXYZ").replace(b"....", b"gXYZ")
    numbers = drawn(tmp_path / "swapped.png", (4, 4), icc_profile=swapped)
    with folder_served(pixel_folders["bilinear"]) as (address, _):
        browser.get(address)
        wait(browser, "Ready.")
        _, read = show(browser, tmp_path / "turned.jpg")
        wanted = tf.image.resize(np.rot90(pixels, -1), [4, 4], antialias=True)
        assert read == pytest.approx(wanted.numpy().ravel(), abs=2)
        assert not any(show(browser, tmp_path / "glass.png")[1])
        assert show(browser, tmp_path / "swapped.png")[1] == numbers.ravel().tolist()


def test_a_damaged_picture_is_named_and_the_page_goes_on(browser, pixel_folders, tmp_path):
    (tmp_path / "cut.png").write_bytes(b"\x89PNG\r\n\x1a\n")
    drawn(tmp_path / "whole.png", (20, 20))
    with folder_served(pixel_folders["bilinear"]) as (address, _):
        browser.get(address)
        wait(browser, "Ready.")
        one(browser, "#file").send_keys(str(tmp_path / "cut.png"))
        wait(browser, "cut.png is no picture that this browser can read, or it is damaged.")
        assert not one(browser, "#shown").is_displayed()
        assert len(show(browser, tmp_path / "whole.png")[0]) == 48


# Gives the page files, as a file manager and the clipboard do; the picture is a canvas.
GIVE = """
const [kind, ...names] = arguments, data = new DataTransfer(), done = names.pop();
document.createElement("canvas").toBlob((blob) => {
  for (const name of names) {
    data.items.clear();
    if (name) data.items.add(new File([blob], name));
    else data.items.add("text", "text/plain");
    dispatchEvent(kind === "drop" ? new DragEvent(kind, { dataTransfer: data })
      : new ClipboardEvent(kind, { clipboardData: data }));
  }
  done();
});
"""
WATCH = """
const state = document.getElementById("state");
told = [];
new MutationObserver(() => told.push(state.textContent)).observe(state, { childList: true });
"""


@pytest.mark.parametrize("kind", ["drop", "paste"])
def test_pictures_are_dropped_and_pasted_and_the_last_one_counts(browser, pixel_folders, kind):
    with folder_served(pixel_folders["bilinear"]) as (address, _):
        browser.get(address)
        wait(browser, "Ready.")
        browser.execute_async_script(GIVE, kind, "")
        wait(browser, "Only files can be dropped and pasted.")
        browser.execute_script(WATCH)
        browser.execute_async_script(GIVE, kind, "one.png", "two.png")
        wait(browser, "Captioned two.png")
        assert len(all_of(browser, "#beams li")) == 48
        assert "Captioned one.png" not in str(browser.execute_script("return told"))


@pytest.mark.parametrize(
    "name, content, reason",
    [
        ("captioner.tflite", b"no model", r"Failed to load model from buffer"),
        ("words.txt", None, "words.txt: 404"),
        ("engine/litert_wasm_compat_internal.js", None, ""),
    ],
)
def test_a_folder_that_is_not_whole_says_so(
    browser, pixel_folders, tmp_path, name, content, reason
):
    for file in pixel_folders["bilinear"].rglob("*.*"):
        if file.is_file() and file.name != "offline.js":
            target = tmp_path / file.relative_to(pixel_folders["bilinear"])
            target.parent.mkdir(exist_ok=True)
            target.write_bytes(file.read_bytes())
    if content is None:
        (tmp_path / name).unlink()
    else:
        (tmp_path / name).write_bytes(content)
    with folder_served(tmp_path) as (address, _):
        browser.get(address)
        wait(browser, "The captioner ")
        assert reason in one(browser, "#state").text
        assert "opy the whole folder to the host again." in one(browser, "#state").text
    browser.get_log("browser")


def test_a_page_from_a_file_says_what_to_do(browser, pixel_folders):
    browser.get((pixel_folders["bilinear"] / "index.html").as_uri())
    wait(browser, "Browsers do not run this page from a file. Run python -m http.server")


def test_the_page_is_dark_where_the_system_is_and_fits_on_a_telephone(
    browser, captioner_folder, tmp_path
):
    drawn(tmp_path / "some.png", (300, 400))
    with folder_served(captioner_folder) as (address, _):
        resize(browser, 390, 844, mobile=True)
        browser.get(address)
        wait(browser, "Ready.")
        assert one(browser, "#camera").is_displayed()
        show(browser, tmp_path / "some.png")
        assert browser.execute_script("return document.documentElement.scrollWidth") == 390
        colours(browser, "light")
        light = brightness(browser)
        colours(browser, "dark")
        assert brightness(browser) < light - 80
    resize(browser, 1280, 900)
    colours(browser, "light")
