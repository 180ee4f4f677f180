"""Tokenizes captions for the official scores, and in a simpler way on machines without Java.

`ptb_tokenize` runs the Penn Treebank tokenizer of pycocoevalcap with the same input as
pycocoevalcap's PTBTokenizer, and its results are equal. It differs in three points: the input goes
through a pipe instead of a file inside site-packages, there is a time limit, and the number of
output lines is checked, because a lost line would shift every later caption.
"""

import pathlib
import re
from collections.abc import Mapping, Sequence

from pycocoevalcap.tokenizer import ptbtokenizer

from tfcap.metrics import java as java_lib

_JAR = pathlib.Path(ptbtokenizer.__file__).with_name(ptbtokenizer.STANFORD_CORENLP_3_4_1_JAR)
_PUNCTUATIONS = frozenset(ptbtokenizer.PUNCTUATIONS)
_CLITICS = re.compile(r"(?<=\w)(n't|'(?:s|re|ve|ll|d|m))\b")
_PLAIN_TOKENS = re.compile(r"n't\b|'(?:s|re|ve|ll|d|m)\b|\w+(?:-\w+)*|[^\w\s]")


def one_line(caption: str) -> str:
    """Replaces each run of white space by one space, and makes the caption valid UTF-8.

    A line break in a caption would be read as a new caption by the tokenizer and as a new command
    by METEOR. A lone surrogate (from a broken JSON escape) becomes "?".
    """
    caption = caption.encode("utf-8", "replace").decode("utf-8")
    return " ".join(caption.split())


def ptb_tokenize(captions: Sequence[str], java: java_lib.Java, timeout: float) -> list[str]:
    """Tokenizes captions as pycocoevalcap does: PTB, lower case, punctuation dropped.

    The order of the captions matters in rare cases: the tokenizer reads past the end of a line to
    decide whether the full stop of an abbreviation ends a sentence. Give it whole data sets in
    their own order.

    Args:
        captions: Captions after `one_line`.
        java: The Java to use.
        timeout: Seconds after which the tokenizer is stopped.

    Returns:
        One string per caption, tokens separated by single spaces.

    Raises:
        JavaError: Java failed.
    """
    if not captions:
        return []
    lines = _ptb_lines(captions, java, timeout)
    if len(lines) != len(captions):
        # An unfinished tag such as <a b="c continues on the next line, so brackets are removed.
        bare = [re.sub(r"[<>]", " ", caption) for caption in captions]
        lines = _ptb_lines(bare, java, timeout)
    if len(lines) != len(captions):
        raise java_lib.JavaError(
            f"The PTB tokenizer must return one line per caption. Received: {len(lines)} lines for "
            f"{len(captions)} captions"
        )
    return [_drop_punctuation(line.rstrip().split(" ")) for line in lines]


def _ptb_lines(captions: Sequence[str], java: java_lib.Java, timeout: float) -> list[str]:
    command = java.command(
        "-cp",
        str(_JAR),
        "edu.stanford.nlp.process.PTBTokenizer",
        "-preserveLines",
        "-lowerCase",
        "-encoding",
        "UTF-8",
    )
    stdout, _ = java_lib.run(command, stdin="\n".join(captions).encode(), timeout=timeout)
    return stdout.decode("utf-8", "replace").split("\n")


def plain_tokenize(captions: Sequence[str]) -> list[str]:
    """Tokenizes without Java: splits words from punctuation, in lower case, and drops punctuation.

    Words keep inner hyphens ("two-door"). "n't", "'s", "'re", "'ve", "'ll", "'d" and "'m" become
    separate tokens. The dropped punctuation is the list of pycocoevalcap. Most captions give the
    same tokens as PTB, but abbreviations, numbers, quotes and brackets give others. Scores on these
    tokens cannot be compared with published ones.
    """
    spaced = [_CLITICS.sub(r" \1", caption.lower()) for caption in captions]
    return [_drop_punctuation(_PLAIN_TOKENS.findall(caption)) for caption in spaced]


def _drop_punctuation(tokens: Sequence[str]) -> str:
    return " ".join(token for token in tokens if token not in _PUNCTUATIONS)


def unlike(references: Mapping[int, Sequence[str]], captions: Sequence[str]) -> list[str]:
    """Returns a note if hardly a word of the captions is one of the references.

    Args:
        references: Image id -> tokenized references.
        captions: Tokenized captions.
    """
    known = {word for texts in references.values() for text in texts for word in text.split()}
    found = [word in known for caption in captions for word in caption.split()]
    if sum(found) >= 0.1 * len(found):
        return []
    return [
        f"only {sum(found)} of the {len(found)} words of the captions occur in the references, so "
        "the scores say nothing. Both must be split into words in the same way: a language "
        "without spaces needs spaces between the words of both"
    ]
