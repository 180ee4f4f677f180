"""The page of a portable captioner in a real browser: pictures, no network, damaged files.

The tests of the page need Debian's chromium and chromium-driver, the package selenium, and once the
network for the engine; else they are skipped.
"""

import base64
import contextlib
import functools
import hashlib
import http.server
import json
import pathlib
import tarfile
import threading
import time

import numpy as np
import pytest
import tensorflow as tf
from helpers.browser import all_of, brightness, colours, one, requested, resize, start
from PIL import Image

from tfcap.backbones import swin
from tfcap.layers.trees import without_slice_updates
from tfcap.serving import saved_model, web


class Handler(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *args):
        """Prints nothing."""


@contextlib.contextmanager
def served(folder):
    """Serves a folder in the block; yields its address, and a function that ends it before."""
    handler = functools.partial(Handler, directory=folder)
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()

    def end():
        server.shutdown()
        server.server_close()

    try:
        yield f"http://127.0.0.1:{server.server_port}/", end
    finally:
        end()


# ---- the engine from npm


@pytest.fixture
def package(tmp_path, monkeypatch):
    """A folder that serves as npm, and its only package."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    file = tmp_path / "npm/@own/parts/-/parts-1.0.0.tgz"
    file.parent.mkdir(parents=True)
    with tarfile.open(file, "w:gz") as packed:
        packed.addfile(tarfile.TarInfo("package/part.js"))
    sha512 = base64.b64encode(hashlib.sha512(file.read_bytes()).digest()).decode()
    return tmp_path / "npm", web.Package("@own/parts", "1.0.0", sha512), file.read_bytes()


def test_an_archive_comes_from_npm_once_and_then_from_the_cache(package, tmp_path):
    npm, parts, content = package
    with served(npm) as (address, end):
        parts = parts._replace(registry=address.rstrip("/"))
        assert web.archive(parts) == content
        end()
        assert web.archive(parts) == content
        (kept,) = tmp_path.glob("cache/tfcap/npm/*")
        kept.write_bytes(content[:9])  # a damaged file is not used
        with pytest.raises(
            ValueError, match=r"failed: .*Run `npm pack @own/parts@1.0.0` else.*tgz"
        ):
            web.archive(parts)


def test_another_archive_than_the_known_one_is_refused(package, tmp_path):
    npm, parts, _ = package
    with served(npm) as (address, _):
        with pytest.raises(ValueError, match="is not the file that it was"):
            web.archive(parts._replace(registry=address.rstrip("/"), sha512="other"))
    assert not list(tmp_path.glob("cache/tfcap/npm/*"))


# ---- the page


@pytest.fixture(scope="module")
def browser():
    try:
        web.archive(web.ENGINE)
    except ValueError as error:
        pytest.skip(str(error))
    yield from start()


def fill(folder, function, side, words, **card):
    """Writes a portable captioner with the page."""
    spec = tf.TensorSpec([1, side, side, 3], tf.float32, "images")
    with without_slice_updates():
        traced = tf.function(function, autograph=False).get_concrete_function(images=spec)
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
        tokens, scores = search(model, model.encode({"features": features, "mask": mask}), None)
        return {"tokens": tokens, "scores": scores}

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
    with served(captioner_folder) as (address, end):
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
    """Pages whose scores are the pixels that the model reads; by the kind of resizing."""

    def read(images):
        return {
            "tokens": tf.ones([1, 4 * 4 * 3, 1], tf.int32),
            "scores": tf.reshape(images, [1, -1]),
        }

    folder, words = tmp_path_factory.mktemp("pixels"), ["<pad>", "word"]
    return {how: fill(folder / how, read, 4, words, resize=how) for how in ("bilinear", "pillow")}


@pytest.mark.parametrize("how", ["bilinear", "pillow"])
def test_the_model_reads_the_pixels_that_python_would_give_it(
    browser, pixel_folders, tmp_path, how
):
    with served(pixel_folders[how]) as (address, _):
        browser.get(address)
        wait(browser, "Ready.")
        for size in ((90, 70), (2, 3), (5000, 1000)):  # the last one is read in two strips
            pixels = drawn(tmp_path / "some.png", size)
            _, read = show(browser, tmp_path / "some.png")
            wanted = tf.image.resize(pixels, [4, 4], antialias=True)
            wanted = swin.resize(tf.constant(pixels), 4) if how == "pillow" else wanted
            assert read == pytest.approx(wanted.numpy().ravel(), abs=0.006)


def test_a_photograph_is_turned_upright_and_its_transparency_is_black(
    browser, pixel_folders, tmp_path
):
    exif = Image.Exif()
    exif[0x0112] = 6
    pixels = drawn(tmp_path / "turned.jpg", (63, 49), quality=100, subsampling=0, exif=exif)
    glass = np.zeros([8, 8, 4], np.uint8)
    Image.fromarray(glass).save(tmp_path / "glass.png")
    with served(pixel_folders["bilinear"]) as (address, _):
        browser.get(address)
        wait(browser, "Ready.")
        _, read = show(browser, tmp_path / "turned.jpg")
        wanted = tf.image.resize(np.rot90(pixels, -1), [4, 4], antialias=True)
        assert read == pytest.approx(wanted.numpy().ravel(), abs=2)
        assert not any(show(browser, tmp_path / "glass.png")[1])


def test_a_damaged_picture_is_named_and_the_page_goes_on(browser, pixel_folders, tmp_path):
    (tmp_path / "cut.png").write_bytes(b"\x89PNG\r\n\x1a\n")
    drawn(tmp_path / "whole.png", (20, 20))
    with served(pixel_folders["bilinear"]) as (address, _):
        browser.get(address)
        wait(browser, "Ready.")
        one(browser, "#file").send_keys(str(tmp_path / "cut.png"))
        wait(browser, "cut.png is no picture that this browser can read, or it is damaged.")
        assert not one(browser, "#shown").is_displayed()
        assert len(show(browser, tmp_path / "whole.png")[0]) == 48


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
    with served(tmp_path) as (address, _):
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
    with served(captioner_folder) as (address, _):
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
