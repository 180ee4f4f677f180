"""The description in EXIF: the tag ImageDescription of the first directory of a TIFF structure.

Notes of cameras and thumbnails are found by their distance from the start of the structure, and
notes of cameras hold such distances themselves, in forms that nobody has published. So nothing is
moved: a longer description is appended, and so is the directory that names it.
"""

import struct

from tfcap.metadata.errors import MetadataError

_DESCRIPTION = 0x010E
_TEXT = 2  # the type of text; a byte for each letter
_ENTRY = 12  # bytes
_WORDS = "the EXIF data is damaged"


def read(tiff: bytes) -> list[str]:
    """Returns the description, as a list with one text; an empty list if there is none.

    Args:
      tiff: the TIFF structure.

    Raises:
      MetadataError: the structure is damaged.
    """
    if (place := _place(tiff)) is None:
        return []
    content = tiff[place[0] : sum(place)].split(b"\0")[0].strip()
    try:
        return [content.decode()]
    except UnicodeDecodeError:
        return [content.decode("cp1252", "replace")]


def write(tiff: bytes | None, text: str) -> bytes:
    """Returns the structure with another description.

    Args:
      tiff: the structure; None for a new one.
      text: the description; "" blanks the one that is there.

    Raises:
      MetadataError: the structure is damaged.
    """
    content = text.encode() + b"\0"
    if tiff is None:
        tiff = struct.pack(">2sHIHI", b"MM", 42, 8, 0, 0)
    start, size = _place(tiff) or (0, 0)
    if not text and not size:
        return tiff
    if size >= len(content):
        return tiff[:start] + content.ljust(size, b"\0") + tiff[start + size :]
    order, entries, rest = _directory(tiff)
    # A later description of about this length will find room.
    content = content.ljust(max(len(content) + 31 & ~31, 64), b"\0")
    place = len(tiff) + len(tiff) % 2
    entry = struct.pack(order + "HHII", _DESCRIPTION, _TEXT, len(content), place)
    entries = [e for e in entries if e[0] != _DESCRIPTION]
    entries = sorted([*entries, (_DESCRIPTION, entry)], key=lambda e: e[0])
    header = struct.pack(order + "I", place + len(content))
    table = struct.pack(order + "H", len(entries)) + b"".join(e for _, e in entries) + rest
    return tiff[:4] + header + tiff[8:].ljust(place - 8, b"\0") + content + table


def _directory(tiff: bytes) -> tuple[str, list[tuple[int, bytes]], bytes]:
    """Returns the first directory.

    These are the order of bytes, as `struct` writes it; each tag with its entry of `_ENTRY` bytes;
    and the position of the next directory, 4 bytes.
    """
    order = {b"II*\0": "<", b"MM\0*": ">"}.get(tiff[:4])
    if order is None or len(tiff) < 8:
        raise MetadataError(_WORDS)
    (start,) = struct.unpack_from(order + "I", tiff, 4)
    if start < 8 or start + 2 > len(tiff):
        raise MetadataError(_WORDS)
    (count,) = struct.unpack_from(order + "H", tiff, start)
    start, end = start + 2, start + 2 + count * _ENTRY
    if end > len(tiff):
        raise MetadataError(_WORDS)
    entries = [tiff[i : i + _ENTRY] for i in range(start, end, _ENTRY)]
    tags = (struct.unpack_from(order + "H", entry)[0] for entry in entries)
    return order, [*zip(tags, entries, strict=True)], tiff[end : end + 4].ljust(4, b"\0")


def _place(tiff: bytes) -> tuple[int, int] | None:
    """Returns start and size in bytes of a description that stands outside of the directory."""
    order, entries, _ = _directory(tiff)
    for tag, entry in entries:
        if tag == _DESCRIPTION:
            _, kind, size, start = struct.unpack(order + "HHII", entry)
            if size <= 4:  # it stands in the entry, and is no description
                return None
            if kind != _TEXT or start + size > len(tiff):
                raise MetadataError(_WORDS)
            return start, size
    return None
