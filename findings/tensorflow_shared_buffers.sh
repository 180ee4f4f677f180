#!/usr/bin/env bash
# Two constants of a LiteRT file share one buffer if their bytes are equal, even an integer and a
# float.
#
# Versions: TensorFlow 2.21.0 (tensorflow-cpu), NumPy 2.2.6; Python 3.10 to 3.13.
# Behaviour: the converter stores equal bytes once. 512 zeros of int32 and 512 zeros of float32 are
#   two tensors with one buffer. A program that writes other values for the float tensor into its
#   buffer changes the integers, too: 1.0 becomes 1065353216.
# Expected by most: each constant has its own buffer, or at least each type has.
# Why it matters: tools that make files smaller or replace weights go through the tensors and write
#   into the buffer of each. They must give a changed tensor a new buffer, or count who reads it.
#   Zeros are in almost every file that holds a loop: the states at its start.
# tfcap: writes float16 weights into new buffers, and empties an old one only if no tensor reads it.
#
# Output seen on 2026-11-28:
#   type     buffer  bytes
#   float32  3       2048
#   int32    3       2048
#   before: floats 0.0, integers 0
#   after writing 1.0 into the buffer of the floats: floats 1.0, integers 1065353216
#   as stated
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder"
"$folder/bin/pip" install --quiet --no-compile --disable-pip-version-check \
  tensorflow-cpu==2.21.0 keras==3.12.4 numpy==2.2.6 flatbuffers==25.12.19 protobuf==6.33.2 \
  h5py==3.14.0 ml-dtypes==0.5.4
TF_CPP_MIN_LOG_LEVEL=3 "$folder/bin/python" -I -W ignore - <<'EOF'
import sys

import flatbuffers
import numpy as np
import tensorflow as tf
from tensorflow.lite.python import schema_py_generated as schema

NAMES = {schema.TensorType.FLOAT32: "float32", schema.TensorType.INT32: "int32"}
tf.get_logger().setLevel("ERROR")


def extended(x, i):
    zeros = np.zeros(512, np.float32), np.zeros(512, np.int32)
    return {"floats": tf.concat([zeros[0], x], 0), "integers": tf.concat([zeros[1], i], 0)}


def first(content):
    """The first float and the first integer that the file returns."""
    run = tf.lite.Interpreter(model_content=content).get_signature_runner()
    results = run(x=np.zeros(4, np.float32), i=np.zeros(4, np.int32))
    return float(results["floats"][0]), int(results["integers"][0])


x, i = tf.TensorSpec([4], tf.float32, "x"), tf.TensorSpec([4], tf.int32, "i")
traced = tf.function(extended, autograph=False).get_concrete_function(x=x, i=i)
content = tf.lite.TFLiteConverter.from_concrete_functions([traced], tf.Module()).convert()
model = schema.ModelT.InitFromObj(schema.Model.GetRootAs(content, 0))
rows = []
print("type     buffer  bytes")
for tensor in model.subgraphs[0].tensors:
    data = model.buffers[tensor.buffer].data
    if data is not None and len(data) == 2048:
        rows.append((NAMES[tensor.type], tensor.buffer))
        print(f"{NAMES[tensor.type]:8} {tensor.buffer:<7} {len(data)}")
before = first(content)
print("before: floats {}, integers {}".format(*before))
buffers = dict(rows)
if sorted(buffers) != ["float32", "int32"] or before != (0.0, 0):
    sys.exit("CHANGED: the file has other constants")
if buffers["float32"] != buffers["int32"]:
    sys.exit("CHANGED: the two constants no longer share a buffer")
ones = np.ones(512, np.float32).view(np.uint8)
model.buffers[buffers["float32"]].data = ones
builder = flatbuffers.Builder(4096)
builder.Finish(model.Pack(builder), b"TFL3")
after = first(bytes(builder.Output()))
print("after writing 1.0 into the buffer of the floats: floats {}, integers {}".format(*after))
if after != (1.0, 1065353216):
    sys.exit("CHANGED: the integers are no longer the bytes of the floats")
print("as stated")
EOF
