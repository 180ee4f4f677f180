"""A description gets into a picture file, and nothing else in the file changes."""

import hashlib
import io
import json
import shutil
import struct
import subprocess
import zlib
from xml.etree import ElementTree

import numpy as np
import pytest
from PIL import ExifTags, Image, IptcImagePlugin, PngImagePlugin

from tfcap import metadata

TEXT = "Ein Hund läuft, 犬"
EXIFTOOL = shutil.which("exiftool")
NAMES = {
    "dc": "http://purl.org/dc/elements/1.1/",
    "rdf": "http://www.w3.org/1999/02/22-rdf-syntax-ns#",
    "own": "https://example.org/own/",
}
LANGUAGE = "{http://www.w3.org/XML/1998/namespace}lang"
SOMEBODYS = (
    '<dc:description><rdf:Alt><rdf:li xml:lang="x-default">My dog</rdf:li></rdf:Alt>'
    "</dc:description>"
)
MAKER_NOTE = b"SomeCamera\0\0" + struct.pack("<II", 0x1234, 400) + bytes(range(200))
PROFILE = b"a profile of colours" * 9


def packet(more=""):
    """XMP with properties of several forms, in a packet with room behind it."""
    return f"""<?xpacket begin="\ufeff" id="W5M0MpCehiHzreSzNTczkc9d"?>
<x:xmpmeta xmlns:x="adobe:ns:meta/" x:xmptk="somebody"><rdf:RDF xmlns:rdf="{NAMES["rdf"]}">
<rdf:Description rdf:about="uuid:1" xmlns:own="{NAMES["own"]}" own:rating="5">
<own:nested rdf:parseType="Resource"><own:a>1</own:a></own:nested></rdf:Description>
<rdf:Description rdf:about="uuid:1" xmlns:dc="{NAMES["dc"]}">
<dc:title><rdf:Alt><rdf:li xml:lang="fr">Un titre</rdf:li></rdf:Alt></dc:title>{more}
</rdf:Description></rdf:RDF></x:xmpmeta>{" " * 99}<?xpacket end="w"?>""".encode()


def picture(kind="JPEG", mode="RGB", **options):
    """The bytes of a picture of noise."""
    noise = np.random.default_rng(0).integers(0, 256, (24, 32, len(mode)), np.uint8)
    file = io.BytesIO()
    Image.fromarray(noise).save(file, kind, **options)
    return file.getvalue()


def exif(description=None):
    """EXIF data with an orientation, a date, a place, and the notes of a camera."""
    tags = Image.Exif()
    tags[ExifTags.Base.Make], tags[ExifTags.Base.Orientation] = "SomeCamera", 6
    tags[ExifTags.Base.ImageWidth] = 32  # stands before the description
    tags[ExifTags.Base.DateTime] = "2020:01:02 03:04:05"
    if description is not None:
        tags[ExifTags.Base.ImageDescription] = description
    tags.get_ifd(ExifTags.IFD.Exif)[ExifTags.Base.MakerNote] = MAKER_NOTE
    tags.get_ifd(ExifTags.IFD.GPSInfo)[ExifTags.GPS.GPSLatitudeRef] = "N"
    return tags.tobytes()


def resources(*data_sets):
    """The resources of Photoshop: data sets of IPTC, and one more resource."""
    content = b"".join(
        struct.pack(">BBBH", 0x1C, record, number, len(value)) + value
        for record, number, value in data_sets
    )
    return b"".join(
        b"8BIM"
        + struct.pack(">H", number)
        + (bytes([len(name)]) + name).ljust(2, b"\0")
        + struct.pack(">I", len(value))
        + value.ljust(len(value) + len(value) % 2, b"\0")
        for number, name, value in ((0x040B, b"x", b"an odd text"), (0x0404, b"", content))
    )


def segment(marker, content):
    """A segment of a JPEG file."""
    return struct.pack(">BBH", 0xFF, marker, len(content) + 2) + content


def exif_segment(content):
    return segment(0xE1, b"Exif\0\0" + content.removeprefix(b"Exif\0\0"))


def xmp_segment(content):
    return segment(0xE1, b"http://ns.adobe.com/xap/1.0/\0" + content)


def iptc_segment(content):
    return segment(0xED, b"Photoshop 3.0\0" + content)


