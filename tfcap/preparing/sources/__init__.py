"""Readers of caption files, one module per layout. Each returns a list of `ImageEntry`.

To add a layout, write a module with a function from the path to the list, decorate it with
`reader`, and import it here. The flag `--source` of `tfcap.prepare` then has its name.
"""

from tfcap.preparing.sources.entry import READERS, SPLITS, ImageEntry, reader
from tfcap.preparing.sources.karpathy import karpathy

__all__ = ["READERS", "SPLITS", "ImageEntry", "karpathy", "reader"]
