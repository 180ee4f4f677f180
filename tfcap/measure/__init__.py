"""Measurements for `tfcap.benchmark`: times, operation counts, growth with size, quality."""
