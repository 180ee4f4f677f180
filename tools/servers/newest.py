"""Keeps the newest version of an export loaded; both adapters answer with it.

KServe and Triton have no base path with numbered versions as TF Serving has, so this file looks
for them. A new version is loaded and called before it answers. Requests that run keep the old one,
which is freed after the last of them.

Letters: B pictures of a request.
"""

import os
import threading
import time

import numpy as np
import tensorflow as tf


class Newest:
    """Calls `serving_default` of the newest version below a base path.

    Args:
      base_path: the directory with the numbered versions.
      sizes: batch sizes that a version is called with before it answers.

    Attributes:
      version: the number that answers now.
      outputs: its outputs, `tf.TensorSpec` by name.
      inputs: its inputs, `tf.TensorSpec` by name.
    """

    def __init__(self, base_path: str, sizes=(1, 8)):
        self._base_path, self._sizes, self.version = base_path, sizes, 0
        self.look()

    def look(self) -> None:
        """Loads a version with a higher number, if there is one."""
        names = [int(name) for name in os.listdir(self._base_path) if name.isdecimal()]
        newest = max(names, default=0)
        if newest <= self.version:
            return
        loaded = tf.saved_model.load(os.path.join(self._base_path, str(newest)))
        function = loaded.signatures["serving_default"]
        inputs = function.structured_input_signature[1]
        for size in self._sizes:
            function(
                **{key: tf.constant(_warm(key, size), spec.dtype) for key, spec in inputs.items()}
            )
        # One assignment: a request sees the old pair or the new one.
        self._current = loaded, function
        self.inputs, self.outputs, self.version = inputs, function.structured_outputs, newest

    def watch(self, seconds: float = 1.0) -> None:
        """Looks again and again in a thread that ends with the process."""

        def run():
            while True:
                time.sleep(seconds)
                self.look()

        threading.Thread(target=run, daemon=True).start()

    def __call__(self, columns: dict[str, list]) -> dict[str, np.ndarray]:
        """Returns the outputs [B, ...] for inputs [B].

        Raises:
          ValueError: the model refuses the inputs.
        """
        loaded, function = self._current
        inputs = function.structured_input_signature[1]
        if set(columns) != set(inputs):
            raise ValueError(
                f"The inputs must be {', '.join(inputs)}. Received: {', '.join(columns)}."
            )
        try:
            tensors = {key: tf.constant(columns[key], inputs[key].dtype) for key in inputs}
            results = function(**tensors)
        except (tf.errors.InvalidArgumentError, TypeError) as error:
            raise ValueError(_reason(error)) from error
        return {key: value.numpy() for key, value in results.items()}


def _reason(error: Exception) -> str:
    """Returns the line of a message that says what was wrong."""
    lines = [line for line in str(error).splitlines() if line.strip()]
    above = ("Graph execution error", "Detected at node", "<stack traces")
    return next((line for line in lines if not line.startswith(above)), lines[0])


def _warm(key: str, size: int) -> list:
    """Makes an input: grey pictures, or seeds."""
    grey = tf.io.encode_png(tf.fill([64, 64, 3], tf.constant(128, tf.uint8))).numpy()
    return [grey if key == "image_bytes" else 1] * size
