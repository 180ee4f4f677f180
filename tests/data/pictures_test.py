"""Picture files are decoded and turned upright inside the graph."""

import io
import re
import struct

import numpy as np
import pytest
import tensorflow as tf
from helpers import picture_bytes
from PIL import Image, ImageSequence

from tfcap import images
from tfcap.data import clips, pictures

HEIGHT, WIDTH = 24, 40
ORIENTATION, SHORT, LONG = 0x0112, 3, 4


@pytest.fixture(scope="module")
def decode():
    signature = [tf.TensorSpec([], tf.string)]
    return tf.function(pictures.decode, input_signature=signature, autograph=False)


@pytest.fixture(scope="module")
def orientation():
    signature = [tf.TensorSpec([], tf.string)]
    return tf.function(pictures.orientation, input_signature=signature, autograph=False)


def _scene():
    """A picture uint8 [H, W, 3] without symmetry: each place is recognised by its colour."""
    rows, columns = np.mgrid[:HEIGHT, :WIDTH]
    return np.stack([rows * 10, columns * 6, np.full_like(rows, 77)], 2).astype(np.uint8)


def _stored(scene, number):
    """The pixels that a camera stores so that the orientation `number` shows `scene`."""
    method = {
        2: Image.Transpose.FLIP_LEFT_RIGHT,
        3: Image.Transpose.ROTATE_180,
        4: Image.Transpose.FLIP_TOP_BOTTOM,
        5: Image.Transpose.TRANSPOSE,
        6: Image.Transpose.ROTATE_90,  # the camera lay on its side; 6 turns it back clockwise
        7: Image.Transpose.TRANSVERSE,
        8: Image.Transpose.ROTATE_270,
    }
    image = Image.fromarray(scene)
    return image.transpose(method[number]) if number > 1 else image


def _exif(entries, order="<", offset=8, magic=42):
    """EXIF with entries (tag, type, count, value) in its first directory at `offset`."""
    start = {"<": b"II", ">": b"MM"}[order] + struct.pack(order + "HI", magic, offset)
    directory = struct.pack(order + "H", len(entries))
    for tag, kind, count, value in entries:
        value = struct.pack(order + ("HH" if kind == SHORT else "I"), *value)
        directory += struct.pack(order + "HHI", tag, kind, count) + value
    return start.ljust(offset, b"\0") + directory + struct.pack(order + "I", 0)


def _short(number, tag=ORIENTATION, count=1):
    return tag, SHORT, count, (number, 0)


def _jpeg(image=None):
    stream = io.BytesIO()
    (image or Image.fromarray(_scene())).save(stream, "JPEG", quality=95)
    return stream.getvalue()


def _segment(marker, content):
    return struct.pack(">HH", marker, len(content) + 2) + content


def _with_exif(exif, jpeg=None, before=b"", after=b""):
    """A JPEG whose second segment, behind `before`, is EXIF."""
    jpeg = jpeg or _jpeg()
    return jpeg[:2] + before + _segment(0xFFE1, b"Exif\0\0" + exif) + after + jpeg[2:]


def test_a_jpeg_without_exif_is_read_as_a_graph_decodes_it(decode):
    content = _jpeg(_stored(_scene(), 1))
    np.testing.assert_array_equal(pictures.read(content), decode(tf.constant(content)))


@pytest.mark.parametrize("order", "<>")
@pytest.mark.parametrize("number", range(1, 9))
def test_every_orientation_of_a_jpeg_is_turned_upright(number, order, decode):
    content = _with_exif(_exif([_short(number)], order), _jpeg(_stored(_scene(), number)))
    assert pictures.orientation(tf.constant(content)) == number
    upright = decode(tf.constant(content))
    assert upright.dtype == tf.uint8 and upright.shape == (HEIGHT, WIDTH, 3)
    assert np.abs(upright.numpy().astype(int) - _scene()).mean() < 2
    np.testing.assert_array_equal(pictures.decode(tf.constant(content)), upright)  # eagerly
    np.testing.assert_array_equal(pictures.read(content), upright)


@pytest.mark.parametrize("order", "<>")
def test_the_tag_is_found_wherever_it_stands(order, decode):
    others = [(0x0100 + i, LONG, 1, (i,)) for i in range(3)]
    stored = _jpeg(_stored(_scene(), 6))
    jfif = _segment(0xFFE0, b"JFIF\0" + bytes(9))
    xmp = _segment(0xFFE1, b"http://ns.adobe.com/xap/1.0/\0" + b"orientation" * 9)
    tag = _short(6)
    files = [
        _with_exif(_exif([tag, *others], order), stored),
        _with_exif(_exif([*others, tag], order), stored),
        _with_exif(_exif([*others, tag], order, offset=200), stored),
        _with_exif(_exif([(ORIENTATION, LONG, 1, (6,))], order), stored),
        _with_exif(_exif([tag], order), stored, before=jfif + xmp + b"\xff\xff\xff"),
        _with_exif(_exif([tag], order), stored, before=b"".join([_segment(0xFFEF, b"x")] * 60)),
        _with_exif(_exif([tag], order), stored, after=_segment(0xFFE1, b"Exif\0\0" + b"again")),
    ]
    for content in files:
        upright = decode(tf.constant(content)).numpy().astype(int)
        assert upright.shape == (HEIGHT, WIDTH, 3) and np.abs(upright - _scene()).mean() < 2