def jpeg(*more):
    """A JPEG file with more segments behind the first, and with bytes behind its end."""
    plain = picture(progressive=True, icc_profile=PROFILE)
    at = 4 + struct.unpack_from(">H", plain, 4)[0]
    return plain[:at] + b"".join(more) + plain[at:] + b"a film of a telephone"


def rich_jpeg():
    return jpeg(
        exif_segment(exif()),
        xmp_segment(packet()),
        segment(0xE1, b"http://ns.adobe.com/xmp/extension/\0" + b"0" * 40 + b"more"),
        iptc_segment(resources((2, 25, b"A keyword"))[:24]),  # in two parts
        iptc_segment(resources((2, 25, b"A keyword"))[24:]),
        segment(0xE4, b"something of somebody"),
        b"\xff" + segment(0xFE, b"a comment behind a byte that fills"),
    )


def rich_png():
    text = PngImagePlugin.PngInfo()
    text.add_itxt("XML:com.adobe.xmp", packet().decode(), zip=True)
    text.add_text("Title", "A title")
    return picture("PNG", pnginfo=text, exif=exif(), icc_profile=PROFILE)


def described_png(text, zip=False):
    """A description in a form of PNG alone; Pillow chooses the chunk by the letters."""
    result = PngImagePlugin.PngInfo()
    result.add_text("Description", text, zip=zip)
    return result


def rich_webp():
    return picture("WEBP", "RGBA", exif=exif(), icc_profile=PROFILE, xmp=packet()) + b"more"


def unpadded_webp():
    """A file whose last chunk has an odd size, without the byte that must follow."""
    result = picture("WEBP", exif=exif() + b"x")[:-1]
    assert len(result) % 2 and struct.unpack_from("<I", result, 4)[0] == len(result) - 7
    return result[:4] + struct.pack("<I", len(result) - 8) + result[8:]


FILES = {
    "rich JPEG": rich_jpeg(),
    "rich PNG": rich_png(),
    "rich WEBP": rich_webp(),
    "plain JPEG": picture(),
    "plain PNG": picture("PNG"),
    "plain WEBP": picture("WEBP"),
    "lossless WEBP": picture("WEBP", "RGBA", lossless=True),
}


def others(content):
    """What a file holds beside its descriptions, in order: segments or chunks, and the pixels."""
    if content.startswith(b"\xff\xd8"):
        position, result = 2, []
        while content[position + 1] != 0xDA:
            start = position
            position += content[position + 1] == 0xFF
            marker, size = struct.unpack_from(">xBH", content, position)
            position += 2 + size
            result.append((marker, content[start:position]))
        heads = (b"Exif\0\0", b"http://ns.adobe.com/xap/", b"Photoshop")
        kept = [s for marker, s in result if not any(head in s[:40] for head in heads)]
        return [*kept, content[position:]]
    is_png = content.startswith(b"\x89PNG")
    position, result = 8 if is_png else 12, []
    end = len(content) if is_png else 8 + struct.unpack_from("<I", content, 4)[0]
    while position < end:
        size, name = struct.unpack_from(">I4s" if is_png else "<4xI", content, position), b""
        name = content[position + 4 : position + 8] if is_png else content[position : position + 4]
        step = size[0] + 12 if is_png else 8 + size[0] + size[0] % 2
        if name not in (b"eXIf", b"iTXt", b"EXIF", b"XMP ", b"VP8X"):
            result.append(content[position : position + step])
        position += step
    return [*result, content[end:]]


def tiff(content):
    """The EXIF data of a file, as Pillow finds it."""
    with Image.open(io.BytesIO(content)) as image:
        return image.info["exif"].removeprefix(b"Exif\0\0")


def directory(content):
    """The tags of the first directory of EXIF data, in their order."""
    order = "<" if content.startswith(b"II") else ">"
    (start,) = struct.unpack_from(order + "I", content, 4)
    (count,) = struct.unpack_from(order + "H", content, start)
    return [struct.unpack_from(order + "H", content, start + 2 + 12 * n)[0] for n in range(count)]


