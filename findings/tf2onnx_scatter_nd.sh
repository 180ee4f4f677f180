#!/usr/bin/env bash
# tf2onnx writes tf.scatter_nd so that of equal indices the last value is kept, not the sum.
#
# Versions: tf2onnx 1.17.0, ONNX 1.23.2, ONNX Runtime 1.23.2, TensorFlow 2.21.0 (tensorflow-cpu),
#   NumPy 2.2.6; Python 3.10 to 3.13. ONNX Runtime 1.32.0 does the same.
# Behaviour: TensorFlow adds the values of equal indices. The file has a ScatterND without
#   `reduction`, for which ONNX forbids equal indices; ONNX Runtime keeps the last value. No error,
#   and onnx.checker accepts the file. tf.tensor_scatter_nd_add, from opset 16, and
#   tf.math.unsorted_segment_sum are right.
# Expected by most: the sum, as in TensorFlow, or an error.
# Why it matters: counts of words, histograms and sums by group are written with tf.scatter_nd. A
#   test whose indices all differ does not show it.
# tfcap: writes the ScatterND of its ONNX files with `reduction="add"`.
#
# Output seen on 2026-11-28, the values 10, 20, 30 at 1, 1, 2:
#   function              reduction  TensorFlow      ONNX Runtime
#   scatter_nd            -          [0, 30, 30, 0]  [0, 20, 30, 0]
#   tensor_scatter_nd_add add        [0, 30, 30, 0]  [0, 30, 30, 0]
#   unsorted_segment_sum  -          [0, 30, 30, 0]  [0, 30, 30, 0]
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

INDICES, VALUES = np.array([1, 1, 2], np.int32), np.array([10, 20, 30], np.float32)
FUNCTIONS = {
    "scatter_nd": lambda indices, values: tf.scatter_nd(indices[:, None], values, [4]),
    "tensor_scatter_nd_add": lambda indices, values: tf.tensor_scatter_nd_add(
        tf.zeros([4]), indices[:, None], values
    ),
    "unsorted_segment_sum": lambda indices, values: tf.math.unsorted_segment_sum(
        values, indices, 4
    ),
}
signature = [tf.TensorSpec([None], tf.int32, "indices"), tf.TensorSpec([None], name="values")]
print("function              reduction  TensorFlow      ONNX Runtime")
found = {}
for name, function in FUNCTIONS.items():
    function = tf.function(function, input_signature=signature, autograph=False)
    file, _ = tf2onnx.convert.from_function(function, input_signature=signature, opset=18)
    onnx.checker.check_model(file, full_check=True)
    nodes = [node for node in file.graph.node if node.op_type == "ScatterND"]
    kinds = [a.s.decode() for node in nodes for a in node.attribute if a.name == "reduction"]
    session = onnxruntime.InferenceSession(file.SerializeToString())
    right = function(INDICES, VALUES).numpy().astype(int).tolist()
    seen = session.run(None, {"indices": INDICES, "values": VALUES})[0].astype(int).tolist()
    print(f"{name:21} {''.join(kinds) or '-':10} {right}  {seen}")
    found[name] = kinds, right, seen
if any(right != [0, 30, 30, 0] for _, right, _ in found.values()):
    sys.exit("CHANGED: TensorFlow no longer adds the values of equal indices")
if found["scatter_nd"] != ([], [0, 30, 30, 0], [0, 20, 30, 0]):
    sys.exit("CHANGED: tf.scatter_nd no longer keeps the last value in an ONNX file")
if any(found[name][2] != [0, 30, 30, 0] for name in FUNCTIONS if name != "scatter_nd"):
    sys.exit("CHANGED: the other functions no longer add in an ONNX file")
print("as stated")
EOF
