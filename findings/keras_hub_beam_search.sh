#!/usr/bin/env bash
# The beam search of KerasHub goes on behind the end of a caption: what follows there counts, and
# copies of the caption fill the beams.
#
# Versions: KerasHub 0.25.1, Keras 3.12.4, TensorFlow 2.20.0 (tensorflow-cpu); Python 3.10 to 3.13.
#   The same with KerasHub 0.32.0 and Keras 3.15.1.
# Behaviour: BeamSampler stops when all beams have a stop token. Until then a beam that has one is
#   continued with further words, and their probabilities count: what the model says where it was
#   never trained. Each continuation takes a beam of its own, although all are the same caption when
#   cut at the end. return_all_beams returns these scores. With a model that is sure of one word
#   behind the end, the search is right.
# Expected by most: an ended caption keeps its score and one beam. The documentation promises the
#   sequences of the highest accumulated probabilities.
# Why it matters: PaliGemma and others that write captions in KerasHub are decoded so after
#   compile(sampler="beam"). The less a model knows what to say behind the end, the more a short
#   caption loses against a longer, less probable one. Five beams may hold one caption, and the
#   scores are not those of captions.
# tfcap: has its own search, in which an ended caption keeps its score.
#
# Output seen on 2026-11-29, of a model with three captions; behind the end any word is as likely:
#   "dogs" 0.60, "two brown birds" 0.25, "cats" 0.15
#   greedy:  "dogs" 0.60
#   3 beams: "two brown birds" 0.250, "dogs" 0.009, "dogs" 0.009
#   5 beams: "two brown birds" 0.250, "dogs" 0.009, "dogs" 0.009, "dogs" 0.009, "dogs" 0.009
#   as stated
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder"
"$folder/bin/pip" install --quiet --no-compile --disable-pip-version-check \
  tensorflow-cpu==2.20.0 keras==3.12.4 numpy==2.2.6 protobuf==6.33.2 h5py==3.15.1 ml-dtypes==0.5.4 \
  regex==2025.11.3 rich==14.2.0 kagglehub==0.3.13 packaging==25.0
"$folder/bin/pip" install --quiet --no-compile --disable-pip-version-check --no-deps \
  keras-hub==0.25.1
TF_CPP_MIN_LOG_LEVEL=3 KERAS_BACKEND=tensorflow "$folder/bin/python" -I - <<'EOF'
import sys

import numpy as np
import tensorflow as tf
from keras_hub.samplers import BeamSampler, GreedySampler

WORDS = ["", "<start>", "<end>", "dogs", "two", "brown", "birds", "cats"]
NEXT = {  # the word, what may follow it, and how likely
    "<start>": {"dogs": 0.6, "two": 0.25, "cats": 0.15},
    "two": {"brown": 1},
    "brown": {"birds": 1},
    **{word: {"<end>": 1} for word in ("dogs", "birds", "cats")},
}
table = np.full([len(WORDS)] * 2, -1e9, np.float32)
for word, following in NEXT.items():
    for other, probability in following.items():
        table[WORDS.index(word), WORDS.index(other)] = np.log(probability)
end = WORDS.index("<end>")
prompt = tf.constant([[WORDS.index("<start>"), 0, 0, 0, 0]])


def logits(prompt, cache, index):
    """The model: what follows the word before, and behind the end any word."""
    ended = tf.reduce_any(prompt[:, :index] == end, 1, keepdims=True)
    return tf.where(ended, 0.0, tf.gather(table, prompt[:, index - 1])), None, cache


def captions(sampler):
    """Captions and scores of the search, for one prompt of a word and four words to come."""
    result = sampler(logits, prompt, index=1, stop_token_ids=[end])
    rows, scores = result if isinstance(result, tuple) else (result, None)
    texts = [[WORDS[i] for i in row] for row in np.reshape(rows, [-1, 5])]
    texts = [" ".join(text[1 : text.index(WORDS[end])]) for text in texts]
    return texts, None if scores is None else np.exp(np.ravel(scores))


probabilities = {"dogs": 0.6, "two brown birds": 0.25, "cats": 0.15}
print(", ".join(f'"{text}" {value:.2f}' for text, value in probabilities.items()))
greedy = captions(GreedySampler())[0]
print(f'greedy:  "{greedy[0]}" {probabilities[greedy[0]]:.2f}')
found = {}
for beams in (3, 5):
    texts, scores = found[beams] = captions(BeamSampler(beams, return_all_beams=True))
    listed = ", ".join(f'"{text}" {score:.3f}' for text, score in zip(texts, scores))
    print(f"{beams} beams: {listed}")
    if captions(BeamSampler(beams))[0] != texts[:1]:
        sys.exit("CHANGED: the caption returned alone is another one")
for beams, (texts, scores) in found.items():
    if greedy != ["dogs"] or texts != ["two brown birds"] + ["dogs"] * (beams - 1):
        sys.exit("CHANGED: ended captions no longer lose, or no longer fill the beams")
    if not np.allclose(scores, [0.25] + [0.6 / len(WORDS) ** 2] * (beams - 1), rtol=1e-3):
        sys.exit("CHANGED: the scores are other ones")
print("as stated")
EOF
