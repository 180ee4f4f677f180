#!/usr/bin/env bash
# A signature of a SavedModel does not check the shapes that it declares.
#
# Versions: TensorFlow 2.20.0 (tensorflow-cpu), NumPy 2.2.6; Python 3.10 to 3.13.
# Behaviour: a function is saved with a TensorSpec of [None, 36, 4], and saved_model_cli shows that
#   shape. Called through loaded.signatures, it takes 10 regions, 7 numbers a region, and even a
#   tensor of another rank. What was read from the static shape while tracing stays: a mean over 36
#   regions divides the sum of 10 by 36. No error. The same function called as loaded(...) refuses
#   all three.
# Expected by most: an input_signature is a promise that is checked on each call.
# Why it matters: this is how a served captioner is called. Of a client that sends another number of
#   regions, or features of another width, captions come back that look like captions.
# tfcap: checks the sizes inside the graphs that it exports.
#
# Output seen on 2026-11-28, the mean of regions that are all 1:
#   declared: (None, 36, 4)
#   shape       loaded.signatures[...]  loaded(...)
#   [1, 36, 4]  1.000                   1.000
#   [1, 10, 4]  0.278                   TypeError
#   [1, 36, 7]  1.000                   TypeError
#   [36, 4]     0.111                   TypeError
#   as stated
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder"
"$folder/bin/pip" install --quiet --no-compile --disable-pip-version-check \
  tensorflow-cpu==2.20.0 keras==3.12.4 numpy==2.2.6 protobuf==6.33.2 h5py==3.15.1 ml-dtypes==0.5.4
TF_CPP_MIN_LOG_LEVEL=3 "$folder/bin/python" -I - "$folder" <<'EOF'
import sys

import tensorflow as tf


class Model(tf.Module):
    @tf.function(
        input_signature=[tf.TensorSpec([None, 36, 4], tf.float32, name="regions")], autograph=False
    )
    def __call__(self, regions):
        return {"mean": tf.reduce_sum(regions, 1) / regions.shape[1]}


model = Model()
tf.saved_model.save(model, f"{sys.argv[1]}/saved", signatures=model.__call__)
loaded = tf.saved_model.load(f"{sys.argv[1]}/saved")
served = loaded.signatures["serving_default"]


def answer(call, *arguments, **named):
    try:
        return f"{float(tf.reshape(call(*arguments, **named)['mean'], [-1])[0]):.3f}"
    except (TypeError, ValueError, tf.errors.InvalidArgumentError) as error:
        return type(error).__name__


print(f"declared: {served.structured_input_signature[1]['regions'].shape}")
print("shape       loaded.signatures[...]  loaded(...)")
found = []
for shape in ([1, 36, 4], [1, 10, 4], [1, 36, 7], [36, 4]):
    ones = tf.ones(shape)
    signature, direct = answer(served, regions=ones), answer(loaded, ones)
    print(f"{str(shape):11} {signature:23} {direct}")
    found.append((signature, direct))
if [signature for signature, _ in found] != ["1.000", "0.278", "1.000", "0.111"]:
    sys.exit("CHANGED: a signature now checks shapes")
if [direct for _, direct in found] != ["1.000"] + ["TypeError"] * 3:
    sys.exit("CHANGED: a loaded function no longer refuses other shapes")
print("as stated")
EOF
