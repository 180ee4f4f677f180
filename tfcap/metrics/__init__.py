"""Computes caption scores and diversity, and reads result files, without TensorFlow."""
