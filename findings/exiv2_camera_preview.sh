#!/usr/bin/env bash
# Exiv2 deletes a preview that the notes of a camera point to when it writes a tag of EXIF.
#
# Versions: Exiv2 0.28.8 (pyexiv2 2.16.0) and Pillow 12.0.0; Python 3.10 to 3.13.
# Behaviour: where the EXIF data must grow, Exiv2 writes it again from the tags that it knows. Some
#   cameras store a preview behind the directories. Casio's notes say how large it is and where it
#   starts, counted from the start of the EXIF data. The numbers stay; the bytes are gone.
# Expected by most: a tag is added, and other metadata stays.
# Why it matters: digiKam, darktable and many scripts describe pictures with Exiv2. It happens to
#   tests/36-memory_error.jpg and 35-empty.jpg of a Casio EX-M2 and an EX-Z750 in
#   github.com/ianare/exif-samples. In t/images/Ricoh.jpg of github.com/exiftool/exiftool 26 tags of
#   a Ricoh Caplio RR1 are no longer found. For other cameras see github.com/Exiv2/exiv2 issue 1081.
# tfcap: it appends to EXIF data and moves nothing.
#
# Output seen on 2026-11-28:
#   before: a preview of 677 bytes at 272 of 949 bytes of EXIF data: a JPEG file of 64 x 48
#   after: a preview of 677 bytes at 272 of 296 bytes of EXIF data: 24 bytes, no JPEG file
#   as stated
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder"
"$folder/bin/pip" install --quiet --no-compile --disable-pip-version-check \
  pyexiv2==2.16.0 pillow==12.0.0
"$folder/bin/python" -I - <<'EOF'
import io
import struct
import sys

import pyexiv2
from PIL import Image

TEXT, SHORT, LONG, RATIO, BYTES = 2, 3, 4, 5, 7  # types of tags
SIZES = {TEXT: 1, SHORT: 2, LONG: 4, RATIO: 8, BYTES: 1}


def picture(size, color="green"):
    file = io.BytesIO()
    Image.new("RGB", size, color).save(file, "JPEG")
    return file.getvalue()


def directory(tags, start):
    """A directory of EXIF data at a position, and what does not fit into it behind it."""
    behind = start + 2 + 12 * len(tags) + 4
    entries, values = struct.pack(">H", len(tags)), b""
    for tag, kind, value in tags:
        entries += struct.pack(">HHI", tag, kind, len(value) // SIZES[kind])
        if len(value) <= 4:
            entries += value.ljust(4, b"\0")
        else:
            entries += struct.pack(">I", behind + len(values))
            values += value + b"\0" * (len(value) % 2)
    return entries + bytes(4) + values


def exif(preview_start):
    """EXIF data with all tags that its standard asks for, and the notes of a Casio camera."""
    note = b"QVC\0\0\0" + directory(
        [
            (0x0003, LONG, struct.pack(">I", len(preview))),
            (0x0004, LONG, struct.pack(">I", preview_start)),
        ],
        0,
    )
    first = [
        (0x010F, TEXT, b"CASIO COMPUTER CO.,LTD.\0"),
        (0x0110, TEXT, b"EX-M2 \0"),
        (0x011A, RATIO, struct.pack(">II", 72, 1)),
        (0x011B, RATIO, struct.pack(">II", 72, 1)),
        (0x0128, SHORT, struct.pack(">H", 2)),
        (0x0213, SHORT, struct.pack(">H", 1)),
    ]
    start = 8 + len(directory([*first, (0x8769, LONG, bytes(4))], 8))
    further = [
        (0x9000, BYTES, b"0220"),
        (0x9101, BYTES, bytes([1, 2, 3, 0])),
        (0x927C, BYTES, note),
        (0xA000, BYTES, b"0100"),
        (0xA001, SHORT, struct.pack(">H", 1)),
        (0xA002, LONG, struct.pack(">I", 320)),
        (0xA003, LONG, struct.pack(">I", 240)),
    ]
    return (
        struct.pack(">2sHI", b"MM", 42, 8)
        + directory([*first, (0x8769, LONG, struct.pack(">I", start))], 8)
        + directory(further, start)
    )


def preview_of(content):
    """What the notes of the camera point to."""
    with Image.open(io.BytesIO(content)) as image:
        data = image.info["exif"].removeprefix(b"Exif\0\0")
    with pyexiv2.ImageData(content) as image:
        tags = image.read_exif()
    start, size = (int(tags[f"Exif.Casio2.PreviewImage{name}"]) for name in ("Start", "Length"))
    found = data[start : start + size]
    try:
        with Image.open(io.BytesIO(found)) as image:
            image.load()
            words = "a JPEG file of {} x {}".format(*image.size)
    except OSError:
        words = f"{len(found)} bytes, no JPEG file"
    return (
        f"a preview of {size} bytes at {start} of {len(data)} bytes of EXIF data: {words}",
        found == preview,
    )


preview = picture((64, 48), "red")
data = b"Exif\0\0" + exif(len(exif(0))) + preview
plain = picture((320, 240))
before = plain[:2] + b"\xff\xe1" + struct.pack(">H", len(data) + 2) + data + plain[2:]
with pyexiv2.ImageData(before) as image:
    image.modify_exif({"Exif.Image.ImageDescription": "A dog runs."})
    after = image.get_bytes()
(words, has), (words_after, has_after) = preview_of(before), preview_of(after)
print(f"before: {words}\nafter: {words_after}")
if not has or has_after or preview in after:
    sys.exit("CHANGED: the preview is still there")
print("as stated")
EOF
