"""The description in XMP: dc:description and photoshop:CaptionWriter in a packet of RDF as XML."""

import contextlib
from xml.etree import ElementTree

from tfcap.metadata.errors import MetadataError

_NAMES = {
    "x": "adobe:ns:meta/",
    "rdf": "http://www.w3.org/1999/02/22-rdf-syntax-ns#",
    "dc": "http://purl.org/dc/elements/1.1/",
    "photoshop": "http://ns.adobe.com/photoshop/1.0/",
}
_RDF, _BLOCK, _ABOUT, _ALT, _ITEM = (
    f"{{{_NAMES['rdf']}}}{name}" for name in ("RDF", "Description", "about", "Alt", "li")
)
_DESCRIPTION = f"{{{_NAMES['dc']}}}description"
_WRITER = f"{{{_NAMES['photoshop']}}}CaptionWriter"
_LANGUAGE = "{http://www.w3.org/XML/1998/namespace}lang"
_MOST_BYTES = 1 << 23
_EMPTY = f'<x:xmpmeta xmlns:x="{_NAMES["x"]}"><rdf:RDF xmlns:rdf="{_NAMES["rdf"]}"/></x:xmpmeta>'
_BEGIN = '<?xpacket begin="\ufeff" id="W5M0MpCehiHzreSzNTczkc9d"?>\n'
_END = '\n<?xpacket end="w"?>'


def read(packet: bytes) -> tuple[list[str], str]:
    """Returns the description in each language, and who wrote it.

    Args:
      packet: the packet.

    Raises:
      MetadataError: the packet is no XMP.
    """
    texts, writer = [], ""
    for block in _rdf(_parsed(packet)[0]).iterfind(_BLOCK):
        texts.append(block.get(_DESCRIPTION, ""))
        for element in block.iterfind(_DESCRIPTION):
            texts += [item.text or "" for item in element.iter(_ITEM)] or [element.text or ""]
        writer = block.get(_WRITER) or block.findtext(_WRITER) or writer
    return texts, writer


def write(packet: bytes | None, text: str, language: str, writer: str) -> bytes:
    """Returns the packet with another description. All other properties stay.

    Args:
      packet: the packet; None for a new one.
      text: the description; "" removes the one that is there.
      language: the language of the text, such as "en"; "" for an unknown one.
      writer: who wrote the description.

    Raises:
      MetadataError: the packet is no XMP.
    """
    root, names = _parsed(packet or _EMPTY.encode())
    rdf = _rdf(root)
    blocks = rdf.findall(_BLOCK) or [ElementTree.SubElement(rdf, _BLOCK, {_ABOUT: ""})]
    for block in blocks:
        for name in (_DESCRIPTION, _WRITER):
            block.attrib.pop(name, None)
            for element in block.findall(name):
                block.remove(element)
    if text:
        alternatives = ElementTree.SubElement(ElementTree.SubElement(blocks[0], _DESCRIPTION), _ALT)
        for name in filter(None, ("x-default", language)):
            ElementTree.SubElement(alternatives, _ITEM, {_LANGUAGE: name}).text = text
        ElementTree.SubElement(blocks[0], _WRITER).text = writer
    for prefix, address in [*names, *_NAMES.items()]:
        with contextlib.suppress(ValueError):  # such as ns1, which ElementTree keeps for itself
            if prefix:
                ElementTree.register_namespace(prefix, address)
    try:
        return f"{_BEGIN}{ElementTree.tostring(root, 'unicode')}{_END}".encode()
    except (RecursionError, UnicodeEncodeError):
        raise MetadataError("the XMP data is damaged") from None


class _Builder(ElementTree.TreeBuilder):
    """Collects the prefixes of names.

    It refuses declarations: XMP has none, and small ones can define texts of any size.
    """

    def __init__(self) -> None:
        super().__init__()
        self.names: list[tuple[str, str]] = []

    def start_ns(self, prefix: str, address: str) -> None:
        self.names.append((prefix, address))

    def doctype(self, *_: object) -> None:
        raise ValueError("XMP has no declarations")


def _parsed(packet: bytes) -> tuple[ElementTree.Element, list[tuple[str, str]]]:
    """Returns the root, and each prefix with the address that it stands for."""
    if len(packet) > _MOST_BYTES:
        raise MetadataError(f"the XMP data has more than {_MOST_BYTES} bytes")
    builder = _Builder()
    parser = ElementTree.XMLParser(target=builder)
    try:
        return ElementTree.fromstring(packet.strip(b"\0 \t\r\n"), parser), builder.names
    except (ElementTree.ParseError, ValueError, LookupError, RecursionError):
        raise MetadataError("the XMP data is damaged") from None


def _rdf(root: ElementTree.Element) -> ElementTree.Element:
    found = [root] if root.tag == _RDF else root.findall(_RDF)
    if len(found) != 1:
        raise MetadataError("the XMP data is damaged")
    return found[0]
