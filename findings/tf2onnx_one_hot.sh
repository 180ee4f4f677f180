#!/usr/bin/env bash
# tf2onnx writes tf.one_hot so that negative indices count from the end, in place of all zeros.
#
# Versions: tf2onnx 1.17.0, ONNX 1.23.2, ONNX Runtime 1.23.2, TensorFlow 2.21.0 (tensorflow-cpu),
#   NumPy 2.2.6; Python 3.10 to 3.13. ONNX Runtime 1.32.0 does the same.
# Behaviour: TensorFlow gives zeros for every index outside of [0, depth), and its documentation
#   shows -1. OneHot of ONNX takes -depth to -1 for the positions from the end, and tf2onnx passes
#   the indices as they are. No error, and onnx.checker accepts the file.
# Expected by most: the same numbers from the file, or an error.
# Why it matters: -1 is the usual index of "none": padding, a label to ignore, a word not found. In
#   the file it becomes the last class or word.
# tfcap: multiplies a one-hot by a mask and passes no -1.
#
# Output seen on 2026-11-28, tf.one_hot(index, 3):
#   index  TensorFlow  ONNX Runtime
#   0      [1, 0, 0]   [1, 0, 0]
#   3      [0, 0, 0]   [0, 0, 0]
#   -1     [0, 0, 0]   [0, 0, 1]
#   -3     [0, 0, 0]   [1, 0, 0]
#   -4     [0, 0, 0]   [0, 0, 0]
#   as stated
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder"
"$folder/bin/pip" install --quiet --no-compile --disable-pip-version-check \
  tensorflow-cpu==2.21.0 keras==3.12.4 numpy==2.2.6 protobuf==6.33.2 h5py==3.14.0 ml-dtypes==0.5.4 \
  tf2onnx==1.17.0 onnx==1.23.2 onnxruntime==1.23.2
TF_CPP_MIN_LOG_LEVEL=3 "$folder/bin/python" -I - <<'EOF'
import sys

import numpy as np
import onnx
import onnxruntime
import tensorflow as tf
import tf2onnx

INDICES = np.array([0, 3, -1, -3, -4], np.int32)
signature = [tf.TensorSpec([None], tf.int32, "indices")]
function = tf.function(
    lambda indices: tf.one_hot(indices, 3), input_signature=signature, autograph=False
)
file, _ = tf2onnx.convert.from_function(function, input_signature=signature, opset=18)
onnx.checker.check_model(file, full_check=True)
session = onnxruntime.InferenceSession(file.SerializeToString())
right = function(INDICES).numpy().astype(int).tolist()
seen = session.run(None, {"indices": INDICES})[0].astype(int).tolist()
print("index  TensorFlow  ONNX Runtime")
for row in zip(INDICES, right, seen):
    print("{:<6} {}   {}".format(*row))
none = [0, 0, 0]
if right != [[1, 0, 0], none, none, none, none]:
    sys.exit("CHANGED: tf.one_hot no longer gives zeros for a negative index")
if seen != [[1, 0, 0], none, [0, 0, 1], [1, 0, 0], none]:
    sys.exit("CHANGED: a negative index no longer counts from the end in an ONNX file")
print("as stated")
EOF
