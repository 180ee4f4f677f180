"""Readers of ready-made features, one module per layout.

To add a layout, write a module with a class that `layout.layout` decorates, and import it here.
"""

from tfcap.preparing.features.ready.bottom_up import BottomUp
from tfcap.preparing.features.ready.folder import Folder
from tfcap.preparing.features.ready.hdf5 import Hdf5
from tfcap.preparing.features.ready.lmdb_store import Lmdb
from tfcap.preparing.features.ready.matrix import Matrix
from tfcap.preparing.features.ready.reader import ReadyFeatures, recognise
from tfcap.preparing.features.ready.vinvl import VinVL

__all__ = [
    "BottomUp",
    "Folder",
    "Hdf5",
    "Lmdb",
    "Matrix",
    "ReadyFeatures",
    "VinVL",
    "recognise",
]
