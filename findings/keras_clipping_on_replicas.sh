#!/usr/bin/env bash
# Keras 3 clips the gradient of each replica and then adds them: R replicas move R times as far.
#
# Versions: TensorFlow 2.20.0 (tensorflow-cpu), Keras 3.12.4; Python 3.10 to 3.13. The same with
#   Keras 3.15.1.
# Behaviour: under tf.distribute.MirroredStrategy, clipnorm, global_clipnorm and clipvalue act on
#   the gradient of each replica. The clipped gradients are summed afterwards. With a bound of 1,
#   four replicas move by up to 4. Without clipping, the number of replicas changes nothing, because
#   the loss of each replica is divided by it.
# Expected by most: the sum is clipped, so the bound holds, and a run on two devices with the same
#   batch makes the same steps. A maintainer of Keras called clipping before the sum "usually wrong"
#   when Keras 2 refused clipping under a strategy: github.com/tensorflow/tensorflow issue 33929.
# Why it matters: captioners with LSTMs, and self-critical training, live from clipping. The bound
#   of a paper is another one on several devices, and one replica with a huge gradient weighs as
#   much as the others.
# tfcap: sums over replicas first, clips the sum, and gives each replica an equal share of it.
#
# Output seen on 2026-11-28, the length of one step of SGD with rate 1:
#   replicas  global_clipnorm=1  clipnorm=1  clipvalue=1  without clipping
#   1         1.00               1.00        1.00         2000.00
#   4         4.00               4.00        4.00         2000.00
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

tf.get_logger().setLevel("ERROR")  # it warns that each step is traced anew
processor = tf.config.list_physical_devices("CPU")[0]
tf.config.set_logical_device_configuration(processor, [tf.config.LogicalDeviceConfiguration()] * 4)
x, y = np.full([4, 1], 10, "float32"), np.full([4, 1], 100, "float32")


def step(strategy, **clipping):
    """How far one step of fit with a batch of four rows moves the only weight."""
    with strategy.scope():
        layer = keras.layers.Dense(1, use_bias=False, kernel_initializer="zeros")
        model = keras.Sequential([keras.Input([1]), layer])
        model.compile(keras.optimizers.SGD(1.0, **clipping), loss="mse")
    model.fit(x, y, batch_size=4, verbose=0)
    return float(model.get_weights()[0][0, 0])


print("replicas  global_clipnorm=1  clipnorm=1  clipvalue=1  without clipping")
expected = []
four = tf.distribute.MirroredStrategy([f"CPU:{i}" for i in range(4)])
for strategy in (tf.distribute.get_strategy(), four):
    replicas = strategy.num_replicas_in_sync
    names = ({"global_clipnorm": 1.0}, {"clipnorm": 1.0}, {"clipvalue": 1.0}, {})
    steps = [step(strategy, **clipping) for clipping in names]
    print("{:<9} {:<18.2f} {:<11.2f} {:<12.2f} {:.2f}".format(replicas, *steps))
    expected.append(np.allclose(steps, [replicas, replicas, replicas, 2000], rtol=1e-4))
if not all(expected):
    sys.exit("CHANGED: clipping no longer comes before the sum over replicas")
print("as stated")
EOF
