"""Chooses fonts for the labels of figures: matplotlib's own has no Chinese, Thai or Hindi letters.

matplotlib draws each letter with the first family of a list that has it. Fonts are searched only
for letters that its own font lacks.
"""

import contextlib
import functools
import logging
import unicodedata
from collections.abc import Set

import numpy as np

_log = logging.getLogger(__name__)

# Families without text: they draw boxes or formulas. Three of them come with matplotlib.
_NO_TEXT = ("Last Resort", "Adobe Blank", "cm", "STIX")
_EAST_ASIAN = ("CJK", "HIRAGANA", "KATAKANA", "HANGUL", "BOPOMOFO", "IDEOGRAPHIC", "FULLWIDTH")
_SHAPED = range(0x590, 0xE00)  # Hebrew to Sinhala: matplotlib before 3.11 cannot shape them
_SAID: set[str] = set()  # the subjects of the notes so far


def families(text: str) -> list[str]:
    """Returns the names of font families that together have the letters of a text.

    The first ones are those that matplotlib is set to. Others follow for letters that these lack. A
    warning names letters that no installed font has.
    """
    import matplotlib
    from matplotlib import font_manager

    usual = font_manager.FontProperties().get_family()
    # Spaces and marks of direction have no picture, so they need no font.
    codes = {ord(letter) for letter in text if unicodedata.category(letter)[0] not in "CZ"}
    if matplotlib.__version_info__ < (3, 11) and codes & {*_SHAPED}:
        _warn_once(
            "matplotlib before 3.11 neither joins the letters of Arabic and of the scripts of "
            "India nor writes Arabic and Hebrew from right to left: pip install -U matplotlib",
            subject="matplotlib",
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
    _warn_of_missing({*map(chr, missing)})
    return [*usual, *chosen]


def width(text: str) -> int:
    """Returns the width of a text: a Chinese character is 2, a Latin letter 1, an accent 0."""
    letters = [letter for letter in text if unicodedata.category(letter) != "Mn"]
    return sum(2 if unicodedata.east_asian_width(letter) in "WF" else 1 for letter in letters)


def _region(text: str) -> str:
    """Returns the ending of the names of families for the language of a text: JP, KR or SC.

    Languages write the same Chinese characters in different forms.
    """
    names = " ".join(unicodedata.name(letter, "") for letter in set(text))
    regions = {"KATAKANA": "JP", "HIRAGANA": "JP", "HANGUL": "KR"}
    return next((region for script, region in regions.items() if script in names), "SC")


@functools.cache
def _installed(region: str) -> list[tuple[str, str]]:
    """Returns path and family of the installed fonts, the most suitable first.

    Those are upright, regular and sans serif, and have the forms of `_region`.
    """
    from matplotlib import font_manager

    manager = font_manager.fontManager
    # The list that matplotlib stores may be older than a font.
    for path in sorted({*font_manager.findSystemFonts()} - {f.fname for f in manager.ttflist}):
        with contextlib.suppress(Exception):  # of several kinds, for bitmaps and damaged files
            manager.addfont(path)

    def rank(font):
        weight = font_manager.weight_dict.get(font.weight, font.weight)
        sans = "sans" in font.name.lower() or "gothic" in font.name.lower()
        foreign = not font.name.endswith(f" {region}")
        return font.style != "normal", abs(weight - 400), not sans, foreign, font.name, font.fname

    fonts = sorted(manager.ttflist, key=rank)
    return [(font.fname, font.name) for font in fonts if not font.name.startswith(_NO_TEXT)]


def _in_family(codes: Set[int], family: str) -> set[int]:
    """Returns those of the codes that are in the font which matplotlib chooses for a family."""
    from matplotlib import font_manager

    properties = font_manager.FontProperties(family=[family])
    try:
        return _in_file(codes, str(font_manager.findfont(properties, fallback_to_default=False)))
    except ValueError:  # no font of this family is installed
        return set()


def _in_file(codes: Set[int], path: str) -> set[int]:
    """Returns those of the codes that are in a font file."""
    wanted = np.array(sorted(codes), np.uint32)
    return set(wanted[np.isin(wanted, _codes(path))].tolist())


@functools.cache
def _codes(path: str) -> np.ndarray:
    """Returns the codes of the letters of a font file: uint32 [number of letters]."""
    from matplotlib.ft2font import FT2Font

    try:
        return np.fromiter(FT2Font(path).get_charmap(), np.uint32)
    except Exception:  # of a damaged file
        return np.zeros([0], np.uint32)


def _warn_of_missing(letters: Set[str]) -> None:
    """Says which letters have no font, and what to do, once for East Asian and other scripts."""
    asian = {x for x in letters if unicodedata.name(x, "").startswith(_EAST_ASIAN)}
    for font, lacking in (
        ("Noto Sans CJK (Debian: fonts-noto-cjk)", asian),
        ("Noto Sans (Debian: fonts-noto-core)", letters - asian),
    ):
        if lacking:
            shown = " ".join(sorted(lacking)[:10])
            _warn_once(
                f"no installed font has these letters: {shown}. Figures show boxes in their "
                f"place. Install a font of the script, such as {font}.",
                subject=font,
            )


def _warn_once(note: str, subject: str) -> None:
    """Logs a note, unless there was one on the same subject."""
    if subject not in _SAID:
        _SAID.add(subject)
        _log.warning(f"note: {note}")
