"""Image captioning on Keras 3 and TensorFlow."""

__version__ = "0.1.0"