WHOLE = _exif([_short(6)])
DAMAGED = {
    "empty": b"",
    "no byte order": b"no EXIF at all",
    "another magic number": _exif([_short(6)], magic=43),
    "a directory behind the end": WHOLE[:4] + struct.pack("<I", 2**32 - 1) + WHOLE[8:],
    "a directory at the end": _exif([])[:8],
    "cut in the entry": WHOLE[:15],
    "cut in the value": WHOLE[:19],
    "more entries than there are": WHOLE[:8] + b"\xff\xff" + WHOLE[10:12] + WHOLE[12:18],
    "an orientation of 0": _exif([_short(0)]),
    "an orientation of 9": _exif([_short(9)]),
    "two values": _exif([_short(6, count=2)]),
    "a text": _exif([(ORIENTATION, 2, 1, (6,))]),
    "no tag": _exif([_short(6, tag=0x0113)]),
}


@pytest.mark.parametrize("damage", DAMAGED)
def test_damaged_exif_is_ignored(damage, decode):
    plain = _jpeg()
    content = tf.constant(_with_exif(DAMAGED[damage], plain))
    assert pictures.orientation(content) == 1
    np.testing.assert_array_equal(decode(content), Image.open(io.BytesIO(plain)))


def test_a_webp_with_transparency_drops_it(decode):
    image = Image.fromarray(_scene()).convert("RGBA")
    image.putalpha(Image.linear_gradient("L").resize(image.size))
    stream = io.BytesIO()
    image.save(stream, "WEBP", lossless=True, exact=True)
    np.testing.assert_array_equal(decode(tf.constant(stream.getvalue())), _scene())


