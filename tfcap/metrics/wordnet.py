"""Synonyms of English words: the synonym sets of WordNet 3.0 inside the jar of METEOR.

pycocoevalcap brings the jar, so that no download is needed. Its file synonym/english.synsets has
two lines for each word: the word, with _ between the parts of a compound, and the numbers of the
synonym sets that hold it. Two words are synonyms if they share a set (METEOR, Denkowski and Lavie
2014; SPICE, Anderson et al. 2016, section 3.2, uses the same rule).
"""

import functools
import pathlib
import zipfile
from collections.abc import Mapping

from pycocoevalcap.meteor import meteor as official

_JAR = pathlib.Path(official.__file__).parent / official.METEOR_JAR
_FILE = "synonym/english.synsets"
_LARGEST = 1 << 26  # bytes; the file has 3.7 MB


@functools.cache
def _sets() -> Mapping[str, str]:
    """Returns the line of set numbers of each word."""
    with zipfile.ZipFile(_JAR) as archive:
        if archive.getinfo(_FILE).file_size > _LARGEST:
            raise ValueError(f"{_JAR}: {_FILE} must have at most {_LARGEST} bytes. Install again.")
        lines = archive.read(_FILE).decode("utf-8").split("\n")
    return dict(zip(lines[0::2], lines[1::2], strict=False))


@functools.lru_cache(maxsize=1 << 16)
def synsets(word: str) -> frozenset[str]:
    """Returns the numbers of the synonym sets of a word; a compound has spaces or _."""
    return frozenset(_sets().get(word.replace(" ", "_"), "").split())


def synonymous(one: str, other: str) -> bool:
    """Returns whether two words are equal or share a synonym set."""
    return one == other or not synsets(one).isdisjoint(synsets(other))
