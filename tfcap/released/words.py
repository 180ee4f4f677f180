"""Vocabulary tables of the released codes, in our order of words.

Letters: V our vocabulary size, V' that of a released model.

Ours is <pad> <bos> <eos> <unk> and then the words in their released order. X-LAN's authors, in both
of their toolkits, give one id, 0, to beginning, end and padding; line i of their file, counted from
1, has the id i. ExpansionNet sorts its marks PAD, SOS, EOS and UNK among the words. Its search may
emit PAD and SOS like any word, which ours never does, so that these two stay words as well: the
probabilities of all others are then the same.
"""

import collections
import json
import os

import numpy as np

from tfcap.data.tokens import SPECIALS, Vocab

_UNKNOWN = ("UNK", "<unk>", "<UNK>", "[UNK]")
_MARKS = ("PAD", "SOS", "EOS", "UNK")  # of ExpansionNet, in our order


def read(family: str, path: str | os.PathLike) -> tuple[Vocab, np.ndarray]:
    """Reads the table of a released model.

    Args:
      family: as in `systems`; `expansionnet` has all ids in its file, the others begin
        with id 1.
      path: the words in the order of their ids, one per line or as a JSON list, which can hold
        words such as the newline that ExpansionNet's vocabulary begins with.

    Returns:
      Our vocabulary, and the released id of each of our words, int64 [V].

    Raises:
      ValueError: not such a file, a mark is missing or there twice, or a word is.
    """
    words = _words(path)
    doubled = [word for word, count in collections.Counter(words).items() if count > 1]
    if doubled:
        raise ValueError(f"{path}: {doubled[0]!r} is there twice, an id must mean one word")
    if family == "expansionnet":
        lost = [mark for mark in _MARKS if mark not in words]
        if lost:
            raise ValueError(
                f"{path}: {', '.join(lost)} must be among the words of ExpansionNet, as its marks"
            )
        marks, first = [words.index(mark) for mark in _MARKS], 0
        apart = marks[2:]
    else:
        unknown = [number for number, word in enumerate(words, 1) if word in _UNKNOWN]
        if len(unknown) != 1:
            raise ValueError(
                f"{path}: exactly one word must be the unknown one ({', '.join(_UNKNOWN)}); "
                f"there are {len(unknown)}"
            )
        marks, first = [0, 0, 0, unknown[0]], 1
        apart = marks
    rest = [number for number in range(first, first + len(words)) if number not in apart]
    vocab = Vocab(
        [*SPECIALS, *(_printable(words[number - first]) for number in rest)], source=str(path)
    )
    return vocab, np.array([*marks, *rest])


def _words(path):
    """The entries of a table, by line or by JSON."""
    try:
        with open(path, "rb") as file:
            text = file.read().decode("utf-8-sig")
    except OSError as error:
        raise ValueError(f"{path} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is not UTF-8 at byte {error.start}") from error
    try:
        words = json.loads(text)
    except (ValueError, RecursionError):
        words = None
    if not isinstance(words, list):  # not splitlines(): it also cuts where there is no line end
        words = [line.strip() for line in text.removesuffix("\n").split("\n")]
    wrong = [word for word in words if not isinstance(word, str)]
    if wrong or len(words) < 2:
        raise ValueError(f"{path} must hold one word per line, or a JSON list of words")
    return words


def _printable(word: str) -> str:
    """A word that can stand in vocab.txt and in a sentence: white space as its escape."""
    if word in SPECIALS or not word:
        return f"[{word.strip('<>') or 'empty'}]"
    escapes = {c: "\\x20" if c == " " else ascii(c)[1:-1] for c in word if c.isspace()}
    return word.translate(str.maketrans(escapes))