def properties(content):
    """XMP without the description and its writer."""
    root = ElementTree.fromstring(content.strip(b"\0"))
    for block in root.iter(f"{{{NAMES['rdf']}}}Description"):
        for element in list(block):
            if element.tag.endswith(("}description", "}CaptionWriter")):
                block.remove(element)
    return ElementTree.canonicalize(ElementTree.tostring(root, "unicode"), strip_text=True)


def caption_of(content):
    """The caption of IPTC in a JPEG file, as Pillow reads it."""
    with Image.open(io.BytesIO(content)) as image:
        return (IptcImagePlugin.getiptcinfo(image) or {}).get((2, 120))


@pytest.mark.parametrize("name", FILES)
def test_no_other_byte_of_a_file_changes(name):
    old = FILES[name]
    new = metadata.with_description(old, TEXT, "de")
    assert others(new) == others(old) and len(others(old)) > 1
    assert metadata.description(old) is None
    assert metadata.description(new) == (TEXT, True)
    with Image.open(io.BytesIO(new)) as image, Image.open(io.BytesIO(old)) as before:
        assert (image.mode, image.tobytes()) == (before.mode, before.tobytes())
    if "rich" in name:
        # Distances in EXIF data, which the notes of cameras hold, too, still lead to what they led.
        assert tiff(new)[8 : len(tiff(old))] == tiff(old)[8:] and MAKER_NOTE in tiff(old)
        tags = list(directory(tiff(new)))
        assert tags == sorted({*directory(tiff(old)), ExifTags.Base.ImageDescription})
    # A shorter description takes the place of the longer one.
    again = metadata.with_description(new, "Ein Hund", "de")
    assert len(again) < len(new) and metadata.description(again) == ("Ein Hund", True)
    assert metadata.with_description(again, TEXT, "de") == new
    removed = metadata.with_description(new, "")
    assert metadata.description(removed) is None and others(removed) == others(old)
    assert TEXT.encode() not in removed


@pytest.mark.parametrize("name", FILES)
def test_pillow_reads_the_description_and_the_other_metadata(name):
    old = FILES[name]
    new = metadata.with_description(old, TEXT, "de")
    with Image.open(io.BytesIO(new)) as image, Image.open(io.BytesIO(old)) as before:
        assert image.info.get("icc_profile") == before.info.get("icc_profile")
        tags, tags_before = image.getexif(), before.getexif()
        description = tags.pop(ExifTags.Base.ImageDescription)
        assert description.encode("latin-1").rstrip(b"\0").decode() == TEXT
        assert dict(tags) == dict(tags_before)
        for directory in (ExifTags.IFD.Exif, ExifTags.IFD.GPSInfo):
            assert tags.get_ifd(directory) == tags_before.get_ifd(directory)
        if "rich" in name:
            assert tags[ExifTags.Base.Orientation] == 6
            exif_tags = tags.get_ifd(ExifTags.IFD.Exif)
            assert exif_tags[ExifTags.Base.MakerNote] == MAKER_NOTE
            assert properties(_bytes(image.info["xmp"])) == properties(packet())
        root = ElementTree.fromstring(_bytes(image.info["xmp"]))
    items = root.findall(".//dc:description/rdf:Alt/rdf:li", NAMES)
    assert [(i.get(LANGUAGE), i.text) for i in items] == [("x-default", TEXT), ("de", TEXT)]
    if "JPEG" in name:
        assert caption_of(new) == TEXT.encode()
    if name == "rich JPEG":
        with Image.open(io.BytesIO(new)) as image:
            assert IptcImagePlugin.getiptcinfo(image)[2, 25] == b"A keyword"
            assert image.info["photoshop"][0x040B] == b"an odd text"


def _bytes(xmp):
    return xmp if isinstance(xmp, bytes) else xmp.encode()


