"""The description in IPTC: the data set Caption-Abstract.

They stand among the resources of Photoshop, which has segments of a JPEG file for them.
"""

import hashlib
import struct
from typing import NamedTuple

from tfcap.metadata.errors import MetadataError

_CAPTION = (2, 120)
_MOST_BYTES = 2000  # of a caption
_CHARACTERS, _UTF8 = (1, 90), b"\x1b%G"
_VERSION = (2, 0)
_IPTC, _DIGEST = 0x0404, 0x0425  # resources: the data sets, and their MD5
_SIGNATURES = (b"8BIM", b"PHUT", b"AgHg", b"DCSR", b"MeSa")
_WORDS = "the IPTC data is damaged"


class _Resource(NamedTuple):
    """A resource of Photoshop.

    Attributes:
      number: its kind.
      head: what stands before the size of its content.
      content: its bytes.
    """

    number: int
    head: bytes
    content: bytes


class _DataSet(NamedTuple):
    """A data set: its record, its number in the record, and its bytes."""

    record: int
    number: int
    content: bytes


def read(resources: bytes) -> list[str]:
    """Returns the captions: mostly one or none.

    Args:
      resources: the resources of Photoshop.

    Raises:
      MetadataError: they are damaged.
    """
    found = [r.content for r in _resources(resources) if r.number == _IPTC]
    data_sets = _data_sets(found[0]) if found else []
    return [_text(d.content) for d in data_sets if d[:2] == _CAPTION]


def write(resources: bytes | None, text: str) -> bytes:
    """Returns the resources with another caption.

    The caption is left out if it is longer than IPTC allows, or if other data sets have a set of
    characters that lacks some of its own.

    Args:
      resources: the resources; None if there are none.
      text: the caption; "" removes the one that is there.

    Raises:
      MetadataError: the resources are damaged.
    """
    all_resources = _resources(resources or b"")
    found = [r for r in all_resources if r.number == _IPTC]
    if len(found) > 1:
        raise MetadataError("the file has IPTC data twice")
    old = found[0].content if found else b""
    data_sets = [d for d in _data_sets(old) if d[:2] != _CAPTION]
    content = text.encode()
    if content and len(content) <= _MOST_BYTES:
        data_sets += _new(data_sets, content)
    iptc = b"".join(map(_packed, sorted(data_sets, key=lambda d: (d.record, d.number > 0))))
    if not found and not iptc:
        return resources or b""
    new = {_IPTC: iptc}
    # Readers prefer IPTC to XMP where the digest differs, so one that differed stays.
    if any(r == (_DIGEST, r.head, _md5(old)) for r in all_resources):
        new[_DIGEST] = _md5(iptc)
    if not found:
        all_resources.append(_Resource(_IPTC, b"8BIM" + struct.pack(">HH", _IPTC, 0), iptc))
    return b"".join(
        _resource(r._replace(content=new.get(r.number, r.content))) for r in all_resources
    )


def _new(data_sets: list[_DataSet], content: bytes) -> list[_DataSet]:
    """Returns the data sets to add for a caption in UTF-8."""
    given = [d.content for d in data_sets if d[:2] == _CHARACTERS]
    added = [_DataSet(*_CAPTION, content)]
    if not any(d[:2] == _VERSION for d in data_sets):
        added.insert(0, _DataSet(*_VERSION, struct.pack(">H", 4)))
    if not content.isascii() and given != [_UTF8]:
        if given or not all(map(_is_utf8, (d.content for d in data_sets if d.record == 2))):
            return []
        added.append(_DataSet(*_CHARACTERS, _UTF8))
    return added


def _md5(content: bytes) -> bytes:
    return hashlib.md5(content, usedforsecurity=False).digest()


def _is_utf8(content: bytes) -> bool:
    try:
        content.decode()
    except UnicodeDecodeError:
        return False
    return True


def _text(content: bytes) -> str:
    return content.decode("utf-8" if _is_utf8(content) else "cp1252", "replace").strip("\0 ")


def _resources(content: bytes) -> list[_Resource]:
    result = []
    position = 0
    while not _is_end(content, position):
        head = content[position : position + 7]
        if head[:4] not in _SIGNATURES or len(head) < 7:
            raise MetadataError(_WORDS)
        size_at = position + 6 + (head[6] // 2 + 1) * 2  # the name has an even number of bytes
        start = size_at + 4
        if start > len(content):
            raise MetadataError(_WORDS)
        (size,) = struct.unpack_from(">I", content, size_at)
        if start + size > len(content):
            raise MetadataError(_WORDS)
        (number,) = struct.unpack_from(">H", content, position + 4)
        result.append(_Resource(number, content[position:size_at], content[start : start + size]))
        position = start + size + size % 2
    return result


def _is_end(content: bytes, position: int) -> bool:
    """True if only zeros follow; what is not the end does not begin with one."""
    return content[position : position + 1] in (b"", b"\0") and not content[position:].strip(b"\0")


def _resource(resource: _Resource) -> bytes:
    content = resource.content
    size = struct.pack(">I", len(content))
    return resource.head + size + content + b"\0" * (len(content) % 2)


def _data_sets(content: bytes) -> list[_DataSet]:
    result = []
    position = 0
    while not _is_end(content, position):
        if content[position] != 0x1C or position + 5 > len(content):
            raise MetadataError(_WORDS)
        record, number, size = struct.unpack_from(">BBH", content, position + 1)
        start = position + 5
        if size & 0x8000:  # of so many bytes is the size that follows
            start += size & 0x7FFF
            size = int.from_bytes(content[position + 5 : start], "big")
        position = start + size
        if position > len(content):
            raise MetadataError(_WORDS)
        result.append(_DataSet(record, number, content[start:position]))
    return result


def _packed(data_set: _DataSet) -> bytes:
    size = len(data_set.content)
    sizes = struct.pack(">H", size) if size < 0x8000 else struct.pack(">HI", 0x8004, size)
    return bytes([0x1C, data_set.record, data_set.number]) + sizes + data_set.content
