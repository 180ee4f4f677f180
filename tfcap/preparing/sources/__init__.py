"""Readers of captions, one module per layout. Each returns a list of `ImageEntry`.

To add a layout, write a module with a function from `Given` to the list, decorate it with
`reader`, and import it here. The flag `--source` of `tfcap.prepare` then has its name.
"""

from tfcap.preparing.sources.blip import blip
from tfcap.preparing.sources.coco import coco
from tfcap.preparing.sources.entry import (
    READERS,
    RECOGNISERS,
    SPLITS,
    Given,
    ImageEntry,
    reader,
)
from tfcap.preparing.sources.jsonl import jsonl
from tfcap.preparing.sources.karpathy import karpathy
from tfcap.preparing.sources.tables import read_csv, read_tsv

__all__ = ["READERS", "RECOGNISERS", "SPLITS", "Given", "ImageEntry", "blip", "coco", "jsonl"]
__all__ += ["karpathy", "read_csv", "read_tsv", "reader"]