@pytest.mark.skipif(not EXIFTOOL, reason="needs exiftool")
@pytest.mark.parametrize("name", FILES)
def test_exiftool_reads_the_description_and_the_other_metadata(name, tmp_path):
    def read(content):
        path = tmp_path / "picture"
        path.write_bytes(content)
        flags = ["-json", "-G1", "-a", "-u", "-n", "-struct"]
        done = subprocess.run([EXIFTOOL, *flags, path], capture_output=True, check=True)
        names = ("SourceFile", "ExifTool:ExifToolVersion")
        values = json.loads(done.stdout)[0].items()
        return {k: v for k, v in values if k not in names and not k.startswith("System:")}

    old, new = read(FILES[name]), read(metadata.with_description(FILES[name], TEXT, "de"))
    ours = {
        "IFD0:ImageDescription": TEXT,
        "XMP-dc:Description": TEXT,
        "IPTC:Caption-Abstract": TEXT,
    }
    if "JPEG" not in name:
        del ours["IPTC:Caption-Abstract"]
    assert {key: new[key] for key in ours} == ours
    assert new["XMP-dc:Description-de"] == TEXT
    assert new["XMP-photoshop:CaptionWriter"].startswith("tfcap ")
    if "rich" in name:
        changed = {"IFD0:", "XMP-photoshop:CaptionWriter", "File:CurrentIPTCDigest", "RIFF:"}
        assert not [
            k for k, v in old.items() if new.get(k) != v and not k.startswith(tuple(changed))
        ]
        assert {k: v for k, v in old.items() if k.startswith("IFD0:")}.items() <= new.items()


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (jpeg(xmp_segment(packet(SOMEBODYS))), "My dog"),
        (jpeg(xmp_segment(packet("<dc:description>My dog</dc:description>"))), "My dog"),
        (
            jpeg(
                xmp_segment(
                    packet().replace(
                        b"own:rating",
                        b'xmlns:dc="%s" dc:description="My dog" own:rating' % NAMES["dc"].encode(),
                    )
                )
            ),
            "My dog",
        ),
        (jpeg(iptc_segment(resources((2, 120, "Mein Köter".encode("cp1252"))))), "Mein Köter"),
        (jpeg(exif_segment(exif("My dog"))), "My dog"),
        (jpeg(exif_segment(exif("A digital camera"))), "A digital camera"),
        (jpeg(exif_segment(exif("   "))), None),
        (jpeg(exif_segment(exif("OLYMPUS DIGITAL CAMERA         "))), None),
        (jpeg(exif_segment(exif("DCIM\\100GOPRO\\GOPR0482.JPG"))), None),
        (jpeg(exif_segment(exif("DCIM")), iptc_segment(resources((2, 120, b"My dog")))), "DCIM"),
        (jpeg(xmp_segment(b"<damaged"), exif_segment(exif("My dog"))), "My dog"),
        (picture("PNG", pnginfo=described_png("Mein Köter")), "Mein Köter"),
        (picture("PNG", pnginfo=described_png("犬")), "犬"),
        (picture("PNG", pnginfo=described_png("Mein Köter", zip=True)), "Mein Köter"),
        (picture("PNG", pnginfo=described_png("犬", zip=True)), "犬"),
    ],
)
def test_a_description_of_somebody_else_is_found(content, expected):
    assert metadata.description(content) == (expected and (expected, False))


@pytest.mark.parametrize("kind", ["xmp", "exif", "iptc"])
def test_a_description_that_somebody_has_changed_is_no_longer_ours(kind):
    """It is changed in one place, as a program that knows one kind of metadata does."""
    new = metadata.with_description(FILES["plain JPEG"], "My dog")
    assert new.count(b"My dog") == 3
    first, *parts = new.split(b"My dog")
    texts = [b"My cat" if kind == k else b"My dog" for k in ("exif", "xmp", "iptc")]
    changed = first + b"".join(text + part for text, part in zip(texts, parts, strict=True))
    assert metadata.description(changed).is_ours is False
    further = packet(
        SOMEBODYS.replace("</rdf:Alt>", '<rdf:li xml:lang="fr">Mon chien</rdf:li></rdf:Alt>')
    )
    ours = metadata.sidecar(further, "My dog")
    assert metadata.sidecar_description(ours) == ("My dog", True)
    translated = ours.replace(
        b"</rdf:Alt></dc:description>", b"<rdf:li>Mon chien</rdf:li></rdf:Alt></dc:description>"
    )
    assert metadata.sidecar_description(translated).is_ours is False


LOOP = b'<!DOCTYPE x [<!ENTITY a "aaaaaaaaaa"><!ENTITY b "&a;&a;&a;">]>'


