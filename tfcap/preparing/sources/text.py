"""Reads text of unknown encoding line by line, within bounded memory."""

import codecs
import pathlib
import re
from collections.abc import Iterator

MOST_CHARACTERS = 1 << 20  # of one line
_MARKS = (
    (codecs.BOM_UTF8, "utf-8-sig"),
    (codecs.BOM_UTF32_LE, "utf-32"),  # begins as UTF-16 does, so it comes first
    (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)


def encoding_of(path: pathlib.Path) -> str:
    """Returns the encoding of a text file.

    A byte order mark decides. Without one it is UTF-8, unless there are lines beyond ASCII and none
    of them is valid UTF-8: then it is Windows-1252, which old spreadsheets write.

    Raises:
      OSError: the file cannot be read.
    """
    valid = invalid = 0
    with open(path, "rb") as file:
        start = file.read(4)
        for mark, name in _MARKS:
            if start.startswith(mark):
                return name
        file.seek(0)
        while line := file.readline(MOST_CHARACTERS):
            if line.isascii():
                continue
            try:
                line.decode("utf-8")
                valid += 1
            except UnicodeDecodeError:
                invalid += 1
    return "cp1252" if invalid and not valid else "utf-8"


def lines(path: pathlib.Path, encoding: str) -> Iterator[str]:
    """Yields the lines of a text file with their ends, which may be LF, CR LF or CR.

    Bytes that the encoding does not have become lone surrogates, or the replacement character in
    encodings without them.

    Raises:
      ValueError: a line is too long.
      OSError: the file cannot be read.
    """
    errors = "surrogateescape" if encoding.startswith("utf-8") else "replace"
    with open(path, encoding=encoding, errors=errors, newline="") as file:
        number = 0
        while line := file.readline(MOST_CHARACTERS + 1):
            number += 1
            if len(line) > MOST_CHARACTERS:
                raise ValueError(
                    f"{path}: line {number}: must have at most {MOST_CHARACTERS} characters. "
                    "Received: more. Check that the file is a table of captions."
                )
            yield line


def first_lines(content: bytes, number: int = 2) -> list[str]:
    """Returns the first lines with text from the first bytes of a file, without line ends."""
    encoding = next((name for mark, name in _MARKS if content.startswith(mark)), "utf-8")
    text = content.decode(encoding, "replace")
    lines = re.split(r"\r\n|\n|\r", text)  # `splitlines` knows more ends, which JSON does not
    return [line for line in lines[: number + 8] if line.strip()][:number]
