"""Writes a prepared directory: captions and images become records, words and references."""
