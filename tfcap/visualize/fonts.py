"""Chooses fonts for the labels of figures: matplotlib's own has no Chinese, Thai or Hindi letters.

matplotlib draws each letter with the first family of a list that has it. Fonts are searched only
for letters that its own font lacks.
"""

import contextlib
import functools
import sys
import unicodedata
from collections.abc import Set

import numpy as np

from tfcap import progress

# Families of matplotlib that draw boxes or formulas, and a similar one.
_NO_TEXT = ("Last Resort", "Adobe Blank", "cm", "STIX")
_EAST_ASIAN = ("CJK", "HIRAGANA", "KATAKANA", "HANGUL", "BOPOMOFO", "IDEOGRAPHIC", "FULLWIDTH")
_SHAPED = range(0x590, 0xE00)  # Hebrew to Sinhala: matplotlib before 3.11 cannot shape them
_SAID: set[str] = set()


def families(text: str) -> list[str]:
    """Returns the families of fonts for `text`: matplotlib's own, and others for letters it lacks.

    A line on standard error names letters that no installed font has.
    """
    import matplotlib
    from matplotlib import font_manager

    usual = font_manager.FontProperties().get_family()
    # Without spaces and marks of direction, which have no picture.
    codes = {ord(letter) for letter in text if unicodedata.category(letter)[0] not in "CZ"}
    if matplotlib.__version_info__ < (3, 11) and codes & {*_SHAPED}:
        _say(
            "matplotlib before 3.11 neither joins the letters of Arabic and of the scripts of "
            "India nor writes Arabic and Hebrew from right to left: pip install -U matplotlib"
        )
    missing = codes.difference(*(_in_family(codes, family) for family in usual))
    chosen: list[str] = []
    for path, family in _installed(_region(text)) if missing else ():
        # matplotlib may take another file of this family.
        if _in_file(missing, path) and (drawn := _in_family(missing, family)):
            chosen.append(family)
            missing -= drawn
        if not missing:
            break
    _say_missing({*map(chr, missing)})
    return [*usual, *chosen]


def width(text: str) -> int:
    """Returns how many letters of the Latin script are about as wide as `text`."""
    return sum(2 if unicodedata.east_asian_width(letter) in "WF" else 1 for letter in text)


def _region(text: str) -> str:
    """Returns the ending of families whose Chinese characters have the forms of the language."""
    names = " ".join(unicodedata.name(letter, "") for letter in set(text))
    regions = {"KATAKANA": "JP", "HIRAGANA": "JP", "HANGUL": "KR"}
    return next((region for script, region in regions.items() if script in names), "SC")


@functools.cache
def _installed(region: str) -> list[tuple[str, str]]:
    """Returns path and family of the installed fonts: upright, regular and sans serif first."""
    from matplotlib import font_manager

    manager = font_manager.fontManager
    # The list that matplotlib stores may be older than a font.
    for path in sorted({*font_manager.findSystemFonts()} - {f.fname for f in manager.ttflist}):
        with contextlib.suppress(Exception):  # of several kinds, for bitmaps and damaged files
            manager.addfont(path)

    def rank(font):
        weight = font_manager.weight_dict.get(font.weight, font.weight)
        sans = "sans" in font.name.lower() or "gothic" in font.name.lower()
        elsewhere = not font.name.endswith(f" {region}")
        return font.style != "normal", abs(weight - 400), not sans, elsewhere, font.name, font.fname

    fonts = sorted(manager.ttflist, key=rank)
    return [(font.fname, font.name) for font in fonts if not font.name.startswith(_NO_TEXT)]


def _in_family(codes: Set[int], family: str) -> set[int]:
    """Returns the codes that the font has which matplotlib takes for a family."""
    from matplotlib import font_manager

    properties = font_manager.FontProperties(family=[family])
    try:
        return _in_file(codes, str(font_manager.findfont(properties, fallback_to_default=False)))
    except ValueError:  # no font of this family is installed
        return set()


def _in_file(codes: Set[int], path: str) -> set[int]:
    wanted = np.array(sorted(codes), np.uint32)
    return set(wanted[np.isin(wanted, _codes(path))].tolist())


@functools.cache
def _codes(path: str) -> np.ndarray:
    """Returns the letters of a font file: uint32 [number of letters]."""
    from matplotlib.ft2font import FT2Font

    try:
        return np.fromiter(FT2Font(path).get_charmap(), np.uint32)
    except Exception:  # of a damaged file
        return np.zeros([0], np.uint32)


def _say_missing(letters: Set[str]) -> None:
    """Says once for each of two groups of scripts which letters have no font, and what to do."""
    asian = {x for x in letters if unicodedata.name(x, "").startswith(_EAST_ASIAN)}
    for font, lacking in (
        ("Noto Sans CJK (Debian: fonts-noto-cjk)", asian),
        ("Noto Sans (Debian: fonts-noto-core)", letters - asian),
    ):
        if lacking:
            shown = " ".join(sorted(lacking)[:10])
            _say(
                f"no installed font has these letters: {shown}. Figures show boxes in their "
                f"place. Install a font of the script, such as {font}.",
                about=font,
            )


def _say(note: str, about: str = "") -> None:
    """Prints a note once; notes `about` the same are one."""
    if (about or note) not in _SAID:
        _SAID.add(about or note)
        progress.say(f"note: {note}", sys.stderr)
