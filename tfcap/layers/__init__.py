"""Keras layers of the captioning systems."""
