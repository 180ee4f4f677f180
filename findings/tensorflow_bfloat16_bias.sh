#!/usr/bin/env bash
# The gradient of a bias in bfloat16 stops growing at 256 on a processor, whatever the batch size.
#
# Versions: TensorFlow 2.20.0 (tensorflow-cpu), Keras 3.12.4, ml_dtypes 0.5.4; Python 3.10 to 3.13.
#   The same with Keras 3.15.1, and with TF_ENABLE_ONEDNN_OPTS=0.
# Behaviour: BiasAddGrad, the gradient of the bias of keras.layers.Dense and Conv2D, adds bfloat16
#   numbers in bfloat16. With 8 significant bits, 256 + 1 is 256. tf.reduce_sum of the same numbers,
#   and the gradient of the kernel, are summed in float32 and rounded once.
# Expected by most: bfloat16 costs three decimal digits, and sums are kept in float32, as matrix
#   products and tf.reduce_sum do.
# Why it matters: mixed_bfloat16 is the fast mode of recent processors. The bias of the vocabulary
#   layer gets one row for each word of each caption: 50 captions of 17 words are 850 rows. No loss
#   becomes NaN: the gradient is too small, the more so the larger the batch.
# tfcap: its layers sum the gradient of a bias in float32.
#
# Output seen on 2026-11-28:
#   rows   Dense bias  Dense kernel  Conv2D bias  tf.reduce_sum
#   100    100         100           100          100
#   256    256         256           256          256
#   1000   256         1000          256          1000
#   20000  256         19968         256          19968
#   as stated
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder"
"$folder/bin/pip" install --quiet --no-compile --disable-pip-version-check \
  tensorflow-cpu==2.20.0 keras==3.12.4 numpy==2.2.6 protobuf==6.33.2 h5py==3.15.1 ml-dtypes==0.5.4
TF_CPP_MIN_LOG_LEVEL=3 KERAS_BACKEND=tensorflow "$folder/bin/python" -I - <<'EOF'
import sys

import keras
import tensorflow as tf


def gradients(layer, x):
    """The gradients of the kernel and of the bias of the sum of all outputs."""
    layer.build(x.shape)
    with tf.GradientTape() as tape:
        total = tf.reduce_sum(tf.cast(layer(x), tf.float32))
    kernel, bias = tape.gradient(total, [layer.kernel.value, layer.bias.value])
    return [int(tf.reshape(gradient, [-1])[0]) for gradient in (kernel, bias)]


found = {}
print("rows   Dense bias  Dense kernel  Conv2D bias  tf.reduce_sum")
for rows in (100, 256, 1000, 20000):
    kernel, bias = gradients(keras.layers.Dense(4, dtype="mixed_bfloat16"), tf.ones([rows, 8]))
    convolution = keras.layers.Conv2D(4, 1, dtype="mixed_bfloat16")
    _, other = gradients(convolution, tf.ones([rows // 2, 2, 1, 8]))
    right = int(tf.reduce_sum(tf.ones([rows], tf.bfloat16)))
    print(f"{rows:<6} {bias:<11} {kernel:<13} {other:<12} {right}")
    found[rows] = bias, other, kernel, right
stuck = all(found[rows][:2] == (256, 256) for rows in (1000, 20000))
if not stuck or not all(abs(value / 20000 - 1) < 0.004 for value in found[20000][2:]):
    sys.exit("CHANGED: the gradient of a bias in bfloat16 no longer stops at 256")
print("as stated")
EOF
