"""Reads from the head of a picture file, inside the graph, how large its pixels will be.

A small file can ask for gigabytes of memory, so the size is read before anything is decoded.

Letters: N bytes of a file, B files.
"""

from typing import Literal

import tensorflow as tf

from tfcap.picture_files import READABLE

UNKNOWN = -1  # number of pixels of a file whose head is damaged
_HEAD = 32  # bytes at the beginning of a file that hold the size, but for JPEG and GIF
_MOST_PARTS = 10_000  # of a GIF file: frames, comments and others
_MOST_LEAPS = 100_000  # over 16 blocks each: a GIF file of 400 MB in full blocks
_MARKS = {  # beginnings of files
    "JPEG": b"\xff\xd8\xff",
    "PNG": b"\x89PNG\r\n\x1a\n",
    "BMP": b"BM",
    "GIF": b"GIF8",
    "WebP": b"RIFF",
}
_FRAME, _EXTENSION = ord(","), ord("!")  # kinds of the parts of a GIF file


def code(text: bytes, order: Literal["big", "little"] = "big") -> int:
    """Returns the number that bytes stand for."""
    return int.from_bytes(text, order)


def numbers(octets: tf.Tensor, little: tf.Tensor | bool = False) -> tf.Tensor:
    """Returns the unsigned integers int64 [...] of bytes int64 [..., size]."""
    powers = [256**power for power in range(octets.shape[-1])]
    weights = tf.where(little, tf.constant(powers, tf.int64), tf.constant(powers[::-1], tf.int64))
    return tf.reduce_sum(octets * weights, -1)


def read_octets(data: tf.Tensor, positions: tf.Tensor, size: int) -> tf.Tensor:
    """Reads `size` bytes from each position.

    A position outside of the file is no error, but the bytes read there have no meaning.

    Args:
      data: uint8 [N], not empty.
      positions: int64 of any shape.
      size: number of bytes.

    Returns:
      int64 [..., size], each 0 to 255.
    """
    places = positions[..., None] + tf.range(size, dtype=tf.int64)
    places = tf.clip_by_value(places, 0, tf.size(data, tf.int64) - 1)
    return tf.cast(tf.gather(data, places), tf.int64)


def _heads(contents: tf.Tensor) -> tf.Tensor:
    """Returns the first bytes of files [B], filled up with zeros: int64 [B, _HEAD]."""
    heads = tf.io.decode_raw(contents, tf.uint8, fixed_length=_HEAD)
    return tf.cast(tf.reshape(heads, [-1, _HEAD]), tf.int64)


def _begins(heads: tf.Tensor, mark: bytes, place: int = 0) -> tf.Tensor:
    """Returns which heads int64 [B, _HEAD] have the bytes `mark` at a place: bool [B]."""
    return tf.reduce_all(heads[:, place : place + len(mark)] == list(mark), -1)


def _kinds(heads: tf.Tensor) -> dict[str, tf.Tensor]:
    """Returns a mask, bool [B], for each kind of file that is decoded: the files of this kind."""
    found = {kind: _begins(heads, mark) for kind, mark in _MARKS.items()}
    found["WebP"] &= _begins(heads, b"WEBP", 8)
    return found


