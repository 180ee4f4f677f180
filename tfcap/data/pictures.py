"""Decodes picture files inside the graph and turns them upright by their EXIF orientation.

Only operations of TensorFlow itself are used, because the exported SavedModel holds this graph.
Only the decoder can refuse a file. EXIF is read afterwards, from positions inside the file and in a
limited number of steps: damaged EXIF is neither an error nor an endless loop.

Letters: H and W, height and width of a picture in pixels; N bytes of a file; E entries of a
directory of EXIF.
"""

from collections.abc import Callable, Sequence
from typing import Literal, NamedTuple

import numpy as np
import tensorflow as tf

from tfcap.images import MOST_PIXELS, ORIENTATION, readable, refusal

_HEAD = 32  # bytes at the beginning of a file that hold the size, but for JPEG
# Kind of a file that is decoded -> how it begins, and why the decoder refuses it.
_KINDS = {
    "JPEG": (b"\xff\xd8\xff", "a truncated or damaged JPEG file"),
    "PNG": (b"\x89PNG\r\n\x1a\n", "a truncated or damaged PNG file"),
    "BMP": (b"BM", "a BMP file that is truncated, compressed or has a table of colours"),
    "GIF": (b"GIF8", "a truncated or damaged GIF file"),
    "WebP": (b"RIFF", "a truncated, damaged or animated WebP file"),
}
_MOST_PARTS = 100  # of a file that are searched for EXIF; a photograph has about ten
_MOST_EXTENSIONS = 10_000  # parts of a GIF file before its first frame
_SHORT, _LONG = 3, 4  # types of EXIF values


def _code(text: bytes, order: Literal["big", "little"] = "big") -> int:
    """Returns the integer that some bytes are, in their order."""
    return int.from_bytes(text, order)


# How a file is divided into parts, for JPEG, PNG and WebP. A JPEG marker has two bytes.
_FIRST_PART = [2, 8, 12]  # position
_HEADER = [4, 8, 8]  # bytes before the content of a part
_EXIF = [0xFFE1, _code(b"eXIf"), _code(b"EXIF", "little")]  # name of the part
_LAST = [[0xFFDA, 0xFFD9], [_code(b"IDAT"), _code(b"IEND")], [-1, -1]]  # where the search ends


