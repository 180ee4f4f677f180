#!/usr/bin/env bash
# With gradient_accumulation_steps=K, Keras 3 averages the weights after each batch, not each step.
#
# Versions: TensorFlow 2.20.0 (tensorflow-cpu), Keras 3.12.4; Python 3.10 to 3.13. The same with
#   Keras 3.15.1.
# Behaviour: an optimizer with use_ema=True updates its moving average in each call. With
#   gradient_accumulation_steps=K only one call in K changes the weights, so K - 1 calls average the
#   same weights again. A momentum m acts as m to the power of K: 0.99 with K = 8 averages over 13
#   steps in place of 100. Steps, rates and weights are right, and no message tells.
# Expected by most: gradient accumulation gives what the large batch gives. The documentation says
#   that model and optimizer variables are updated every K steps, and that the frequency of the
#   average looks at "accumulated" iterations. (That schedules of the rate do not, it says, too.)
# Why it matters: both are used together, where memory is short and averaged weights are what is
#   evaluated. The average hardly averages, and the validation score is that of noisier weights.
# tfcap: averages after a step, and has no accumulation of gradients.
#
# Output seen on 2026-11-29, 20 steps of fit on 160 rows that each move a weight by 1, momentum 0.9:
#   K  batch  steps  weight  average
#   1  8      20     20.0    12.22
#   2  4      20     20.0    15.35
#   4  2      20     20.0    17.38
#   8  1      20     20.0    18.42
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
import numpy as np
import tensorflow as tf

tf.get_logger().setLevel("ERROR")
x, y = np.ones([160, 1], np.float32), np.zeros([160, 1], np.float32)


def trained(accumulated):
    """Steps, weight and average after one epoch whose steps have eight rows each."""
    layer = keras.layers.Dense(1, use_bias=False, kernel_initializer="zeros")
    model = keras.Sequential([keras.Input([1]), layer])
    optimizer = keras.optimizers.SGD(
        1.0,
        use_ema=True,
        ema_momentum=0.9,
        gradient_accumulation_steps=accumulated if accumulated > 1 else None,
    )
    model.compile(optimizer, loss=lambda _, output: -tf.reduce_mean(output))
    weights = []
    end = keras.callbacks.LambdaCallback(
        on_train_batch_end=lambda batch, logs: weights.append(float(layer.kernel[0, 0]))
    )
    model.fit(x, y, batch_size=8 // accumulated, callbacks=[end], verbose=0)
    # fit replaces the weights by their averages when it ends.
    return int(optimizer.iterations), weights[-1], float(layer.kernel[0, 0])


def average(momentum, times):
    """The average of the weights 1 to 20, each averaged in as many times, the last one once."""
    result = 1.0
    for weight in range(2, 21):
        result = weight - 1 + (result - weight + 1) * momentum ** (times - 1)
        result = weight + (result - weight) * momentum
    return result


print("K  batch  steps  weight  average")
right = True
for accumulated in (1, 2, 4, 8):
    found = trained(accumulated)
    print("{:<2} {:<6} {:<6} {:<7.1f} {:.2f}".format(accumulated, 8 // accumulated, *found))
    right &= np.allclose(found, (20, 20, average(0.9, accumulated)), rtol=1e-3)
if not right:
    sys.exit("CHANGED: weights are no longer averaged once more for each accumulated batch")
print("as stated")
EOF
