#!/usr/bin/env bash
# KerasHub's BLEU compares the length of a caption with its shortest reference, not the closest one.
#
# Versions: KerasHub 0.25.1, Keras 3.12.4, TensorFlow 2.20.0 (tensorflow-cpu), sacrebleu 2.5.1,
#   pycocoevalcap 1.2; Python 3.10 to 3.13. The same with KerasHub 0.32.0 and Keras 3.15.1.
# Behaviour: keras_hub.metrics.Bleu adds up the lengths of the shortest references for the brevity
#   penalty. The paper of BLEU, sacrebleu and pycocoevalcap take the reference whose length is
#   closest. With one reference for each caption there is no difference.
# Expected by most: the number of sacrebleu. "By default, this implementation replicates SacreBLEU",
#   says its documentation.
# Why it matters: of five references of a photograph one is often very short, so captions that are
#   too short are not penalised. A further reference that shares no word with the caption changes
#   the score. The numbers stand beside those of pycocoevalcap as if they were the same.
# Known: for the script that it follows, github.com/tensorflow/nmt issue 450.
# tfcap: scores with the closest length, as pycocoevalcap.
#
# Output seen on 2026-11-29, BLEU-4 of "a brown dog runs over the grass" with three references:
#   a brown dog runs over the grass near the water
#   the dog is running across a wide green field
#   some animal
#                           KerasHub  sacrebleu  pycocoevalcap
#   all three references    1.000     0.751      0.751
#   without "some animal"   0.751     0.751      0.751
#   as stated
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder"
"$folder/bin/pip" install --quiet --no-compile --disable-pip-version-check \
  tensorflow-cpu==2.20.0 keras==3.12.4 numpy==2.2.6 protobuf==6.33.2 h5py==3.15.1 ml-dtypes==0.5.4 \
  regex==2025.11.3 rich==14.2.0 kagglehub==0.3.13 packaging==25.0 sacrebleu==2.5.1
"$folder/bin/pip" install --quiet --no-compile --disable-pip-version-check --no-deps \
  keras-hub==0.25.1 pycocoevalcap==1.2
TF_CPP_MIN_LOG_LEVEL=3 KERAS_BACKEND=tensorflow "$folder/bin/python" -I - <<'EOF'
import sys

import keras_hub
import numpy as np
import sacrebleu
from pycocoevalcap.bleu.bleu import Bleu

CAPTION = "a brown dog runs over the grass"
REFERENCES = [
    "a brown dog runs over the grass near the water",
    "the dog is running across a wide green field",
    "some animal",
]


def scores(references):
    """BLEU-4 by the three libraries, from 0 to 1."""
    metric = keras_hub.metrics.Bleu()
    metric.update_state([references], [CAPTION])
    others = sacrebleu.corpus_bleu([CAPTION], [[reference] for reference in references])
    published = Bleu(4).compute_score({1: references}, {1: [CAPTION]}, verbose=0)[0]
    return float(metric.result()), others.score / 100, published[3]


print("\n".join(REFERENCES))
print("                        KerasHub  sacrebleu  pycocoevalcap")
found = [scores(REFERENCES), scores(REFERENCES[:2])]
for name, row in zip(("all three references", 'without "some animal"'), found):
    print("{:23} {:<9.3f} {:<10.3f} {:.3f}".format(name, *row))
closest = np.exp(1 - 9 / 7)
if not np.allclose([*found[0][1:], *found[1]], closest, atol=1e-4):
    sys.exit("CHANGED: with the closest length, the libraries differ")
if not np.isclose(found[0][0], 1, atol=1e-4):
    sys.exit("CHANGED: KerasHub no longer takes the shortest reference")
print("as stated")
EOF
