"""Reads the vocabulary tables of the released codes and puts them in our order of words.

Letters: V our vocabulary size.

Our order is <pad> <bos> <eos> <unk>, then the words in their released order. X-LAN's authors, in
both of their toolkits, use the id 0 for beginning, end and padding; line i of their file, counted
from 1, has the id i. ExpansionNet has its marks PAD, SOS, EOS and UNK among the sorted words. Its
search may emit PAD and SOS as words; ours never emits <pad> and <bos>. So PAD and SOS stay in our
vocabulary as words, and all words keep their released probabilities.
"""

import collections
import json
import os
import re

import numpy as np

from tfcap.data.tokens import SPECIALS, Vocab

_UNKNOWN = ("UNK", "<unk>", "<UNK>", "[UNK]")
# Where toolkits keep their table; cocotalk.json of ruotianluo's has the first.
_TABLES = ("ix_to_word", "word_to_ix", "itow", "wtoi", "idx2word", "word2idx")
_MARKS = ("PAD", "SOS", "EOS", "UNK")  # of ExpansionNet, in our order


def read(family: str, path: str | os.PathLike) -> tuple[Vocab, np.ndarray]:
    """Reads the table of a released model.

    Args:
      family: one of `released.FAMILIES`. The file of `expansionnet` has a word for every id, the
        files of the others begin with id 1.
      path: a file with the words in the order of their ids, one per line or as a JSON list, which
        can also hold the newline, the first word of ExpansionNet; or a JSON file with an object
        from ids to words or from words to ids, alone or under one of `_TABLES`.

    Returns:
      Our vocabulary, and the released id of each of our words, int64 [V].

    Raises:
      ValueError: the file cannot be read or is not such a file, a mark is missing, or a word is
        there twice.
    """
    first = 0 if family == "expansionnet" else 1
    words = _words(path, first)
    doubled = [word for word, count in collections.Counter(words).items() if count > 1]
    if doubled:
        raise ValueError(f"{path}: each word must have one id. Received twice: {doubled[0]!r}")
    if family == "expansionnet":
        lost = [mark for mark in _MARKS if mark not in words]
        if lost:
            raise ValueError(
                f"{path}: {', '.join(lost)} must be among the words of ExpansionNet, as its marks"
            )
        marks = [words.index(mark) for mark in _MARKS]
        apart = marks[2:]
    else:
        unknown = [number for number, word in enumerate(words, 1) if word in _UNKNOWN]
        if len(unknown) != 1:
            raise ValueError(
                f"{path}: exactly one word must stand for unknown words, one of "
                f"{', '.join(_UNKNOWN)}. Received: {len(unknown)} such words"
            )
        marks = [0, 0, 0, unknown[0]]
        apart = marks
    rest = [number for number in range(first, first + len(words)) if number not in apart]
    vocab = Vocab(
        [*SPECIALS, *(_printable(words[number - first]) for number in rest)], source=str(path)
    )
    return vocab, np.array([*marks, *rest])


def _words(path, first):
    """Reads the words of a table in the order of their ids, which begin with `first`."""
    try:
        with open(path, "rb") as file:
            text = file.read().decode("utf-8-sig")
    except OSError as error:
        raise ValueError(f"{path} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ValueError(
            f"{path} is not UTF-8 at byte {error.start}. Give the words as text or JSON; pickles "
            "are not read"
        ) from error
    # Protocols 0 and 1 write text, which could be taken for words.
    if re.match(r"\([dl]p\d+\n|c(copy_reg|collections|__builtin__)\n|[]}]q\0", text):
        raise ValueError(
            f"{path} is a pickle. Give the words as text or JSON; pickles are not read"
        )
    try:
        content = json.loads(text)
    except (ValueError, RecursionError) as error:
        if re.match(r'\s*(\{|\[\s*")', text):
            raise ValueError(f"{path} is damaged JSON: {error}") from error
        # splitlines() also splits at U+2028
        content = [line.strip() for line in text.removesuffix("\n").split("\n")]
    words = _by_id(content, first) if isinstance(content, dict) else content
    if not isinstance(words, list) or len(words) < 2 or set(map(type, words)) != {str}:
        raise ValueError(
            f"{path} must hold one word per line, a JSON list of words, or a JSON object with a "
            f"word for each id from {first} on, such as ix_to_word of cocotalk.json"
        )
    return words


def _by_id(content, first):
    """Returns the words of an object from id to word or from word to id; None if it is neither."""
    for name in _TABLES:
        content = content.get(name) if isinstance(content.get(name), dict) else content
    try:
        by_id = {int(key): value for key, value in content.items()}
    except (TypeError, ValueError):
        by_id = {value: key for key, value in content.items() if type(value) is int}
    return [by_id.get(number) for number in range(first, first + len(content))]


def _printable(word: str) -> str:
    """Returns a word for vocab.txt and for captions, with escapes for white space."""
    if word in SPECIALS or not word:
        return f"[{word.strip('<>') or 'empty'}]"
    escapes = {ord(c): "\\x20" if c == " " else ascii(c)[1:-1] for c in word if c.isspace()}
    return word.translate(escapes)
