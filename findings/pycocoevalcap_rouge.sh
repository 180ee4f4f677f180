#!/usr/bin/env bash
# ROUGE-L of 1 does not mean that a caption equals a reference: precision and recall are taken from
# different references.
#
# Versions: pycocoevalcap 1.2, rouge-score 0.1.2 (nltk 3.9.2), NumPy 2.2.6; Python 3.10 to 3.13.
# Behaviour: with several references, pycocoevalcap takes the largest precision and the largest
#   recall of all references, and makes one F-score (beta 1.2) of these two. A caption whose words
#   stand in a long reference in this order, and that so contains a short reference, gets 1.
# Expected by most: an F-score with each reference, and the best of them. rouge-score does that
#   (score_multi).
# Why it matters: five references of different lengths are usual for an image, so the ROUGE-L of
#   papers on captioning is higher than that of papers on summarization. The two are not comparable.
# tfcap: prints pycocoevalcap's number, which published tables have.
#
# Output seen on 2026-11-28:
#   caption: a man in a red shirt rides a horse
#   references: a man in a red shirt rides a horse on the beach | a man rides a horse
#   pycocoevalcap: 1.000 with both, 0.836 and 0.753 with each alone
#   rouge-score, best F1 of both: 0.857
#   as stated
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder"
"$folder/bin/pip" install --quiet --no-compile --disable-pip-version-check --no-deps \
  pycocoevalcap==1.2
"$folder/bin/pip" install --quiet --no-compile --disable-pip-version-check \
  rouge-score==0.1.2 nltk==3.9.2 numpy==2.2.6
"$folder/bin/python" -I - <<'EOF'
import sys

from pycocoevalcap.rouge.rouge import Rouge
from rouge_score.rouge_scorer import RougeScorer

caption = "a man in a red shirt rides a horse"
references = ["a man in a red shirt rides a horse on the beach", "a man rides a horse"]


def rouge(references):
    return float(Rouge().compute_score({1: references}, {1: [caption]})[0])


both, alone = rouge(references), [rouge([reference]) for reference in references]
other = RougeScorer(["rougeL"]).score_multi(references, caption)["rougeL"].fmeasure
print(f"caption: {caption}\nreferences: {' | '.join(references)}")
print(f"pycocoevalcap: {both:.3f} with both, {alone[0]:.3f} and {alone[1]:.3f} with each alone")
print(f"rouge-score, best F1 of both: {other:.3f}")
if caption in references or both != 1 or not max(*alone, other) < 0.95:
    sys.exit("CHANGED: ROUGE-L no longer joins precision and recall of different references")
print("as stated")
EOF
