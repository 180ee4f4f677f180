"""Reads the words of a released model, in many layouts, and puts them in the order of our ids.

In both toolkits of X-LAN's authors, the id 0 stands for beginning, end and padding. The word on
line i of their file, counted from 1, has the id i.

ExpansionNet has its marks PAD, SOS, EOS and UNK among the sorted words, and the Meshed-Memory
Transformer has <unk>, <pad>, <bos> and <eos>. The released searches may emit PAD and SOS as words,
but our search never emits our marks <pad> and <bos>. So PAD and SOS stay in our vocabulary as
ordinary words, and all words keep their released probabilities.
"""

import collections
import json
import os
import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tfcap import torch_file
from tfcap.data.tokens import SPECIALS, Vocab

_UNKNOWN = ("UNK", "<unk>", "<UNK>", "[UNK]")
# Where toolkits keep their table; cocotalk.json of ruotianluo's has the first.
_TABLES = ("ix_to_word", "word_to_ix", "itow", "wtoi", "idx2word", "word2idx")
# The families whose ids begin with 0, with the words for their marks, in our order.
_MARKS = dict.fromkeys(("expansionnet", "expansionnet_v2"), ("PAD", "SOS", "EOS", "UNK")) | {
    "m2": ("<pad>", "<bos>", "<eos>", "<unk>")
}
# Where pickles have their words: `infos`, ExpansionNet v2, the class Vocab of torchtext.
_IN_PICKLES = ("vocab", "idx2word_list", "itos")
_PICKLES = (*_MARKS, "ort", "aoanet", "self_critical")  # families that released pickles of words
_REMEDY = "Give the file of words that was released with the checkpoint."


def read_words(family: str, path: str | os.PathLike) -> tuple[Vocab, np.ndarray]:
    """Reads the words of a released captioner, and puts them in the order of our vocabulary.

    Our vocabulary begins with <pad> <bos> <eos> <unk>. The other words follow as in the file.

    The file has one of these layouts:

    * the words in the order of their ids, one per line;
    * a JSON list of the words in the order of their ids, which can also hold the newline character,
      the first word of ExpansionNet;
    * a JSON object from ids to words, or from words to ids;
    * a JSON object that has such an object as its entry "ix_to_word", "word_to_ix", "itow", "wtoi",
      "idx2word" or "word2idx";
    * the pickle of ExpansionNet v2, the vocabulary `vocab.pkl` of the Meshed-Memory Transformer, or
      `infos_ID.pkl` of the Object Relation Transformer and of ruotianluo's toolkit.

    Args:
      family: the code that wrote the captioner, one of `importers.FAMILIES`. The ids in the files
        of `expansionnet`, `expansionnet_v2` and `m2` begin with 0, those of the others with 1.
      path: the file of words.

    Returns:
      Our vocabulary, and the released id of each of our V words, int64 [V].

    Raises:
      ValueError: the file cannot be read, has none of these layouts, has a word twice, or lacks a
        word that the family needs.
    """
    first = 0 if family in _MARKS else 1
    words = _words(path, first, family in _PICKLES)
    counts = collections.Counter(words)
    if doubled := [word for word, count in counts.items() if count > 1]:
        raise ValueError(f"{path} has the word {doubled[0]!r} twice. {_REMEDY}")
    if family in _MARKS:
        marks = _marks(path, words, _MARKS[family])
        removed = marks[2:]
    else:
        marks = [0, 0, 0, _unknown_of_others(path, words)]
        removed = marks
    rest = [index for index in range(first, first + len(words)) if index not in removed]
    others = [_printable(words[index - first]) for index in rest]
    return Vocab([*SPECIALS, *others], source=str(path)), np.array([*marks, *rest])


