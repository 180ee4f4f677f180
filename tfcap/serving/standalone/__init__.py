"""The script of a portable export, which captions pictures without TensorFlow."""