@pytest.mark.parametrize("form", ["JPEG", "PNG", "WEBP", "GIF"])
def test_a_cut_file_gives_a_picture_or_an_error(form, decode):
    stream, exif = io.BytesIO(), Image.Exif()
    exif[ORIENTATION], exif[0x010F] = 6, "a camera"
    Image.fromarray(_scene()).save(stream, form, **({} if form == "GIF" else {"exif": exif}))
    whole, refused = stream.getvalue(), 0
    for end in range(0, len(whole), 1 + len(whole) // 20):
        try:
            picture = decode(tf.constant(whole[:end]))
        except tf.errors.InvalidArgumentError:
            refused += 1
            assert re.fullmatch(r"[^\n]+\.", images.refusal(whole[:end]))
        else:
            assert sorted(picture.shape) == [3, HEIGHT, WIDTH]
    assert refused > 5


def _numbers(height, width, least=1, end=256):
    return np.random.default_rng(width).integers(least, end, (height, width), np.uint8)


def _shown(content):
    """What Pillow shows of the frames of a GIF file; nothing is black."""
    frames = []
    with Image.open(io.BytesIO(content)) as file:
        for frame in ImageSequence.Iterator(file):
            pixels = np.asarray(frame.convert("RGBA"))
            frames.append(np.where(pixels[..., 3:] > 0, pixels[..., :3], 0))
    return frames


SMALL, OTHER = (_numbers(10, 20), 30, 15), (_numbers(9, 12), 5, 21)
WHOLE_FRAME = (_numbers(40, 60), 0, 0)
XMP = b"!\xff\x0bXMP DataXMP" + b"x" * 9000 + b"\1" + bytes(range(255, -1, -1)) + b"\0"
# Screen, frames and further options of a GIF file.
GIFS = {
    "a frame with an offset": ((60, 40), [SMALL], {}),
    "GIF87a": ((60, 40), [SMALL], {"version": b"GIF87a"}),
    "behind metadata": ((60, 40), [SMALL, OTHER], {"extensions": XMP, "comment": "a sticker"}),
    "two small frames": ((60, 40), [SMALL, OTHER], {}),
    "whole, then small": ((60, 40), [WHOLE_FRAME, SMALL, OTHER], {}),
    "small, then whole": ((60, 40), [SMALL, WHOLE_FRAME, OTHER], {}),
    "a frame of one row": ((60, 40), [(_numbers(1, 60), 0, 7)], {}),
    "a frame of one pixel": ((333, 301), [(_numbers(1, 1), 332, 300)], {}),
    "interlaced": ((60, 40), [SMALL, OTHER], {"interlace": 1}),
    "tables of its own": ((60, 40), [SMALL, OTHER], {"local": True}),
    "transparent": ((60, 40), [(_numbers(10, 20, 0, 4), 30, 15)] * 2, {"transparency": 2}),
    "a screen smaller than its frame": ((25, 20), [SMALL, (_numbers(4, 6), 40, 3)], {}),
    "no screen": ((0, 0), [SMALL], {}),
}


@pytest.mark.parametrize("name", GIFS)
def test_every_pixel_of_a_gif_is_at_its_place_on_the_screen(name, decode):
    screen, frames, options = GIFS[name]
    content = picture_bytes.gif(screen, frames, **options)
    expected = _shown(content)
    np.testing.assert_array_equal(decode(tf.constant(content)), expected[0])
    np.testing.assert_array_equal(clips.read_clip_bytes(content, len(frames)), expected)
    height, width = expected[0].shape[:2]
    assert pictures.claimed_pixels(tf.constant(content)) == height * width
    assert images.upright_size(io.BytesIO(content)) == (width, height)


def test_what_a_later_frame_draws_outside_of_the_screen_is_cut_off():
    frames = [WHOLE_FRAME, (_numbers(20, 30), 50, 25), (_numbers(70, 90), 0, 0)]
    result = clips.read_clip_bytes(picture_bytes.gif((60, 40), frames), 3)
    assert result.shape == (3, 40, 60, 3)
    larger = clips.read_clip_bytes(picture_bytes.gif((90, 70), frames), 3)
    np.testing.assert_array_equal(result, larger[:, :40, :60])


def test_a_small_gif_cannot_claim_a_huge_screen_for_each_of_many_frames():
    content = picture_bytes.gif((20_000, 1_000), [(_numbers(1, 1), 5, 5)] * 9)
    with pytest.raises(tf.errors.InvalidArgumentError, match="too many pixels"):
        clips.decode_clip(tf.constant(content), 2)


def test_the_disposal_of_a_gif_is_ignored():
    content = picture_bytes.gif((60, 40), [SMALL, OTHER], disposal=2)
    kept = picture_bytes.gif((60, 40), [SMALL, OTHER])
    np.testing.assert_array_equal(clips.read_clip_bytes(content, 2), clips.read_clip_bytes(kept, 2))


def test_of_a_cut_gif_the_complete_frames_are_used():
    content = picture_bytes.gif((60, 40), [SMALL, OTHER])
    first = len(picture_bytes.gif((60, 40), [SMALL])) - 1
    expected = _shown(content)
    np.testing.assert_array_equal(
        clips.read_clip_bytes(content[: first + 60], 2), [expected[0]] * 2
    )
    for read in (pictures.read, lambda content: clips.read_clip_bytes(content, 2)):
        for end in (first - 40, 13 + 768 + 4, 13 + 768):
            with pytest.raises(ValueError, match="or it is damaged|truncated or damaged GIF"):
                read(content[:end])


def test_a_gif_whose_first_frame_is_larger_than_its_screen_claims_the_frame():
    content = bytearray(picture_bytes.gif((1, 1), [SMALL], version=b"GIF87a"))
    content[13 + 768 + 5 : 13 + 768 + 9] = struct.pack("<HH", 60_000, 50_000)
    claimed = pictures.claimed_pixels(tf.constant(bytes(content)))
    assert claimed == (60_000 + 30) * (50_000 + 15)
    with pytest.raises(ValueError, match="more than 178956970 pixels"):
        pictures.read(bytes(content))


# Form of a file -> options, and sides that its head can claim.
CLAIMS = {
    "JPEG": ({}, (30_000, 30_000)),
    "PNG": ({}, (30_000, 30_000)),
    "GIF": ({}, (0xFFFF, 0xFFFF)),
    "lossy WebP": ({}, (16_383, 16_383)),
    "lossless WebP": ({"lossless": True}, (16_384, 16_384)),
    "extended WebP": ({"exif": b"Exif\0\0II*\0\x08\0\0\0\0\0"}, (1 << 24, 255)),
}


@pytest.mark.parametrize("name", CLAIMS)
def test_a_small_file_that_claims_gigabytes_is_refused_before_it_is_decoded(name):
    (options, sides), form = CLAIMS[name], name.split()[-1]
    whole = picture_bytes.file(form, **options)
    assert pictures.claimed_pixels(tf.constant(whole)) == 40 * 24
    content = tf.constant(picture_bytes.claiming(form, *sides, **options))
    assert pictures.claimed_pixels(content) == sides[0] * sides[1]
    with pytest.raises(
        ValueError, match="more than 178956970 pixels|are more than|or it is damaged"
    ):
        pictures.read(content.numpy())