@pytest.mark.parametrize(
    ("content", "word"),
    [
        (b"", "only JPEG, PNG and WebP"),
        (picture("GIF"), "only JPEG, PNG and WebP"),
        (picture("TIFF"), "only JPEG, PNG and WebP"),
        (FILES["rich JPEG"][:150], "cut off"),
        (FILES["rich PNG"][:-6], "cut off"),
        (FILES["rich WEBP"][:-20], "cut off"),
        (unpadded_webp(), "cut off"),
        (b"\xff\xd8\xff\xd9", "no picture"),
        (b"\xff\xd8\xff\xe0\0\x04abcd", "damaged before its pixels"),
        (jpeg(xmp_segment(packet()), xmp_segment(packet())), "XMP data twice"),
        (jpeg(exif_segment(exif()), exif_segment(exif())), "EXIF data twice"),
        (jpeg(xmp_segment(packet()[:-200])), "XMP data is damaged"),
        (jpeg(xmp_segment(b"<a/>")), "XMP data is damaged"),
        (jpeg(xmp_segment(b"<a>" * 9000)), "XMP data is damaged"),
        (jpeg(xmp_segment(b"<a>" * 5000 + b"</a>" * 5000)), "XMP data is damaged"),
        (
            jpeg(
                xmp_segment(
                    LOOP + b'<rdf:RDF xmlns:rdf="http://www.w3.org/1999/02/22-rdf-syntax-ns#"/>'
                )
            ),
            "XMP data is damaged",
        ),
        (jpeg(exif_segment(b"MM\0*\0\0\xff\xff")), "EXIF data is damaged"),
        (jpeg(exif_segment(b"MM\0+\0\0\0\x08\0\0")), "EXIF data is damaged"),
        (jpeg(exif_segment(b"MM\0*\0\0\0\x08\0\x63")), "EXIF data is damaged"),
        (
            jpeg(exif_segment(struct.pack(">2sHIHHHII", b"MM", 42, 8, 1, 0x10E, 2, 99, 99))),
            "EXIF data is damaged",
        ),
        (
            jpeg(exif_segment(struct.pack(">2sHIHHHII", b"MM", 42, 8, 1, 0x10E, 4, 9, 8) + b"x")),
            "EXIF data is damaged",
        ),
        (jpeg(exif_segment(exif() + b"\0" * 65100)), "EXIF data has no room"),
        (jpeg(iptc_segment(b"something else")), "IPTC data is damaged"),
        (jpeg(iptc_segment(resources((2, 25, b"x" * 50))[:-9])), "IPTC data is damaged"),
        (
            jpeg(iptc_segment(resources((2, 25, b"x")).replace(b"\x1c\x02", b"\x1d\x02"))),
            "IPTC data is damaged",
        ),
        (jpeg(iptc_segment(resources((2, 25, b"x")) * 2)), "IPTC data twice"),
        (jpeg(iptc_segment(b"\0" + resources((2, 25, b"x")))), "IPTC data is damaged"),
        (jpeg(segment(0xE2, b"MPF\0"), xmp_segment(packet())), "behind their index"),
    ],
)
def test_a_file_that_is_not_understood_is_refused_with_a_sentence(content, word):
    with pytest.raises(metadata.MetadataError, match=word) as refused:
        metadata.with_description(content, TEXT)
    assert "\n" not in str(refused.value) and len(str(refused.value)) < 80


def test_a_damaged_file_raises_no_other_error():
    """Bytes are changed at random, and files are cut."""
    rng = np.random.default_rng(0)
    outcomes = set()
    for name in ("rich JPEG", "rich PNG", "rich WEBP") * 150:
        content = bytearray(FILES[name])
        for _ in range(rng.integers(1, 20)):
            content[rng.integers(3, len(content))] = rng.choice([0, 255, rng.integers(256)])
        content = bytes(content[: rng.choice([len(content), rng.integers(len(content))])])
        try:
            metadata.description(content)
            new = metadata.with_description(content, TEXT)
        except metadata.MetadataError as error:
            outcomes.add(str(error))
        else:
            assert metadata.description(new) == (TEXT, True)
            outcomes.add("written")
    assert len(outcomes) > 5 and "written" in outcomes


