"""Finds the blocks of metadata in JPEG, PNG and WebP files, and replaces them.

What is no such block keeps its bytes and its order. So do the pixels, and what follows them.
"""

import contextlib
import io
import struct
import zlib
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from PIL import Image

from tfcap.metadata.errors import MetadataError

_MOST_BYTES = 1 << 23  # of the texts of a PNG file, which may be compressed


class _CutOff(Exception):
    """A block has more bytes than the file."""


class _Block(NamedTuple):
    """A range of bytes of a file.

    Attributes:
      kind: "exif", "xmp" or "iptc"; "text" for a description in a form of PNG alone; "raw" for
        metadata in an older form; "index" for the index of several pictures in a file; "" for all
        else.
      start: position of its first byte in the file.
      end: position behind its last byte.
      content: the metadata, without what is around it.
    """

    kind: str
    start: int
    end: int
    content: bytes = b""


class Blocks(NamedTuple):
    """A picture file as blocks.

    Attributes:
      file: the bytes of the file, or a map of them.
      blocks: the blocks in their order. What follows the last one stays.
      kinds: the kinds of metadata that can be written.
      place: number of the block before which new metadata is written.
      framed: returns the bytes in the file for a kind of metadata and its content.
      finished: changes the bytes of a whole file where they depend on its blocks.
    """

    file: bytes
    blocks: Sequence[_Block]
    kinds: Sequence[str]
    place: int
    framed: Callable[[str, bytes], bytes]
    finished: Callable[[bytes], bytes] = bytes

    @property
    def found(self) -> dict[str, bytes]:
        """The metadata by its kind. IPTC data may stand in several blocks."""
        result: dict[str, bytes] = {}
        for kind in ("exif", "xmp", "iptc"):
            contents = [block.content for block in self.blocks if block.kind == kind]
            if len(contents) > 1 and kind != "iptc":
                raise MetadataError(f"the file has {kind.upper()} data twice")
            if contents:
                result[kind] = b"".join(contents)
        return result

    def replaced(self, contents: Mapping[str, bytes]) -> bytes:
        """Returns the bytes of the file with other metadata.

        Args:
          contents: the new content by its kind. b"" removes the block.

        Raises:
          MetadataError: there is no room for it.
        """
        new = {k: self.framed(k, content) if content else b"" for k, content in contents.items()}
        kinds = [block.kind for block in self.blocks]
        if "index" in kinds and new.keys() & set(kinds[kinds.index("index") :]):
            raise MetadataError("the file has several pictures, and metadata behind their index")
        parts = [self.file[: self.blocks[0].start]]
        for number, block in enumerate([*self.blocks, None]):
            if number == self.place:
                parts += [content for kind, content in new.items() if kind not in kinds]
            if block is None:
                break
            if block.kind not in contents:
                parts.append(self.file[block.start : block.end])
            else:  # further blocks of a kind are parts of the first one
                parts.append(new.pop(block.kind, b""))
        return self.finished(b"".join([*parts, self.file[self.blocks[-1].end :]]))


def blocks_of(file: bytes) -> Blocks:
    """Returns the blocks of a picture file.

    Args:
      file: the bytes of the file, or a map of them.

    Raises:
      MetadataError: the file is no JPEG, PNG or WebP file, or it is cut off.
    """
    with contextlib.suppress(struct.error, _CutOff):
        if file[:3] == b"\xff\xd8\xff":
            return _jpeg(file)
        if file[:8] == _PNG:
            return _png(file)
        if file[:4] == b"RIFF" and file[8:12] == b"WEBP":
            return _webp(file)
        raise MetadataError("only JPEG, PNG and WebP files can hold a description")
    raise MetadataError("the file is cut off")


# ---- JPEG ----------------------------------------------------------------------------------------

_APP0, _APP1, _APP2, _APP13, _SCAN, _END = 0xE0, 0xE1, 0xE2, 0xED, 0xDA, 0xD9
_ALONE = (0x01, *range(0xD0, 0xD8))  # markers of segments without a size
_HEADS = {  # (marker, kind) -> how a segment begins
    (_APP1, "exif"): b"Exif\0\0",
    (_APP1, "xmp"): b"http://ns.adobe.com/xap/1.0/\0",
    (_APP2, "index"): b"MPF\0",
    (_APP13, "iptc"): b"Photoshop 3.0\0",
}
_LARGEST = 0xFFFF - 2  # of a segment, in bytes


def _jpeg(file: bytes) -> Blocks:
    blocks: list[_Block] = []
    position, place = 2, None
    while True:
        start = position
        while file[position : position + 2] == b"\xff\xff":  # bytes that fill
            position += 1
        filler, marker = struct.unpack_from("BB", file, position)
        if filler != 0xFF:
            raise MetadataError("the file is damaged before its pixels")
        if marker in (_SCAN, _END):
            break
        position += 2
        if marker in _ALONE:
            blocks.append(_Block("", start, position))
            continue
        (size,) = struct.unpack_from(">H", file, position)
        content = file[position + 2 : position + size]
        position += size
        if size < 2 or len(content) < size - 2:
            raise _CutOff
        kind = next(
            (k for (m, k), head in _HEADS.items() if m == marker and content.startswith(head)), ""
        )
        head = _HEADS.get((marker, kind), b"")
        if place is None and marker != _APP0 and kind != "exif":
            place = len(blocks)
        blocks.append(_Block(kind, start, position, content[len(head) :] if kind else b""))
    if not blocks:
        raise MetadataError("the file has no picture")
    place = len(blocks) if place is None else place
    return Blocks(file, blocks, ("exif", "xmp", "iptc"), place, _segments)


