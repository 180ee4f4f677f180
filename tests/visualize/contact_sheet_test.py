"""A contact sheet shows pictures of all shapes, and refuses what it cannot read."""

import numpy as np
import pytest
from PIL import Image

from tfcap.visualize import contact_sheet


def test_a_sheet_shows_pictures_of_all_shapes_and_modes(tmp_path):
    files = [tmp_path / name for name in ("wide.jpg", "high.png", "gray.png")]
    for file, mode, size in zip(
        files, ("RGB", "RGBA", "L"), ((900, 90), (30, 400), (50, 50)), strict=True
    ):
        Image.new(mode, size).save(file)
    tiles = [(str(file), "text " * 20) for file in files]
    contact_sheet.write(str(tmp_path / "a.png"), [("a title " * 40, tiles), ("b", tiles[:1])])
    assert Image.open(tmp_path / "a.png").size == (12 + 3 * 252, 12 + 2 * (56 + 240 + 12))
    (tmp_path / "text.png").write_text("no picture")
    noise = np.random.default_rng(1).integers(0, 255, (200, 200, 3), dtype=np.uint8)
    Image.fromarray(noise).save(tmp_path / "broken.png")
    content = (tmp_path / "broken.png").read_bytes()
    second = content.index(b"IDAT", content.index(b"IDAT") + 1)
    (tmp_path / "broken.png").write_bytes(content[:second] + b"\0\0\0\0" + content[second + 4 :])
    for file, part in (
        (tmp_path / "none.png", "No such file"),
        (tmp_path / "text.png", "not a"),
        (tmp_path / "broken.png", "not a picture that can be decoded"),
    ):
        with pytest.raises(ValueError, match=f"{file.name}: {part}"):
            contact_sheet.write(str(tmp_path / "b.png"), [("a", [(str(file), "")])])
    with pytest.raises(ValueError, match="too many for a sheet"):
        contact_sheet.write(str(tmp_path / "b.png"), [("a", tiles * 1000)])
    assert not list(tmp_path.glob("b.png*"))


def test_pictures_of_a_sheet_are_upright(tmp_path):
    """The picture lies on its side; its left half is red, which EXIF turns to the top."""
    picture, exif = Image.new("RGB", (80, 40), "blue"), Image.Exif()
    picture.paste("red", (0, 0, 40, 40))
    exif[0x0112] = 6
    picture.save(tmp_path / "a.jpg", exif=exif)
    contact_sheet.write(str(tmp_path / "a.png"), [("a", [(str(tmp_path / "a.jpg"), "")])])
    with Image.open(tmp_path / "a.png") as sheet:
        middle = contact_sheet.EDGE + contact_sheet.TILE // 2
        top = contact_sheet.EDGE + contact_sheet.LINE
        colours = [sheet.getpixel((middle, top + y)) for y in (20, contact_sheet.TILE - 20)]
    assert [max(range(3), key=colour.__getitem__) for colour in colours] == [0, 2]
