#!/usr/bin/env bash
# A LiteRT file with float16 weights has its single numbers in float16, too: 1e-9 becomes 0.
#
# Versions: TensorFlow 2.21.0 (tensorflow-cpu), NumPy 2.2.6; Python 3.10 to 3.13. TensorFlow 2.20.0
#   does the same.
# Behaviour: with Optimize.DEFAULT and supported_types=[tf.float16] the converter stores all float32
#   constants as float16, scalars as well. Below 6e-8 a number becomes 0 and beyond 65504 it becomes
#   65504. So the guard of `x / (sum + 1e-9)` is gone, and the 1e9 of a mask is smaller than numbers
#   that it should exceed. No warning.
# Expected by most: only weights in float16, as Optimize.DEFAULT alone makes only large weights
#   int8.
# Why it matters: NaN and wrong choices come only on rare inputs, so that a comparison of the two
#   files on a few pictures passes.
# tfcap: stores as float16 only constants of 1024 bytes and more, within the range of float16.
#
# Output seen on 2026-11-28:
#   function                                 TensorFlow float32  int8     float16
#   x / (sum(x) + 1e-9) of zeros             0          0        0        nan
#   log(x + 1e-9) of zeros                   -20.7      -20.7    -20.7    -inf
#   x + 1e9 of zeros                         1e+09      1e+09    1e+09    6.55e+04
#   argmin(where(valid, x, 1e9)), x = 90000  0          0        0        2
#   as stated
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder"
"$folder/bin/pip" install --quiet --no-compile --disable-pip-version-check \
  tensorflow-cpu==2.21.0 keras==3.12.4 numpy==2.2.6 protobuf==6.33.2 h5py==3.14.0 ml-dtypes==0.5.4
TF_CPP_MIN_LOG_LEVEL=3 "$folder/bin/python" -I -W ignore - <<'EOF'
import sys

import numpy as np
import tensorflow as tf

FUNCTIONS = {
    "x / (sum(x) + 1e-9) of zeros": (0, lambda x: x / (tf.reduce_sum(x) + 1e-9)),
    "log(x + 1e-9) of zeros": (0, lambda x: tf.math.log(x + 1e-9)),
    "x + 1e9 of zeros": (0, lambda x: x + 1e9),
    "argmin(where(valid, x, 1e9)), x = 90000": (  # the first two are valid
        90000,
        lambda x: tf.argmin(tf.where(tf.range(8) < 2, x, 1e9), output_type=tf.int32),
    ),
}
FORMS = "float32", "int8", "float16"
tf.get_logger().setLevel("ERROR")


def lite(function, form):
    """The function, run from a file in one of the forms."""
    converter = tf.lite.TFLiteConverter.from_concrete_functions([function], tf.Module())
    if form != "float32":
        converter.optimizations = [tf.lite.Optimize.DEFAULT]
    if form == "float16":
        converter.target_spec.supported_types = [tf.float16]
    return tf.lite.Interpreter(model_content=converter.convert()).get_signature_runner()


print(f"{'function':40} TensorFlow", *(f"{form:8}" for form in FORMS))
found = []
for name, (number, formula) in FUNCTIONS.items():
    function = tf.function(lambda x, formula=formula: {"y": formula(x)}, autograph=False)
    function = function.get_concrete_function(x=tf.TensorSpec([8], name="x"))
    x = np.full(8, number, np.float32)
    results = [function(x=tf.constant(x)), *(lite(function, form)(x=x) for form in FORMS)]
    row = [f"{np.ravel(result['y'])[0]:.3g}" for result in results]
    print(f"{name:40} {row[0]:10}", *(f"{text:8}" for text in row[1:]))
    found.append(row)
if [row[:3] for row in found] != [["0"] * 3, ["-20.7"] * 3, ["1e+09"] * 3, ["0"] * 3]:
    sys.exit("CHANGED: TensorFlow, float32 and int8 no longer agree")
if [row[3] for row in found] != ["nan", "-inf", "6.55e+04", "2"]:
    sys.exit("CHANGED: single numbers are no longer stored as float16")
print("as stated")
EOF
