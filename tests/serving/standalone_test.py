"""The script of a portable export reads and resizes pictures as the graph does, without it."""

import io
import itertools
import json
import pathlib
import shutil
import struct
import subprocess
import sys
import types
import zlib

import numpy as np
import pytest
import tensorflow as tf
from helpers import picture_bytes
from PIL import Image

from tfcap.backbones import backbone, hub, network, swin
from tfcap.data import pictures
from tfcap.serving.standalone import caption

SCRIPT = pathlib.Path(caption.__file__)
HEIGHT, WIDTH = 33, 47  # odd, so that the last block of a JPEG is cut


def noise(channels=3, height=HEIGHT, width=WIDTH, values=256):
    shape = (height, width, channels) if channels > 1 else (height, width)
    return np.random.default_rng(channels).integers(0, values, shape, np.uint8)


def scene(mode="RGB"):
    """Noise upon a slope, which JPEG does not flatten."""
    slope = np.add.outer(np.arange(HEIGHT) * 3, np.arange(WIDTH) * 2)[..., None]
    return Image.fromarray(((noise() // 4 + slope) % 256).astype(np.uint8)).convert(mode)


def saved(image, form, **options):
    stream = io.BytesIO()
    image.save(stream, form, **options)
    return stream.getvalue()


def exif(number):
    tags = Image.Exif()
    tags[0x010F], tags[0x0112] = "a camera", number
    return tags


def png(depth, colour, values, *chunks):
    """A PNG file of the bytes of its pixels [H, bytes of a row], with further chunks before."""

    def chunk(name, content):
        return (
            struct.pack(">I", len(content))
            + name
            + content
            + struct.pack(">I", zlib.crc32(name + content))
        )

    rows = b"".join(b"\0" + row.tobytes() for row in values)
    parts = [(b"IHDR", struct.pack(">IIBBBBB", WIDTH, HEIGHT, depth, colour, 0, 0, 0)), *chunks]
    parts += [(b"IDAT", zlib.compress(rows)), (b"IEND", b"")]
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunk(*part) for part in parts)


def palette(count):
    image = Image.fromarray(noise(1, values=count), "P")
    image.putpalette(noise(1, 1, 3 * count).tobytes())
    return image


def without_adobe(content):
    start = content.index(b"\xff\xee")
    length = int.from_bytes(content[start + 2 : start + 4], "big")
    return content[:start] + content[start + 2 + length :]


def gif(first, **options):
    """A GIF whose first frame leaves a part of the screen free. The colour 0 is no black."""
    content = picture_bytes.gif((60, 40), [first, (noise(1, 9, 12), 5, 21)], **options)
    return content[:13] + b"\x10\x80\xf0" + content[16:]


FILES = {
    "JPEG": lambda: saved(scene(), "JPEG"),
    "JPEG 4:4:4": lambda: saved(scene(), "JPEG", subsampling=0, quality=98),
    "JPEG 4:2:2": lambda: saved(scene(), "JPEG", subsampling=1),
    "JPEG of RGB": lambda: saved(scene(), "JPEG", keep_rgb=True),
    "progressive JPEG": lambda: saved(scene(), "JPEG", progressive=True, quality=60),
    "grey JPEG": lambda: saved(scene("L"), "JPEG"),
    "CMYK JPEG": lambda: saved(Image.fromarray(noise(4), "CMYK"), "JPEG"),
    "CMYK JPEG of no Adobe": lambda: without_adobe(
        saved(Image.fromarray(noise(4), "CMYK"), "JPEG")
    ),
    "MPO": lambda: saved(scene(), "MPO", save_all=True, append_images=[scene("L")], exif=exif(6)),
    **{
        f"JPEG turned {number}": lambda number=number: saved(scene(), "JPEG", exif=exif(number))
        for number in range(9)
    },
    "PNG": lambda: saved(scene(), "PNG"),
    "PNG, turned": lambda: saved(scene(), "PNG", exif=exif(8)),
    "PNG, turned behind the pixels": lambda: (
        lambda content: (
            content[:-12] + content[33 : 33 + content.index(b"IDAT") - 37] + content[-12:]
        )
    )(saved(scene(), "PNG", exif=exif(8))),
    "PNG of 1 bit": lambda: saved(scene("1"), "PNG"),
    "grey PNG of 2 bits": lambda: png(2, 0, noise(1, HEIGHT, -(-WIDTH // 4))),
    "grey PNG of 4 bits": lambda: png(4, 0, noise(1, HEIGHT, -(-WIDTH // 2))),
    "grey PNG": lambda: saved(scene("L"), "PNG"),
    "grey PNG with a transparent shade": lambda: saved(scene("L"), "PNG", transparency=77),
    "grey PNG of 16 bits": lambda: png(16, 0, noise(1, HEIGHT, 2 * WIDTH)),
    "dark PNG of 16 bits": lambda: png(16, 0, noise(1, HEIGHT, 2 * WIDTH) // [[128] * WIDTH * 2]),
    "RGB PNG of 16 bits": lambda: png(16, 2, noise(1, HEIGHT, 6 * WIDTH)),
    "grey and alpha PNG": lambda: saved(Image.fromarray(noise(2), "LA"), "PNG"),
    "grey and alpha PNG of 16 bits": lambda: png(16, 4, noise(1, HEIGHT, 4 * WIDTH)),
    "RGBA PNG": lambda: saved(Image.fromarray(noise(4)), "PNG"),
    "RGBA PNG of 16 bits": lambda: png(16, 6, noise(1, HEIGHT, 8 * WIDTH)),
    "RGB PNG with a transparent colour": lambda: saved(scene(), "PNG", transparency=(1, 2, 3)),
    "PNG with a gamma": lambda: png(8, 2, noise(1, HEIGHT, 3 * WIDTH), (b"gAMA", b"\0\0\x80\0")),
    "palette PNG": lambda: saved(palette(256), "PNG"),
    "palette PNG of 2 bits": lambda: saved(palette(3), "PNG", bits=2),
    "palette PNG with transparency": lambda: saved(palette(9), "PNG", transparency=bytes(range(9))),
    "GIF": lambda: saved(scene(), "GIF"),
    "grey GIF": lambda: saved(scene("L"), "GIF"),
    "GIF with a small frame": lambda: gif((noise(1, 10, 20), 30, 15)),
    "GIF with a transparent small frame": lambda: gif(
        (noise(1, 10, 20, 4), 30, 15), transparency=2
    ),
    "GIF with a frame beyond its screen": lambda: gif((noise(1, 30, 50), 30, 15)),
    "interlaced GIF": lambda: gif((noise(1, 10, 20), 3, 5), interlace=1, local=True),
    "BMP": lambda: saved(scene(), "BMP"),
    "WebP": lambda: saved(scene(), "WEBP", quality=70),
    "WebP with transparency": lambda: saved(Image.fromarray(noise(4)), "WEBP", quality=70),
    "lossless WebP": lambda: saved(scene(), "WEBP", lossless=True),
    "lossless WebP with transparency": lambda: saved(
        Image.fromarray(noise(4)), "WEBP", lossless=True, exact=True
    ),
    "WebP, turned": lambda: saved(scene(), "WEBP", lossless=True, exif=exif(5)),
}


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("name", FILES)
def test_a_picture_has_the_pixels_that_the_graph_decodes(name):
    content = FILES[name]()
    result = caption.pixels(content)
    assert result.dtype == np.uint8 and result.flags.c_contiguous
    np.testing.assert_array_equal(result, pictures.read(content))


@pytest.mark.parametrize("form", ["JPEG", "PNG", "BMP", "GIF", "WEBP"])
def test_a_cut_file_is_an_error_where_it_is_one_in_the_graph(form):
    whole = saved(scene(), form)
    for end in range(0, len(whole) - 20, 1 + len(whole) // 20):
        for read in (caption.pixels, pictures.read):
            with pytest.raises(ValueError, match="damaged|empty|truncated"):
                read(whole[:end])


def test_a_file_that_claims_too_many_pixels_is_an_error():
    with pytest.raises(ValueError, match="it is damaged, too large, or no JPEG"):
        caption.pixels(picture_bytes.claiming("JPEG", 30_000, 30_000))


SIZES = [(1, 7), (1, 1), (100, 80), (375, 500), (3000, 4000), (5000, 30)]


def picture(height, width):
    return np.random.default_rng(height).integers(0, 256, (height, width, 3), np.uint8)


@pytest.mark.parametrize("height, width", SIZES)
@pytest.mark.parametrize("kind", ["bilinear", "pillow"])
def test_a_picture_is_resized_as_in_the_graph(kind, height, width):
    pixels = picture(height, width)
    before = pixels.copy()
    for side in (96, 224, 384) if height < 1000 else (224,):
        if kind == "pillow":
            expected = swin.resize(tf.constant(pixels), side)
        else:
            expected = network.Network(None, 1, 1, side).resize(tf.constant(pixels))
        result = caption.resized(pixels, {"image_size": side, "resize": kind})
        assert result.dtype == np.float32 and result.flags.c_contiguous
        difference = np.abs(result - expected)
        if kind == "pillow":  # both round, and may round another sum
            assert difference.max() <= 1 and (difference > 0).mean() < 1e-3
        else:
            assert difference.max() < 1e-3
    np.testing.assert_array_equal(pixels, before)


@pytest.mark.parametrize("height, width", [(1, 7), (100, 80), (375, 500), (2000, 30)])
@pytest.mark.parametrize("kernel", ["bilinear", "bicubic", "lanczos3"])
def test_a_picture_is_resized_as_presets_resize_it(kernel, height, width):
    pixels = picture(height, width)
    for antialias, square, whole in itertools.product([True, False], [True, False], [64, 73]):
        options = {"antialias": antialias, "crop_to_aspect_ratio": square, "interpolation": kernel}
        preset = object.__new__(hub.Hub)
        preset.image_size, preset._uncropped = 64, whole
        preset._converter = types.SimpleNamespace(**options)
        expected = preset.resize(tf.constant(pixels))
        card = {"image_size": 64, "resize": kernel, "square": square}
        card |= {"uncropped": whole} if whole > 64 else {"antialias": antialias}
        difference = np.abs(caption.resized(pixels, card) - expected)
        if whole > 64:
            assert difference.max() <= 1 and (difference > 0).mean() < 1e-2
        else:  # without antialias TensorFlow takes its bicubic weights from a table
            assert difference.max() < (0.5 if not antialias and kernel == "bicubic" else 0.05)


@pytest.mark.parametrize("height, width", [(1, 7), (100, 80), (375, 500), (3000, 50)])
def test_ten_crops_are_those_of_the_graph(height, width):
    pixels = picture(height, width)
    ten = backbone.Backbone("small_cnn", crops=10, image_size=64)
    expected = ten.resize(tf.constant(pixels))
    result = caption.resized(pixels, {"image_size": 64, "resize": "bilinear", "crops": 10})
    np.testing.assert_allclose(result, expected, atol=1e-3)


WITHOUT_TENSORFLOW = """
import sys
sys.modules |= dict.fromkeys(["tensorflow", "keras", "absl"])  # importing them raises
from tfcap.serving.standalone import caption
pixels = caption.pixels(sys.stdin.buffer.read())
picture = caption.resized(pixels, {"image_size": 8, "resize": "pillow"})
sys.exit(picture.shape != (8, 8, 3))
"""


def test_the_script_is_imported_without_tensorflow():
    root = SCRIPT.parents[3]
    command = [sys.executable, "-c", WITHOUT_TENSORFLOW]
    assert subprocess.run(command, input=saved(scene(), "JPEG"), cwd=root).returncode == 0


def portable(folder, function, **card):
    """Writes a portable export of a function; it says "a dog" and then "<unk> a dog" of all."""
    pytest.importorskip("ai_edge_litert", reason="runs LiteRT")
    model = tf.Module()
    model.function = function
    converter = tf.lite.TFLiteConverter.from_concrete_functions(
        [function.get_concrete_function()], model
    )
    (folder / "captioner.tflite").write_bytes(converter.convert())
    (folder / "words.txt").write_text("<pad>\n<bos>\n<eos>\n<unk>\na\ndog\n")
    card = {"samples": None} | card | {"file": "captioner.tflite", "words": "words.txt"}
    (folder / "captioner.json").write_text(json.dumps(card))
    shutil.copy(SCRIPT, folder)
    return folder


def said(number):
    tokens = tf.constant([[[4, 5, 2, 0], [1, 3, 4, 5]]])
    return {
        "tokens": tokens,
        "scores": number + tf.constant([[0.0, -1.0]]),
        "log_probs": number * tf.cast(tokens, tf.float32),
    }


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A portable export for pictures, and a grey picture."""

    @tf.function(input_signature=[tf.TensorSpec([1, 8, 8, 3], tf.float32, "images")])
    def function(images):
        return said(tf.reduce_mean(images))

    folder = tmp_path_factory.mktemp("portable")
    Image.new("RGB", (20, 10), (5, 5, 5)).save(folder / "grey.png")
    return portable(folder, function, image_size=8, resize="bilinear")


def test_captions_scores_and_numbers_of_words(folder):
    captioner = caption.Captioner(folder)
    image, regions = captioner.read((folder / "grey.png").read_bytes())
    assert regions == 0
    results = captioner.caption(np.stack([image, image + 1]))
    for mean, result in zip([5, 6], results, strict=True):
        assert result["captions"] == ["a dog", "<unk> a dog"]
        assert result["scores"] == pytest.approx([mean, mean - 1])
        expected = [[4 * mean, 5 * mean, 2 * mean], [3 * mean, 4 * mean, 5 * mean]]
        assert np.allclose(result["log_probs"], expected)


def test_the_script_captions_what_it_can_read(folder):
    (folder / "page.jpg").write_text("<html>")
    names = ["grey.png", "page.jpg", "none.jpg", "grey.png"]
    command = [sys.executable, "-I", "caption.py"]  # without the package
    result = subprocess.run([*command, *names], cwd=folder, capture_output=True, text=True)
    assert result.stdout == "grey.png\ta dog\n" * 2
    assert result.returncode == 3
    assert "error: page.jpg: it is damaged, too large, or no JPEG" in result.stderr
    assert "error: none.jpg: No such file" in result.stderr
    assert "error: 2 of 4 pictures could not be captioned" in result.stderr
    assert subprocess.run([*command, names[0]], cwd=folder, capture_output=True).returncode == 0


def test_features_are_padded_and_each_image_has_draws_of_its_own(tmp_path):
    @tf.function(
        input_signature=[
            tf.TensorSpec([1, 3, 2], tf.float32, "features"),
            tf.TensorSpec([1], tf.int32, "num_regions"),
            tf.TensorSpec([1, 4, 7], tf.float32, "draws"),
        ]
    )
    def function(features, num_regions, draws):
        count = tf.cast(num_regions[0], tf.float32)
        return said(tf.reduce_sum(features) + 100 * count + tf.reduce_mean(draws))

    portable(tmp_path, function, regions=3, width=2, samples=4, length=7)
    captioner = caption.Captioner(tmp_path, threads=1)
    np.save(tmp_path / "two.npy", np.ones([2, 2], np.float16))
    features, regions = captioner.read((tmp_path / "two.npy").read_bytes())
    images = np.stack([features] * 2)
    scores = [one["scores"][0] for one in captioner.caption(images, [regions] * 2, [3, 4])]
    assert all(204 < score < 205 for score in scores) and scores[0] != scores[1]
    second = captioner.caption(features[None], [regions], [4])
    assert second[0]["scores"][0] == scores[1]
    np.save(tmp_path / "four.npy", np.ones([4, 2]))
    np.save(tmp_path / "wide.npy", np.ones([2, 3]))
    np.save(tmp_path / "none.npy", np.ones([0, 2]))
    for name in ("four", "wide", "none"):
        with pytest.raises(ValueError, match="Give 1 to 3 regions of 2 numbers"):
            captioner.read((tmp_path / f"{name}.npy").read_bytes())
    np.save(tmp_path / "nan.npy", np.full([2, 2], np.nan))
    with pytest.raises(ValueError, match="not finite"):
        captioner.read((tmp_path / "nan.npy").read_bytes())
    with pytest.raises(ValueError, match="no file that numpy.save wrote"):
        captioner.read(b"PK")
