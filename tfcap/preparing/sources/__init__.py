"""Readers of caption files, one module per layout. Each returns a list of `ImageEntry`.

To add a layout, write a module with a function from the path to the list and add its line to
`READERS`. The flag `--source` of `tfcap.prepare` then has its name.
"""

from tfcap.preparing.sources.entry import SPLITS, ImageEntry
from tfcap.preparing.sources.karpathy import karpathy

READERS = {
    "karpathy": karpathy,
}

__all__ = ["READERS", "SPLITS", "ImageEntry", "karpathy"]