def test_pictures_behind_the_first_are_found_where_their_index_says():
    """Positions in the index count from the index, so all that grows stands before it."""
    old = jpeg(exif_segment(exif()), segment(0xE2, b"MPF\0" + b"x" * 20))
    new = metadata.with_description(old, TEXT)
    assert new[new.index(b"MPF\0") :] == old[old.index(b"MPF\0") :]
    order = [new.index(head) for head in (b"JFIF", b"Exif\0\0", b"http://ns.adobe", b"MPF\0")]
    assert order == sorted(order)  # EXIF data is first, as its standard asks for


@pytest.mark.parametrize("order", "<>")
def test_further_directories_are_found_and_positions_are_even(order):
    """The second directory holds the thumbnail. What is behind it has an odd size."""
    mark = b"II*\0" if order == "<" else b"MM\0*"
    entry = struct.pack(order + "HHI4s", ExifTags.Base.Orientation, 3, 1, b"\0\6\6\0")
    old = mark + struct.pack(order + "IH", 8, 1) + entry + struct.pack(order + "I", 999) + b"odd"
    new = tiff(metadata.with_description(jpeg(exif_segment(old)), TEXT))
    (start,) = struct.unpack_from(order + "I", new, 4)
    assert start % 2 == 0 and directory(new) == [0x010E, 0x0112]
    kind, size, place = struct.unpack_from(order + "HII", new, start + 4)
    assert (kind, place % 2) == (2, 0)
    assert new[place : place + size].rstrip(b"\0") == TEXT.encode()
    assert new[start + 14 : start + 26] == entry
    assert struct.unpack_from(order + "I", new, start + 26) == (999,)


def test_exif_data_of_a_webp_file_may_have_the_head_of_a_jpeg_file():
    old = picture("WEBP", exif=b"Exif\0\0" + exif("My dog"))
    head = b"Exif\0\0" + exif("My dog").removeprefix(b"Exif\0\0")
    start = old.index(b"EXIF") + 4
    (size,) = struct.unpack_from("<I", old, start)
    content = old[:start] + struct.pack("<I", len(head)) + head + b"\0" * (len(head) % 2)
    content += old[start + 4 + size + size % 2 :]
    content = content[:4] + struct.pack("<I", len(content) - 8) + content[8:]
    assert metadata.description(content) == ("My dog", False)


def test_older_exif_data_of_a_png_file_keeps_its_orientation():
    """ImageMagick wrote it as text. Beside a chunk of EXIF data programs would not read it."""
    text = PngImagePlugin.PngInfo()
    text.add_text("Raw profile type exif", "\nexif\n   2\n4d4d\n", zip=True)
    new = metadata.with_description(picture("PNG", pnginfo=text), TEXT)
    assert b"eXIf" not in new and metadata.description(new) == (TEXT, True)


@pytest.mark.parametrize("zip", [True, False])
def test_large_texts_of_a_png_file_are_refused(monkeypatch, zip):
    """Small chunks can unpack to any size, and a file can have many of them."""
    monkeypatch.setattr("tfcap.metadata.blocks._MOST_BYTES", 2000)
    fits = picture("PNG", pnginfo=described_png("a" * 1999, zip))
    assert metadata.description(fits).text == "a" * 1999
    end = fits.index(b"IDAT") - 4
    start = fits.index(b"Description") - 8
    with pytest.raises(metadata.MetadataError, match="too large"):
        metadata.description(fits[:end] + fits[start:end] + fits[end:])


def test_a_compressed_text_that_is_cut_off_is_refused():
    whole = picture("PNG", pnginfo=described_png("a dog", zip=True))
    start = whole.index(b"Description") - 8
    (size,) = struct.unpack_from(">I", whole, start)
    cut = whole[start + 4 : start + 2 + size]
    chunk = struct.pack(">I", size - 6) + cut + struct.pack(">I", zlib.crc32(cut))
    with pytest.raises(metadata.MetadataError, match="a text of the file is cut off"):
        metadata.description(whole[:start] + chunk + whole[start + size + 12 :])


