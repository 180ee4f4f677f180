"""Readers of captions, one module per layout. Each returns a list of `ImageEntry`.

To add a layout, write a module with a function from `Given` to the list, decorate it with
`reader`, and import it here. The flag `--source` of `tfcap.prepare` then has its name.
"""

# ruff: noqa: F401
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
from tfcap.preparing.sources.flickr8k import flickr8k
from tfcap.preparing.sources.flickr30k import flickr30k
from tfcap.preparing.sources.gif import gif
from tfcap.preparing.sources.iaprtc12 import iaprtc12
from tfcap.preparing.sources.imagefolder import imagefolder
from tfcap.preparing.sources.jsonl import jsonl
from tfcap.preparing.sources.karpathy import karpathy
from tfcap.preparing.sources.msrvtt import msrvtt
from tfcap.preparing.sources.parquet import parquet
from tfcap.preparing.sources.tables import read_csv, read_tsv
from tfcap.preparing.sources.tfds import tfds
from tfcap.preparing.sources.webdataset import webdataset
from tfcap.preparing.sources.xmodaler import xmodaler

__all__ = [
    "READERS",
    "RECOGNISERS",
    "SPLITS",
    "Given",
    "ImageEntry",
    "blip",
    "coco",
    "flickr30k",
    "flickr8k",
    "gif",
    "iaprtc12",
    "imagefolder",
    "jsonl",
    "karpathy",
    "msrvtt",
    "parquet",
    "read_csv",
    "read_tsv",
    "reader",
    "tfds",
    "webdataset",
    "xmodaler",
]