# A function does not take over the device of its caller, and on a GPU these would be hundreds of
# tiny kernels. Each is traced once; every graph that decodes pictures calls the same functions.
@tf.function(input_signature=[tf.TensorSpec([], tf.string)], autograph=False)
def decode(image_bytes: tf.Tensor) -> tf.Tensor:
    """Decodes a picture file and turns it upright, as a graph function.

    JPEG, PNG, BMP, GIF and WebP are read. Of an animated GIF the first frame is decoded; if it does
    not fill the size that the file states, the rest is black. Grey becomes RGB. Of 16 bits the
    upper 8 are read, which is floor(value / 256).
    Transparency is dropped; what a GIF leaves transparent is black. The EXIF orientation is
    applied; in PNG files EXIF must come before the pixels. EXIF that is damaged, and an orientation
    that only XMP has, are ignored. A small file can need gigabytes for its pixels: check
    `claimed_pixels` before, or call `read`.

    Args:
      image_bytes: the bytes of the file, string [].

    Returns:
      The picture, uint8 [H, W, 3].

    Raises:
      tf.errors.InvalidArgumentError: the file is of another kind, truncated, an animated WebP or a
        BMP with a table of colours. `tfcap.images.refusal` gives the reason in words.
    """
    with tf.device("/CPU:0"):
        head = _head(image_bytes)
        # The decoder would take the numbers of colours for shades of grey.
        has_table = _is("BMP", image_bytes) & (head[28] == 8)
        plain = tf.debugging.Assert(~has_table, ["a table of colours"])
        with tf.control_dependencies([plain]):
            image_bytes = tf.identity(image_bytes)
        # TensorFlow 2.20 writes beyond its buffer when it decodes an animated WebP without alpha
        # with as many channels as the picture has. With 3 channels it refuses every animation.
        is_animated = (_numbers(head[12:16]) == _code(b"VP8X")) & (head[20] // 2 % 2 == 1)
        image = tf.case(
            [
                # The decoder accepts no number of channels but the picture's own: 3, or 4 with
                # alpha.
                (
                    _is("WebP", image_bytes) & ~is_animated,
                    lambda: _decoded(image_bytes, 0)[..., :3],
                ),
                (_is("GIF", image_bytes), lambda: _first_frame(image_bytes)),
                (_is("JPEG", image_bytes), lambda: _decoded_jpeg(image_bytes)),
            ],
            default=lambda: _decoded(image_bytes, 3),
        )
        with tf.control_dependencies([image]):  # first the decoder refuses what is no picture
            number = orientation(image_bytes)
        upright = tf.cond(number > 1, lambda: _turn(image, number), lambda: image)
        return tf.ensure_shape(upright, [None, None, 3])


def read(content: bytes) -> np.ndarray:
    """Decodes the bytes of a picture file outside of a graph, and turns the picture upright.

    It also reads TIFF, see `tfcap.images.readable`.

    Args:
      content: the bytes of the file.

    Returns:
      The picture, uint8 [H, W, 3].

    Raises:
      ValueError: the picture has more than `tfcap.images.MOST_PIXELS` pixels, or it cannot be
        decoded.
    """
    content = readable(content)
    try:
        if content.startswith(_KINDS["JPEG"][0]) and b"Exif" not in content:
            return _decoded_jpeg(content).numpy()  # tracing the function below takes 0.4 s
        return decode(tf.constant(content)).numpy()
    except tf.errors.InvalidArgumentError:
        raise ValueError(refusal(content)) from None


@tf.function(input_signature=[tf.TensorSpec([], tf.string)], autograph=False)
def claimed_pixels(content: tf.Tensor) -> tf.Tensor:
    """Returns the number of pixels, height x width, that the header of a picture file states.

    A server checks this number before it decodes a file, because a small file can need gigabytes of
    memory. The number is 0 for BMP, whose files are as large as their pixels, and for files of
    unknown kinds. A GIF file counts as one frame.

    Args:
      content: the bytes of the file, string [].

    Returns:
      The number of pixels, int64 [].

    Raises:
      tf.errors.InvalidArgumentError: the header of a JPEG or GIF file is damaged.
    """
    with tf.device("/CPU:0"):
        head = _head(content)

        def webp() -> tf.Tensor:
            chunk = _numbers(head[12:16])
            packed = _numbers(head[21:25], True)
            lossless = tf.stack([packed % 2**14, packed // 2**14 % 2**14]) + 1
            sides = tf.where(
                chunk == _code(b"VP8L"), lossless, _sides(head[26:30], little=True) % 2**14
            )
            return tf.where(chunk == _code(b"VP8X"), _sides(head[24:30], little=True) + 1, sides)

        sides = tf.case(
            [
                (_is("JPEG", content), lambda: tf.io.extract_jpeg_shape(content, tf.int64)[:2]),
                (_is("PNG", content), lambda: _sides(head[16:24])),
                (_is("GIF", content), lambda: _gif(content).screen),
                (_is("WebP", content), webp),
            ],
            default=lambda: tf.zeros([2], tf.int64),
        )
        return tf.reduce_prod(tf.minimum(sides, 2**31))  # PNG has 32 bits: no overflow


class _Gif(NamedTuple):
    """Where the first frame of a GIF file is; x before y, in pixels of the screen.

    Attributes:
      screen: width and height of the picture, int64 [2].
      corner: left and top of the first frame, int64 [2].
      frame: width and height of the first frame, int64 [2].
      start: the position of its description in the file, int64 [].
      first: the position of the first block behind the colours, int64 [].
    """

    screen: tf.Tensor
    corner: tf.Tensor
    frame: tf.Tensor
    start: tf.Tensor
    first: tf.Tensor


def _gif(content: tf.Tensor) -> _Gif:
    """Finds the first frame of a GIF file; raises `tf.errors.InvalidArgumentError` without one.

    A screen that is too small for the first frame grows, as it does in Pillow and in browsers.
    """
    head = _head(content)
    data = tf.io.decode_raw(content, tf.uint8)
    colours = tf.where(head[10] >= 128, 3 * 2 ** (head[10] % 8 + 1), 0)
    first = 13 + colours

    def octet(position: tf.Tensor) -> tf.Tensor:
        return _octets(data, position, 1)[0]

    # An extension has two bytes, and parts that begin with their length; the length 0 ends it.
    start, _ = tf.while_loop(
        lambda position, inside: inside | (octet(position) == ord("!")),
        lambda position, inside: (
            position + tf.where(inside, octet(position) + 1, 2),
            ~inside | (octet(position) > 0),
        ),
        (first, tf.constant(False)),
        maximum_iterations=_MOST_EXTENSIONS,
    )
    plain = tf.debugging.Assert(octet(start) == ord(","), ["no frame"])
    with tf.control_dependencies([plain]):
        numbers = tf.reshape(_octets(data, start + 1, 8), [4, 2])
    corner, frame = tf.unstack(tf.reshape(_numbers(numbers, True), [2, 2]))
    screen = tf.maximum(_sides(head[6:10], little=True), corner + frame)
    return _Gif(screen, corner, frame, start, first)


def _first_frame(content: tf.Tensor) -> tf.Tensor:
    """Decodes the first frame of a GIF file on its screen: uint8 [H, W, 3].

    The canvas of TensorFlow's decoder is as large as the largest frame and not as the screen. So
    the frame is moved into the corner of the canvas, and then to where it lies on the screen.
    """
    gif = _gif(content)
    whole = tf.strings.length(content)
    start = tf.cast(gif.start, tf.int32)
    rest = tf.strings.substr(content, start + 5, whole)
    moved = tf.strings.join([tf.strings.substr(content, 0, start + 1), bytes(4), rest])
    image = _decoded(moved, 3)[: gif.frame[1], : gif.frame[0]]
    before = gif.corner[::-1]
    behind = (gif.screen - gif.corner - gif.frame)[::-1]
    return tf.pad(image, tf.pad(tf.stack([before, behind], 1), [[0, 1], [0, 0]]))


def decode_frames(content: tf.Tensor, choose: Callable[[tf.Tensor], tf.Tensor]) -> tf.Tensor:
    """Decodes chosen frames of a GIF file, as a graph function.

    Each frame is drawn over the frame before it; the file's disposal methods, which say what is
    erased between two frames, are ignored. What lies outside of the picture's size is cut off.

    Args:
      content: the bytes of the file, string [].
      choose: a function that chooses the frames. It gets their number, int32 [], and returns the
        positions of N frames, int32 [N].

    Returns:
      The frames, uint8 [N, H, W, 3]. H and W are the size of the picture as the file states it,
      which single frames may not fill.
    """
    gif = _gif(content)
    # The canvas of TensorFlow's decoder is as wide as the widest frame and as high as the highest.
    # If that is less than the screen, the file is decoded again behind a black row and a black
    # column, which have the size of the screen and are left out of the result.
    frames = _decoded_frames(content)
    height, width = tf.unstack(gif.screen[::-1])
    sizes = tf.shape(frames, tf.int64)
    frames = tf.cond(
        tf.reduce_all(sizes[1:3] >= gif.screen[::-1]),
        lambda: frames,
        lambda: _frames_on_screen(content, gif, sizes[0]),
    )
    return tf.gather(frames, choose(tf.shape(frames)[0]))[:, :height, :width]


def _decoded_frames(content: tf.Tensor) -> tf.Tensor:
    return tf.ensure_shape(tf.io.decode_gif(content), [None, None, None, 3])


def _frames_on_screen(content: tf.Tensor, gif: _Gif, total: tf.Tensor) -> tf.Tensor:
    """Decodes the frames on a screen that is larger than all of them.

    A small file can have thousands of frames of one pixel and a huge screen. So their number,
    `total`, is checked before each of them needs a screen.
    """
    width, height = tf.unstack(gif.screen)
    first = tf.cast(gif.first, tf.int32)
    whole = tf.strings.length(content)
    parts = [
        tf.strings.substr(content, 0, first),
        _black_frame([width, 1]),
        _black_frame([1, height]),
        tf.strings.substr(content, first, whole),
    ]
    fits = tf.debugging.Assert(total * width * height <= MOST_PIXELS, ["too many pixels"])
    with tf.control_dependencies([fits]):
        return _decoded_frames(tf.strings.join(parts))[2:]


def _black_frame(sides: Sequence[tf.Tensor | int]) -> tf.Tensor:
    """Encodes a black frame for a GIF file, string []; of width and height one is 1."""
    octets = [tf.cast(side, tf.int64) // power % 256 for side in sides for power in (1, 256)]
    numbers = tf.strings.reduce_join(tf.gather([bytes([n]) for n in range(256)], octets))
    colours = b"\x80" + bytes(6)  # a table of two, both black
    # A byte is a pixel. After 100 pixels the code 0x80 clears the dictionary, which would otherwise
    # make the codes longer. Too many pixels do no harm.
    block = bytes([101, 0x80]) + bytes(100)
    pixels = tf.strings.reduce_join(tf.fill([tf.reduce_max(sides) // 100 + 1], block))
    return tf.strings.join([b"," + bytes(4), numbers, colours, b"\x07", pixels, b"\0"])


def refusals(contents: tf.Tensor) -> tf.Tensor:
    """Returns in words why `decode` raised an error for picture files: string [B].

    The reason follows from the kind of each file, such as "a truncated or damaged PNG file".

    Args:
      contents: the bytes of B complete files, for each of which `decode` raised an error, string
        [B].
    """
    reasons = tf.fill(tf.shape(contents), "not a JPEG, PNG, BMP, GIF or WebP file")
    for kind, (_, reason) in _KINDS.items():
        reasons = tf.where(_is(kind, contents), reason, reasons)
    return tf.where(tf.strings.length(contents) == 0, "the file is empty", reasons)


def _is(kind: str, contents: tf.Tensor) -> tf.Tensor:
    """True for the files string [...] that begin like this kind of file: bool [...]."""
    mark = _KINDS[kind][0]
    return tf.strings.substr(contents, 0, len(mark)) == mark


def _head(content: tf.Tensor) -> tf.Tensor:
    """Returns the first bytes of a file, padded with zeros: int64 [_HEAD]."""
    head = tf.io.decode_raw(content, tf.uint8, fixed_length=_HEAD)
    return tf.cast(tf.reshape(head, [_HEAD]), tf.int64)


def _numbers(octets: tf.Tensor, little: tf.Tensor | bool = False) -> tf.Tensor:
    """Returns the unsigned integers int64 [...] of bytes int64 [..., size]."""
    powers = [256**power for power in range(octets.shape[-1])]
    weights = tf.where(little, tf.constant(powers, tf.int64), tf.constant(powers[::-1], tf.int64))
    return tf.reduce_sum(octets * weights, -1)


def _sides(octets: tf.Tensor, little: bool = False) -> tf.Tensor:
    """Returns the two numbers of bytes int64 [2 size]: int64 [2]."""
    return _numbers(tf.reshape(octets, [2, -1]), little)


def _octets(data: tf.Tensor, positions: tf.Tensor, size: int) -> tf.Tensor:
    """Reads `size` bytes of uint8 [N] from each position int64 [...]: int64 [..., size].

    A position outside of the file gives bytes without meaning, and no error.
    """
    indices = positions[..., None] + tf.range(size, dtype=tf.int64)
    indices = tf.clip_by_value(indices, 0, tf.size(data, tf.int64) - 1)
    return tf.cast(tf.gather(data, indices), tf.int64)


def _turn(image: tf.Tensor, number: tf.Tensor) -> tf.Tensor:
    """Turns a picture upright.

    Args:
      image: the picture as it is stored, uint8 [H, W, 3].
      number: EXIF orientation of the picture, 1 to 8. For 1 the picture does not change.

    Returns:
      The upright picture, uint8 [H, W, 3]; uint8 [W, H, 3] for the orientations 5 to 8.
    """
    shape = tf.shape(image)
    rows, columns = tf.range(shape[0]), tf.range(shape[1])
    rows = tf.where(tf.reduce_any(number == [3, 4, 6, 7]), rows[::-1], rows) * shape[1]
    columns = tf.where(tf.reduce_any(number == [2, 3, 7, 8]), columns[::-1], columns)
    indices = tf.cond(
        number >= 5,
        lambda: columns[:, None] + rows,  # [W, H]
        lambda: rows[:, None] + columns,  # [H, W]
    )
    # A gather, because oneDNN prints an error line for tf.transpose of uint8 on some processors.
    return tf.gather(tf.reshape(image, [-1, 3]), indices)


def orientation(image_bytes: tf.Tensor) -> tf.Tensor:
    """Reads the EXIF orientation of a picture file: int64 [], 1 to 8.

    It is 1, upright, if the file has none.

    Args:
      image_bytes: the bytes of the file, string [].
    """
    is_file = tf.stack([_is(kind, image_bytes) for kind in ("JPEG", "PNG", "WebP")])
    # Most files have no EXIF, and a search for its name is much faster than the walk.
    may_have = tf.strings.regex_full_match(image_bytes, r"\C*(Exif|eXIf|EXIF)\C*")
    return tf.cond(
        may_have & tf.reduce_any(is_file),
        lambda: _read_orientation(image_bytes, tf.argmax(tf.cast(is_file, tf.int32))),
        lambda: tf.constant(1, tf.int64),
    )


@tf.function(
    input_signature=[tf.TensorSpec([], tf.string), tf.TensorSpec([], tf.int64)], autograph=False
)
def _read_orientation(image_bytes: tf.Tensor, container: tf.Tensor) -> tf.Tensor:
    with tf.device("/CPU:0"):
        data = tf.io.decode_raw(image_bytes, tf.uint8)
        start, end = _find_exif(data, container)
        return tf.cond(start > 0, lambda: _tag(data, start, end), lambda: tf.constant(1, tf.int64))


def _decoded_jpeg(image_bytes: tf.Tensor | bytes) -> tf.Tensor:
    """Decodes as Pillow and browsers do; the transform that `decode_image` takes is less exact."""
    return tf.io.decode_jpeg(image_bytes, 3, dct_method="INTEGER_ACCURATE")


def _decoded(image_bytes: tf.Tensor, channels: int) -> tf.Tensor:
    image = tf.io.decode_image(image_bytes, channels=channels, expand_animations=False)
    return tf.ensure_shape(image, [None, None, channels or None])


def _find_exif(data: tf.Tensor, container: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Walks through the parts of a file (segments of JPEG, chunks of PNG and WebP) up to EXIF.

    Args:
      data: the bytes of the file, uint8 [N].
      container: kind of the file, int64 []: 0 JPEG, 1 PNG, 2 WebP.

    Returns:
      Where EXIF starts and ends, int64 []; zeros if there is none.
    """
    first, header, exif, last = (
        tf.gather(tf.constant(table, tf.int64), container)
        for table in (_FIRST_PART, _HEADER, _EXIF, _LAST)
    )
    size = tf.size(data, tf.int64)
    nothing = tf.constant(0, tf.int64)

    def body(position, start, end):
        words = _octets(data, position + tf.constant([0, 4], tf.int64), 4)
        a, b = tf.unstack(_numbers(words, container == 2))
        # Name, length of the content and bytes behind the content, of each kind of file.
        jpeg, png, webp = [a // 2**16, a % 2**16 - 2, nothing], [b, a, nothing + 4], [a, b, b % 2]
        name, length, behind = tf.unstack(tf.gather([jpeg, png, webp], container))
        begin = position + header
        stop = begin + length
        # JPEG's EXIF has a mark of six bytes, and some programs write it into WebP, too.
        marked = _numbers(_octets(data, begin, 4)) == _code(b"Exif")
        is_exif = (name == exif) & (marked | (container > 0))
        # Any number of bytes 0xFF may precede a marker of JPEG.
        following = tf.where((container == 0) & (name == 0xFFFF), position + 1, stop + behind)
        ends = tf.reduce_any(name == last) | ((container == 0) & (name < 0xFF00)) | is_exif
        begin += tf.where(marked, tf.constant(6, tf.int64), 0)
        return (
            tf.where(ends, size, following),
            tf.where(is_exif, begin, start),
            tf.where(is_exif, stop, end),
        )

    _, start, end = tf.while_loop(
        lambda position, *_: position + 12 <= size,
        body,
        (first, nothing, nothing),
        maximum_iterations=_MOST_PARTS,
    )
    return start, tf.minimum(end, size)


def _tag(data: tf.Tensor, start: tf.Tensor, end: tf.Tensor) -> tf.Tensor:
    """Reads the orientation from the first directory of EXIF between `start` and `end`."""
    head = _octets(data, start, 8)
    order = _numbers(head[:4])
    little = order == _code(b"II*\0")
    valid = (little | (order == _code(b"MM\0*"))) & (start + 8 <= end)
    directory = start + _numbers(head[4:], little)
    entries = _numbers(_octets(data, directory, 2), little)
    entries = tf.minimum(entries, (end - directory - 2) // 12)
    entries = tf.where(valid, tf.maximum(entries, 0), 0)
    entry = _octets(data, directory + 2 + 12 * tf.range(entries), 12)  # [E, 12]
    tag = _numbers(entry[:, :2], little)
    kind = _numbers(entry[:, 2:4], little)
    count = _numbers(entry[:, 4:8], little)
    long = _numbers(entry[:, 8:12], little)
    value = tf.where(kind == _LONG, long, _numbers(entry[:, 8:10], little))
    is_number = (count == 1) & ((kind == _SHORT) | (kind == _LONG))
    orientations = tf.boolean_mask(value, (tag == ORIENTATION) & is_number)
    first = tf.concat([orientations, tf.constant([1], tf.int64)], 0)[0]
    return tf.where((first >= 1) & (first <= 8), first, 1)