@pytest.mark.parametrize(
    ("data_sets", "text", "expected"),
    [
        ((), "A dog", (b"A dog", None)),
        ((), TEXT, (TEXT.encode(), b"\x1b%G")),
        (((2, 25, "Köter".encode()),), TEXT, (TEXT.encode(), b"\x1b%G")),
        (((1, 90, b"\x1b%G"), (2, 25, b"\xc3")), TEXT, (TEXT.encode(), b"\x1b%G")),
        # UTF-8 beside letters of another set of characters would change these.
        (((2, 25, "Köter".encode("cp1252")),), TEXT, (None, None)),
        (((2, 25, "Köter".encode("cp1252")),), "A dog", (b"A dog", None)),
        (((1, 90, b"\x1b-A"),), TEXT, (None, b"\x1b-A")),
        ((), "A dog. " * 400, (None, None)),
    ],
)
def test_iptc_keeps_its_set_of_characters(data_sets, text, expected):
    new = metadata.with_description(jpeg(iptc_segment(resources(*data_sets))), text)
    with Image.open(io.BytesIO(new)) as image:
        found = IptcImagePlugin.getiptcinfo(image) or {}
    assert (found.get((2, 120)), found.get((1, 90))) == expected
    kept = [value for record, number, value in data_sets if (record, number) == (2, 25)]
    assert [found[key] for key in [(2, 25)] if key in found] == kept
    assert metadata.description(new).is_ours


def test_a_data_set_of_any_size_stays_and_zeros_behind_the_last_one_do_no_harm():
    keyword = b"x" * 40000  # its size takes four bytes, and it stands in one segment alone
    content = b"\x1c\x02\x19\x80\x04" + struct.pack(">I", len(keyword)) + keyword + b"\0\0"
    size = struct.pack(">I", len(content))
    new = metadata.with_description(
        jpeg(iptc_segment(b"8BIM\x04\x04\0\0" + size + content + b"\0\0")), TEXT
    )
    with Image.open(io.BytesIO(new)) as image:
        found = image.info["photoshop"][0x0404]
    assert content.rstrip(b"\0") in found
    assert metadata.description(metadata.with_description(new, "")) is None


@pytest.mark.parametrize("agreed", [True, False])
def test_the_digest_of_iptc_data_says_whether_it_agrees_with_xmp(agreed):
    """It says so as before: where it differs, programs read IPTC in place of XMP."""
    content = b"\x1c\x02\x19\0\x03dog"
    old = hashlib.md5(content if agreed else b"").digest()
    digest = b"8BIM\x04\x25\0\0\0\0\0\x10" + old
    segments = iptc_segment(resources((2, 25, b"dog")) + digest)
    assert content in segments
    new = metadata.with_description(jpeg(segments), TEXT)
    with Image.open(io.BytesIO(new)) as image:
        found = image.info["photoshop"]
    assert found[0x0425] == (hashlib.md5(found[0x0404]).digest() if agreed else old)


def test_a_webp_file_says_what_is_in_it():
    for name, flags in (("plain WEBP", 0x0C), ("lossless WEBP", 0x1C), ("rich WEBP", 0x3C)):
        new = metadata.with_description(FILES[name], TEXT)
        assert new[12:16] == b"VP8X" and new[20] == flags
        width, height = new[24:27], new[27:30]
        assert [int.from_bytes(side, "little") + 1 for side in (width, height)] == [32, 24]
        behind = len(FILES[name]) - 8 - struct.unpack_from("<I", FILES[name], 4)[0]
        assert struct.unpack_from("<I", new, 4)[0] == len(new) - 8 - behind


def test_control_characters_and_line_ends_become_spaces():
    new = metadata.with_description(FILES["plain PNG"], "a\x00 \ud800dog\n<runs> & ")
    assert metadata.description(new) == ("a dog <runs> &", True)
    assert all(zlib.crc32(c[4:-4]) == int.from_bytes(c[-4:], "big") for c in others(new)[:-1])


def test_a_sidecar_keeps_its_other_properties_and_their_names():
    new = metadata.sidecar(packet(), TEXT, "de")
    assert properties(new) == properties(packet()) and b"own:rating" in new
    assert metadata.sidecar_description(new) == (TEXT, True)
    removed = metadata.sidecar(new, "")
    assert metadata.sidecar_description(removed) is None and b"CaptionWriter" not in removed
    assert metadata.sidecar_description(metadata.sidecar(b"", TEXT)) == (TEXT, True)
    for other in (b"no XMP", b"<a/>"):
        with pytest.raises(metadata.MetadataError, match="XMP data is damaged"):
            metadata.sidecar(other, TEXT)