def released_options(family: str, path: str | os.PathLike) -> dict[str, Any]:
    """Reads options of a captioner that stand beside its words and that no tensor shows.

    Args:
      family: the code that wrote the captioner, one of `importers.FAMILIES`.
      path: the file of words.

    Returns:
      Options of our model by name. It is empty but for `infos_ID.pkl` of the family `ort`.
    """
    with open(path, "rb") as file:
        data = file.read()
    infos = torch_file.read_values(data) if family == "ort" and _is_pickle(data) else None
    options = infos.get("opt") if isinstance(infos, dict) else None
    if not isinstance(options, dict):
        return {}
    return {"extra_skip": bool(options.get("legacy_extra_skip"))}


def _marks(path: str | os.PathLike, words: Sequence[str], marks: Sequence[str]) -> list[int]:
    """Returns the ids of the words for the marks."""
    if missing := [mark for mark in marks if mark not in words]:
        raise ValueError(
            f"{path} lacks {', '.join(missing)}, words that this family needs. {_REMEDY}"
        )
    return [words.index(mark) for mark in marks]


def _unknown_of_others(path: str | os.PathLike, words: Sequence[str]) -> int:
    """Returns the id of the word for unknown words, where the ids begin with 1."""
    ids = [index for index, word in enumerate(words, 1) if word in _UNKNOWN]
    if len(ids) != 1:
        raise ValueError(
            f"{path} must have exactly one word for unknown words ({' or '.join(_UNKNOWN)}), but "
            f"has {len(ids)} such words. {_REMEDY}"
        )
    return ids[0]


def _words(path: str | os.PathLike, first: int, may_be_pickle: bool) -> list[str]:
    """Reads the words of a table in the order of their ids, which begin with `first`."""
    try:
        with open(path, "rb") as file:
            content = _content(path, file.read(), may_be_pickle)
    except OSError as error:
        raise ValueError(f"{path} cannot be read: {error.strerror}. {_REMEDY}") from error
    words = _by_id(content, first) if isinstance(content, dict) else content
    if not isinstance(words, list) or len(words) < 2 or set(map(type, words)) != {str}:
        raise ValueError(
            f"{path} must hold one word per line, a JSON list of words, or a JSON object with a "
            f"word for each id from {first} on, such as ix_to_word of cocotalk.json. {_REMEDY}"
        )
    return words


def _content(path: str | os.PathLike, data: bytes, may_be_pickle: bool) -> Any:
    """Returns what a file of words holds: a value of JSON or of the pickle, or a list of lines."""
    if may_be_pickle and _is_pickle(data):
        try:
            table = torch_file.read_values(data)
        except ValueError as error:
            raise ValueError(f"{path}: {error}. {_REMEDY}") from error
        for name in _IN_PICKLES:
            table = table.get(name, table) if isinstance(table, dict) else table
        return table
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError(
            f"{path} is not UTF-8. If it is text or JSON, save it as UTF-8; if not, it is the "
            f"wrong file. {_REMEDY}"
        ) from error
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        if re.match(r'\s*(\{|\[\s*")', text):
            raise ValueError(f"{path} is damaged JSON: {error}. {_REMEDY}") from error
    # splitlines() also splits at U+2028
    return [line.strip() for line in text.removesuffix("\n").split("\n")]


def _is_pickle(data: bytes) -> bool:
    """True for a pickle; Python 2 wrote text, which begins with a dictionary here."""
    return data.startswith((b"\x80", b"(dp", b"(d."))


def _by_id(content: Mapping[str, Any], first: int) -> list[Any]:
    """Returns the words of an object from id to word or from word to id; None for a missing id."""
    for name in _TABLES:
        content = content[name] if isinstance(content.get(name), dict) else content
    try:
        by_id = {int(key): value for key, value in content.items()}
    except (TypeError, ValueError):
        by_id = {value: key for key, value in content.items() if type(value) is int}
    return [by_id.get(index) for index in range(first, first + len(content))]


def _printable(word: str) -> str:
    """Returns a word for vocab.txt and for captions, with escapes for white space."""
    if word in SPECIALS or not word:
        return f"[{word.strip('<>') or 'empty'}]"
    escapes = {ord(c): "\\x20" if c == " " else ascii(c)[1:-1] for c in word if c.isspace()}
    return word.translate(escapes)
