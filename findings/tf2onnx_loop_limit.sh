#!/usr/bin/env bash
# tf2onnx writes a file that does not load when a loop's condition reads its maximum_iterations.
#
# Versions: tf2onnx 1.17.0, ONNX 1.23.2, ONNX Runtime 1.23.2, TensorFlow 2.21.0 (tensorflow-cpu),
#   NumPy 2.2.6; Python 3.10 to 3.13. ONNX Runtime 1.32.0 does the same.
# Behaviour: tf2onnx makes the constant behind `maximum_iterations` an int64, also where the
#   condition compares it with an int32. This needs a tensor that is constant when the graph is
#   converted: tf.constant(4), or tf.shape(x)[1] of an axis that the signature gives as 4. With an
#   open axis, or with the Python number 4, the file is right. Conversion reports no error,
#   onnx.checker.check_model accepts the file, and only `full_check=True` or a session refuses it.
# Expected by most: a file that runs, as for an open axis; or an error while converting.
# Why it matters: a decoder with `length = tf.shape(x)[1]` converts and runs until somebody fixes
#   the length in the signature.
# tfcap: passes a known length as a number, and checks each file with `full_check=True`.
#
# Output seen on 2026-11-28, a sum over axis 1 of ones in a tf.while_loop:
#   length         signature     conversion  check   full check      ONNX Runtime
#   tf.shape(x)[1] [None, None]  no error    passed  passed          4.0
#   tf.shape(x)[1] [None, 4]     no error    passed  InferenceError  Fail
#   tf.constant(4) [None, 4]     no error    passed  InferenceError  Fail
#   4              [None, 4]     no error    passed  passed          4.0
#   as stated
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder"
"$folder/bin/pip" install --quiet --no-compile --disable-pip-version-check \
  tensorflow-cpu==2.21.0 keras==3.12.4 numpy==2.2.6 protobuf==6.33.2 h5py==3.14.0 ml-dtypes==0.5.4 \
  tf2onnx==1.17.0 onnx==1.23.2 onnxruntime==1.23.2
TF_CPP_MIN_LOG_LEVEL=3 "$folder/bin/python" -I - <<'EOF'
import logging
import sys

import numpy as np
import onnx
import onnxruntime
import tensorflow as tf
import tf2onnx

LENGTHS = {
    "tf.shape(x)[1]": lambda x: tf.shape(x)[1],
    "tf.constant(4)": lambda x: tf.constant(4),
    "4": lambda x: 4,
}


def tried(call, *arguments, **named):
    try:
        result = call(*arguments, **named)
    except Exception as error:
        return type(error).__name__
    return "passed" if result is None else result


errors = []
handler = logging.Handler(logging.ERROR)
handler.emit = errors.append
logging.getLogger("tf2onnx").addHandler(handler)


def row(name, axis):
    signature = [tf.TensorSpec([None, axis], name="x")]

    def total(x):
        length, start = LENGTHS[name](x), (0, tf.zeros_like(x[:, 0]))
        return tf.while_loop(
            lambda i, _: i < length,
            lambda i, s: (i + 1, s + x[:, i]),
            start,
            maximum_iterations=length,
        )[1]

    function = tf.function(total, input_signature=signature, autograph=False)
    errors.clear()
    file, _ = tf2onnx.convert.from_function(function, input_signature=signature, opset=18)
    conversion = "error" if errors else "no error"
    check = tried(onnx.checker.check_model, file)
    full = tried(onnx.checker.check_model, file, full_check=True)

    def run():
        session = onnxruntime.InferenceSession(file.SerializeToString())
        return str(session.run(None, {"x": np.ones((2, 4), np.float32)})[0][0])

    return conversion, check, full, tried(run)


print("length         signature     conversion  check   full check      ONNX Runtime")
found = []
for name, axis in [("tf.shape(x)[1]", None), *((name, 4) for name in LENGTHS)]:
    found.append(row(name, axis))
    print("{:14} {:13} {:11} {:7} {:15} {}".format(name, str([None, axis]), *found[-1]))
good = "no error", "passed", "passed", "4.0"
bad = "no error", "passed", "InferenceError", "Fail"
if found[1:3] != [bad, bad]:
    sys.exit("CHANGED: a constant tensor as maximum_iterations is no longer made an int64 silently")
if [found[0], found[3]] != [good, good]:
    sys.exit("CHANGED: the other loops no longer run")
print("as stated")
EOF