def _animated(heads: tf.Tensor) -> tf.Tensor:
    """Returns which of B WebP files are marked as animations: bool [B]."""
    return _begins(heads, b"VP8X", 12) & (heads[:, 20] // 2 % 2 == 1)


def is_webp(content: tf.Tensor) -> tf.Tensor:
    """Returns whether a file, string [], is WebP: bool []."""
    return _kinds(_heads(tf.reshape(content, [1])))["WebP"][0]


def is_still_webp(content: tf.Tensor) -> tf.Tensor:
    """Returns whether a file, string [], is WebP without the flag of an animation: bool [].

    TensorFlow 2.20 writes beyond its buffer when it decodes an animation without alpha with as many
    channels as the picture has. With `channels=3` it refuses every animation.
    """
    heads = _heads(tf.reshape(content, [1]))
    return (_kinds(heads)["WebP"] & ~_animated(heads))[0]


# Traced once in a process; every graph that reads files calls the same function.
@tf.function(input_signature=[tf.TensorSpec([], tf.string)], autograph=False)
def claimed_pixels(content: tf.Tensor) -> tf.Tensor:
    """Returns how many pixels a file claims: height x width, and for GIF x number of frames.

    TensorFlow's decoder of GIF reads all frames, even if only the first one is needed.

    Args:
      content: string [], a whole file.

    Returns:
      int64 []; 0 for a file of another kind, `UNKNOWN` if the head is damaged.

    Raises:
      tf.errors.InvalidArgumentError: a JPEG file with a damaged head.
    """
    with tf.device("/CPU:0"):  # a function does not take over the device of its caller
        heads = _heads(tf.reshape(content, [1]))
        kinds = {kind: is_kind[0] for kind, is_kind in _kinds(heads).items()}
        return tf.case(
            [
                (kinds["JPEG"], lambda: _product(tf.io.extract_jpeg_shape(content, tf.int64)[:2])),
                (kinds["GIF"], lambda: _gif_pixels(content)),
                (kinds["PNG"], lambda: _product(_pairs(heads[0], [16, 20], 4))),
                (kinds["BMP"], lambda: _bmp_pixels(heads[0])),
                (kinds["WebP"], lambda: _webp_pixels(heads[0])),
            ],
            default=lambda: tf.constant(0, tf.int64),
        )


def has_table_of_colours(content: tf.Tensor) -> tf.Tensor:
    """Returns whether a file, string [], is a BMP file with a table of colours (palette).

    The pixels are then numbers in the table. TensorFlow's decoder reads them as shades of
    grey. That is right only if the table is a ramp from black to white.
    """
    heads = _heads(tf.reshape(content, [1]))
    is_table = _kinds(heads)["BMP"][0] & (numbers(heads[0, 28:30], True) == 8)
    start = 14 + tf.cast(numbers(heads[0, 14:18], True), tf.int32)
    start = tf.clip_by_value(start, 0, tf.strings.length(content))
    table = tf.io.decode_raw(tf.strings.substr(content, start, 1024), tf.uint8, fixed_length=1024)
    colours = tf.cast(tf.reshape(table, [256, 4])[:, :3], tf.int32)
    return is_table & tf.reduce_any(colours != tf.range(256)[:, None])


def _product(sides: tf.Tensor) -> tf.Tensor:
    """Multiplies numbers below 2^32 without an overflow."""
    return tf.reduce_prod(tf.minimum(sides, 2**31))


def _pairs(head: tf.Tensor, places: list[int], size: int, little: bool = False) -> tf.Tensor:
    """Returns the numbers of `size` bytes at the places of a head int64 [_HEAD]: int64 [P]."""
    return tf.stack([numbers(head[place : place + size], little) for place in places])


def _bmp_pixels(head: tf.Tensor) -> tf.Tensor:
    sides = _pairs(head, [18, 22], 4, True)
    # The height is negative if the rows begin at the top.
    return _product(tf.where(sides >= 2**31, 2**32 - sides, sides))


def _webp_pixels(head: tf.Tensor) -> tf.Tensor:
    """Reads the size of the first chunk: VP8X has that of the canvas, the others their own."""
    chunk = numbers(head[12:16])
    packed = numbers(head[21:25], True)
    sides = {
        b"VP8X": _pairs(head, [24, 27], 3, True) + 1,
        b"VP8L": tf.stack([packed % 2**14, packed // 2**14 % 2**14]) + 1,
        b"VP8 ": _pairs(head, [26, 28], 2, True) % 2**14,
    }
    pixels = tf.constant(UNKNOWN, tf.int64)
    for name, pair in sides.items():
        pixels = tf.where(chunk == code(name), _product(pair), pixels)
    return pixels


def _gif_pixels(content: tf.Tensor) -> tf.Tensor:
    """Goes from part to part of a GIF file and counts its frames; the largest sides count."""
    data = tf.concat([tf.io.decode_raw(content, tf.uint8), tf.zeros([_HEAD], tf.uint8)], 0)
    size = tf.size(data, tf.int64)
    # Where the next block begins, if a block of data begins at a place; one without content is
    # the last one, and leads to itself.
    lengths = tf.cast(data, tf.int64)
    following = tf.minimum(tf.range(size) + lengths + tf.cast(lengths > 0, tf.int64), size - 1)

    def last_block(place):
        def leap(place):
            for _ in range(16):
                place = tf.gather(following, place)
            return place

        return tf.while_loop(
            lambda place: tf.gather(lengths, place) > 0,
            lambda place: (leap(place),),
            (tf.minimum(place, size - 1),),
            maximum_iterations=_MOST_LEAPS,
        )[0]

    def colours(flags):
        return tf.where(
            flags >= 128, 3 * tf.bitwise.left_shift(tf.constant(2, tf.int64), flags % 8), 0
        )

    def part(place, frames, sides):
        octets = tf.reshape(read_octets(data, place, 10), [10])
        is_frame = octets[0] == _FRAME
        own = tf.where(is_frame, _pairs(octets, [5, 7], 2, True), 0)
        blocks = place + tf.where(is_frame, 11 + colours(octets[9]), 2)
        return last_block(blocks) + 1, frames + tf.cast(is_frame, tf.int64), tf.maximum(sides, own)

    head = tf.ensure_shape(lengths[:_HEAD], [_HEAD])
    place, frames, sides = tf.while_loop(
        lambda place, *_: _is_part(tf.gather(lengths, tf.minimum(place, size - 1))),
        part,
        (13 + colours(head[10]), tf.constant(0, tf.int64), _pairs(head, [6, 8], 2, True)),
        maximum_iterations=_MOST_PARTS,
    )
    more = _is_part(tf.gather(lengths, tf.minimum(place, size - 1)))
    return tf.where(more, tf.constant(UNKNOWN, tf.int64), tf.maximum(frames, 1) * _product(sides))


def _is_part(octet: tf.Tensor) -> tf.Tensor:
    return (octet == _FRAME) | (octet == _EXTENSION)


def refusals(contents: tf.Tensor) -> tf.Tensor:
    """Returns why files that the decoder refused cannot be read, as short sentences.

    Args:
      contents: string [B], whole files.

    Returns:
      string [B].
    """
    heads = _heads(contents)
    reasons = tf.fill(
        tf.shape(contents), f"not a {', '.join(READABLE[:-1])} or {READABLE[-1]} file"
    )
    for kind, is_kind in _kinds(heads).items():
        reasons = tf.where(is_kind, f"a truncated or damaged {kind} file", reasons)
        if kind == "BMP":
            plain = "a BMP file that is truncated, compressed or has a table of colours"
            reasons = tf.where(is_kind, plain, reasons)
        if kind == "WebP":
            reasons = tf.where(is_kind & _animated(heads), "an animated WebP file", reasons)
    return tf.where(tf.strings.length(contents) == 0, "the file is empty", reasons)
