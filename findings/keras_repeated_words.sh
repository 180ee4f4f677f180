#!/usr/bin/env bash
# Keras 3's Adam moves the embedding of a word that a batch has N times up to sqrt(N) times too far.
#
# Versions: TensorFlow 2.20.0 (tensorflow-cpu), Keras 3.12.4, tf_keras 2.20.1; Python 3.10 to 3.13.
#   The same with Keras 3.15.1, jit_compile=True, mixed_bfloat16 and mixed_float16. Keras 3.12.4 on
#   JAX 0.6.2 does as most expect.
# Behaviour: the gradient of keras.layers.Embedding on TensorFlow is an IndexedSlices with a row for
#   each place where a word stands. Keras squares, clips and measures these rows, and adds them only
#   afterwards. So the second moment of Adam is the sum of squares, not the square of the sum;
#   clipvalue bounds each place, and clipnorm and global_clipnorm take the norm of the rows. AdamW,
#   Nadam, RMSprop, Adagrad, Adadelta and Ftrl do so, too; SGD and Lion do not. With a
#   regularizer of 1e-30, or with gradient_accumulation_steps, the gradient is a tensor, and right.
# Expected by most: the step of a one-hot vector times a matrix. TensorFlow's own optimizers had
#   this fault once (github.com/tensorflow/tensorflow commit f9f56f9d). Keras 2 adds the rows before
#   Adam, but clips them one by one, too.
# Why it matters: "a" and the start of a caption stand in a batch a hundred times. Their steps are
#   up to ten times too long, or too short where the rows cancel. The effect grows with the batch,
#   differs from other backends, and is gone when the output layer shares the embedding.
# tfcap: makes each gradient a tensor first (tf.convert_to_tensor).
#
# Output seen on 2026-11-29, the step of a word with one weight, rate 1, gradient 1 at each place:
#                           once   16 times  16 times, L2(1e-30)  Keras 2, 16 times
#   Adam                    1.00   4.00      1.00                 1.00
#   RMSprop                 3.16   12.65     3.16                 3.16
#   Adagrad                 0.95   3.99      1.00                 1.00
#   SGD, clipvalue=1        1.00   16.00     1.00                 16.00
#   SGD, clipnorm=1         1.00   4.00      1.00                 4.00
#   SGD, global_clipnorm=1  1.00   4.00      1.00                 4.00
#   as stated
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder"
"$folder/bin/pip" install --quiet --no-compile --disable-pip-version-check \
  tensorflow-cpu==2.20.0 keras==3.12.4 numpy==2.2.6 protobuf==6.33.2 h5py==3.15.1 ml-dtypes==0.5.4
"$folder/bin/pip" install --quiet --no-compile --disable-pip-version-check --no-deps \
  tf-keras==2.20.1
TF_CPP_MIN_LOG_LEVEL=3 KERAS_BACKEND=tensorflow "$folder/bin/python" -I - <<'EOF'
import sys

import keras
import numpy as np
import tensorflow as tf
import tf_keras

tf.get_logger().setLevel("ERROR")  # it warns that each step is traced anew


def step(library, places, optimizer, regularizer=None, **clipping):
    """How far one step of fit moves the weight of a word that stands at each of some places."""
    embedding = library.layers.Embedding(
        4, 1, embeddings_initializer="zeros", embeddings_regularizer=regularizer
    )
    model = library.Sequential([library.Input([places], dtype="int32"), embedding])
    optimizer = getattr(library.optimizers, optimizer)(1.0, **clipping)
    model.compile(optimizer, loss=lambda _, y: tf.reduce_sum(y, axis=[1, 2]))
    model.fit(np.ones([1, places], "int32"), np.zeros([1]), verbose=0)
    return -float(model.get_weights()[0][1, 0])


EXPECTED = {
    ("Adam", ""): (1, 4, 1, 1),
    ("RMSprop", ""): (3.162, 12.649, 3.162, 3.162),
    ("Adagrad", ""): (0.953, 3.988, 1, 1),
    ("SGD", "clipvalue"): (1, 16, 1, 16),
    ("SGD", "clipnorm"): (1, 4, 1, 4),
    ("SGD", "global_clipnorm"): (1, 4, 1, 4),
}
print(" " * 22, " once   16 times  16 times, L2(1e-30)  Keras 2, 16 times")
right = True
for (optimizer, bound), expected in EXPECTED.items():
    clipping = {bound: 1.0} if bound else {}
    tiny = keras.regularizers.L2(1e-30)
    steps = (
        step(keras, 1, optimizer, **clipping),
        step(keras, 16, optimizer, **clipping),
        step(keras, 16, optimizer, tiny, **clipping),
        step(tf_keras, 16, optimizer, **clipping),
    )
    name = f"{optimizer}, {bound}=1" if bound else optimizer
    print("{:23} {:<6.2f} {:<9.2f} {:<20.2f} {:.2f}".format(name, *steps))
    right &= np.allclose(steps, expected, rtol=1e-3)
if not right:
    sys.exit("CHANGED: a word's gradients are no longer squared and clipped one by one")
print("as stated")
EOF
