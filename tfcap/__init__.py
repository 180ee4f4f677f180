"""Image captioning on Keras 3 and TensorFlow."""

import os

# Before TensorFlow is loaded: on a machine without a GPU its C++ side reports that as an error.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

__version__ = "0.1.0"
