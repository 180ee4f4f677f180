"""Readers of caption files, one layout a module: each gives the same list of `ImageEntry`."""

from tfcap.preparing.sources.entry import SPLITS, ImageEntry
from tfcap.preparing.sources.karpathy import karpathy

__all__ = ["SPLITS", "ImageEntry", "karpathy"]
