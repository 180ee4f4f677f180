"""Letters that matplotlib's font lacks are drawn with another font, or they are named."""

import io

import matplotlib
import numpy as np
import pytest
from fontTools.fontBuilder import FontBuilder
from fontTools.pens.ttGlyphPen import TTGlyphPen
from matplotlib import font_manager
from PIL import Image

from tfcap.visualize import figures, fonts
from tfcap.visualize.attention import Attended

WORDS = {
    "Chinese": "一只 狗",
    "Japanese": "犬 が いる",
    "Korean": "개 한",
    "Thai": "สุนัข วิ่ง",
    "Hindi": "एक कुत्ता",
}


def write_font(path, family, letters):
    """Writes a font in which each of `letters` is a black square as high as the line."""
    pen = TTGlyphPen(None)
    pen.moveTo((0, 0))
    for corner in ((0, 1000), (1000, 1000), (1000, 0)):
        pen.lineTo(corner)
    pen.closePath()
    builder = FontBuilder(1000, isTTF=True)
    builder.setupGlyphOrder([".notdef", "square"])
    builder.setupCharacterMap({ord(letter): "square" for letter in letters})
    builder.setupGlyf({".notdef": TTGlyphPen(None).glyph(), "square": pen.glyph()})
    builder.setupHorizontalMetrics({".notdef": (1000, 0), "square": (1000, 0)})
    builder.setupHorizontalHeader(ascent=1000, descent=0)
    builder.setupNameTable({"familyName": family, "styleName": "Regular"})
    builder.setupOS2(sTypoAscender=1000, usWinAscent=1000, usWeightClass=400)
    builder.setupPost()
    builder.save(path)
    return str(path)


@pytest.fixture
def installed(monkeypatch):
    """The fonts of matplotlib alone are installed; the paths in the returned list, too."""
    manager, more = font_manager.fontManager, []
    data = matplotlib.get_data_path()
    only = [font for font in manager.ttflist if font.fname.startswith(data)]
    monkeypatch.setattr(manager, "ttflist", only)
    monkeypatch.setattr(font_manager, "findSystemFonts", lambda: list(more))
    monkeypatch.setattr(fonts, "_SAID", set())
    fonts._installed.cache_clear()
    yield more
    fonts._installed.cache_clear()


def drawn(text):
    words = text.split()
    calls = Attended(words, np.full((len(words), 4), 0.25), np.zeros((4, 4)), "attention")
    png = figures.figure(np.full((40, 60, 3), 255, np.uint8), calls, size=60)
    return np.asarray(Image.open(io.BytesIO(png)).convert("L"))


def squares(pixels):
    """The number of black areas of 9 x 9 pixels; the letters of other fonts are thinner."""
    windows = np.lib.stride_tricks.sliding_window_view(pixels < 60, (9, 9))
    return windows.all((-2, -1)).sum()


@pytest.mark.parametrize("language", WORDS)
def test_a_font_that_has_the_letters_is_used(language, installed, tmp_path, capsys):
    text = WORDS[language]
    broken = tmp_path / "broken.ttf"
    broken.write_bytes(b"no font")
    installed += [str(broken), write_font(tmp_path / "font.ttf", "Squares", text)]
    assert fonts.families(f"a {text}") == [*matplotlib.rcParams["font.family"], "Squares"]
    assert squares(drawn(text)) and "font" not in capsys.readouterr().err
    assert (drawn(text) == drawn(text)).all()


def test_letters_without_a_font_are_named_once_with_the_font_to_install(installed, capsys):
    assert fonts.families("a dog, écrit à Łódź") == matplotlib.rcParams["font.family"]
    assert not capsys.readouterr().err
    assert not squares(drawn("a dog 一只 狗")) and not squares(drawn("猫"))
    fonts.families("สุนัข")
    one, two = capsys.readouterr().err.splitlines()
    assert one.startswith("note: no installed font has these letters: 一 只 狗.")
    assert one.endswith("Noto Sans CJK (Debian: fonts-noto-cjk).")
    assert "ส" in two and two.endswith("Noto Sans (Debian: fonts-noto-core).")


def test_several_fonts_are_used_together_and_upright_ones_first(installed, tmp_path):
    """The Chinese forms of a font for Japanese come only if the text is Japanese."""
    shared = "一只 狗が"
    for family, letters in (
        ("Noto Sans CJK JP", shared),
        ("Noto Sans CJK SC", shared),
        ("Aa Fancy", shared),
        ("Noto Sans Thai", "สุนัข"),
    ):
        installed.append(write_font(tmp_path / f"{family}.ttf", family, letters))
    own = matplotlib.rcParams["font.family"]
    assert fonts.families("一只 สุนัข")[len(own) :] == ["Noto Sans CJK SC", "Noto Sans Thai"]
    assert fonts.families("狗が")[len(own) :] == ["Noto Sans CJK JP"]


def test_wide_letters_have_room_in_the_title(installed, tmp_path):
    """A Chinese letter is twice as wide as the room for a Latin one."""
    text = " ".join(["一只狗"] * 20)
    installed.append(write_font(tmp_path / "font.ttf", "Squares", text))
    pixels = drawn(text)[:40]
    assert squares(pixels) and (pixels[:, -12:] > 200).all()
