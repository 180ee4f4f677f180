"""Reads <split>.index.npz: the positions of the records in the shards of a split.

Letters: n images of a split.
"""

import os
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from tfcap.arrays import load_npz
from tfcap.data.fingerprint import FINGERPRINT


class SplitIndex(NamedTuple):
    """The positions of the n records of a split, in file order."""

    shard: np.ndarray  # int32 [n], position in the list of shards
    offset: np.ndarray  # int64 [n], byte where the record starts
    id: np.ndarray  # int64 [n], image id


def read_index(folder: str | os.PathLike, split: str, shards: Sequence[dict]) -> SplitIndex:
    """Reads <split>.index.npz and checks it against the shard entries of dataset.json."""
    path = os.path.join(folder, f"{split}.index.npz")
    arrays = load_npz(path, SplitIndex._fields, "Run prepare again.")
    index = SplitIndex(**arrays)
    expected = np.repeat(np.arange(len(shards)), [shard["records"] for shard in shards])
    sizes = np.array([shard["bytes"] for shard in shards], np.int64)
    if (
        tuple(array.dtype for array in index) != (np.int32, np.int64, np.int64)
        or any(array.shape != expected.shape for array in index)
        or not np.array_equal(index.shard, expected)
        or not ((index.offset >= 0) & (index.offset < sizes[index.shard])).all()
    ):
        raise ValueError(
            f"{path} does not fit the {len(expected)} records of {FINGERPRINT}. Run prepare again."
        )
    return index