def _segments(kind: str, content: bytes) -> bytes:
    (marker, head) = next((m, head) for (m, k), head in _HEADS.items() if k == kind)
    most = _LARGEST - len(head)
    if kind != "iptc" and len(content) > most:
        raise MetadataError(f"its {kind.upper()} data has no room for a description")
    parts = [content[i : i + most] for i in range(0, len(content), most)]
    return b"".join(
        struct.pack(">BBH", 0xFF, marker, len(head + part) + 2) + head + part for part in parts
    )


# ---- PNG -----------------------------------------------------------------------------------------

_PNG = b"\x89PNG\r\n\x1a\n"
_XMP = b"XML:com.adobe.xmp"
_OLDER = b"Raw profile type "  # how the keyword of EXIF or IPTC as text begins


def _png(file: bytes) -> Blocks:
    blocks: list[_Block] = []
    position, name, left = len(_PNG), b"", _MOST_BYTES
    while name != b"IEND":
        (size,) = struct.unpack_from(">I", file, position)
        name = file[position + 4 : position + 8]
        start, position = position, position + size + 12
        if position > len(file):
            raise _CutOff
        kind, content = "", b""
        if name in (b"eXIf", b"iTXt", b"zTXt", b"tEXt"):
            content = file[start + 8 : position - 4]
        keyword, _, text = content.partition(b"\0")
        if name == b"eXIf":
            kind = "exif"
        elif (keyword, name) == (_XMP, b"iTXt") or keyword == b"Description":
            kind, content = "xmp" if keyword == _XMP else "text", _text(name, text, left)
            left -= len(content)
        elif keyword.startswith(_OLDER):
            kind = "raw"
        blocks.append(_Block(kind, start, position, content if kind else b""))
    # Where EXIF data is stored as text, programs would find two orientations.
    is_older = any(block.kind == "raw" for block in blocks)
    return Blocks(file, blocks, ("xmp",) if is_older else ("exif", "xmp"), 1, _chunk)


def _text(name: bytes, content: bytes, most: int) -> bytes:
    """Returns the text of a chunk, in UTF-8.

    Args:
      name: the name of the chunk.
      content: what is behind its keyword.
      most: the largest number of bytes.
    """
    is_packed = name == b"zTXt"
    if name == b"iTXt":
        is_packed = content[:1] == b"\1"
        *_, content = content[2:].split(b"\0", 2)  # behind its language and the other keyword
    elif is_packed:
        content = content[1:]
    if is_packed:
        decoder = zlib.decompressobj()
        try:
            content = decoder.decompress(content, most + 1)
        except zlib.error:
            raise MetadataError("a text of the file is damaged") from None
        if len(content) <= most and not decoder.eof:
            raise MetadataError("a text of the file is cut off")
    if len(content) > most:
        raise MetadataError("the texts of the file are too large")
    return content if name == b"iTXt" else content.decode("latin-1").encode()


def _chunk(kind: str, content: bytes) -> bytes:
    # Not compressed, without a language and a translated keyword.
    name, head = (b"eXIf", b"") if kind == "exif" else (b"iTXt", _XMP + b"\0" * 5)
    content = name + head + content
    return struct.pack(">I", len(content) - 4) + content + struct.pack(">I", zlib.crc32(content))


# ---- WebP ----------------------------------------------------------------------------------------

_NAMES = {b"EXIF": "exif", b"XMP ": "xmp"}
_FLAGS = {b"EXIF": 0x08, b"XMP ": 0x04}  # of the chunk VP8X
_ALPHA = 0x10
_EXIF = b"Exif\0\0"  # some programs write the head of JPEG's segment


def _webp(file: bytes) -> Blocks:
    end = 8 + struct.unpack_from("<I", file, 4)[0]
    if end > len(file):
        raise _CutOff
    blocks = []
    position = 12
    while position + 8 <= end:
        name = file[position : position + 4]
        (size,) = struct.unpack_from("<I", file, position + 4)
        start, position = position, position + 8 + size + size % 2
        if position > end:
            raise _CutOff
        content = file[start + 8 : start + 8 + size] if name in _NAMES else b""
        blocks.append(_Block(_NAMES.get(name, ""), start, position, content.removeprefix(_EXIF)))
    if not blocks:
        raise _CutOff
    return Blocks(
        file,
        blocks,
        ("exif", "xmp"),
        len(blocks),
        _riff_chunk,
        lambda content: _extended(file, content, len(file) - end),
    )


def _riff_chunk(kind: str, content: bytes) -> bytes:
    name = b"EXIF" if kind == "exif" else b"XMP "
    return name + struct.pack("<I", len(content)) + content + b"\0" * (len(content) % 2)


def _extended(before: bytes, content: bytes, behind: int) -> bytes:
    """Makes the head of a WebP file say what is in it.

    Args:
      before: the file without changes.
      content: the file with other metadata and the old head.
      behind: number of bytes behind what the head counts.
    """
    if content[12:16] != b"VP8X":
        try:
            with Image.open(io.BytesIO(before)) as image:
                (width, height), has_alpha = image.size, image.mode == "RGBA"
        except Exception:  # Pillow raises many kinds of errors for damaged files
            raise MetadataError("the file is damaged") from None
        sizes = (side - 1 for side in (width, height))
        body = bytes([_ALPHA * has_alpha, 0, 0, 0]) + b"".join(
            s.to_bytes(3, "little") for s in sizes
        )
        content = content[:12] + b"VP8X" + struct.pack("<I", len(body)) + body + content[12:]
    file = bytearray(content)
    struct.pack_into("<I", file, 4, len(file) - 8 - behind)
    names = {bytes(file[b.start : b.start + 4]) for b in _webp(bytes(file)).blocks}
    for name, flag in _FLAGS.items():
        file[20] = file[20] | flag if name in names else file[20] & ~flag
    return bytes(file)
