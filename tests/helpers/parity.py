"""Weights and outputs of released PyTorch models, for comparison with ours.

A fixture `fixtures/<name>.npz` holds random weights of a released model under `w/<state dict key>`
(PyTorch layout), inputs under `in/` and what the released code computes from them under `out/`.

The released models have one id, 0, for the start, the end and padding, and the unknown word last;
ours have 0 pad, 1 bos, 2 eos, 3 unk. `Vocabulary` goes from one to the other.
"""

import pathlib

import numpy as np

FIXTURES = pathlib.Path(__file__).parents[1] / "fixtures"


def read(name: str) -> dict[str, np.ndarray]:
    """The arrays of a fixture."""
    with np.load(FIXTURES / f"{name}.npz", allow_pickle=False) as arrays:
        return {key: arrays[key] for key in arrays.files}


class Vocabulary:
    """Translates between `size` released ids and our `size + 2`."""

    def __init__(self, size: int):
        # Our id -> released id: pad, bos and eos are all 0, unk is the last.
        self.released = np.array([0, 0, 0, size - 1, *range(1, size - 1)])
        # Released id -> our id, for words; 0 is the end of a sentence as a target.
        self.ours = np.empty(size, np.int64)
        self.ours[self.released[2:]] = np.arange(2, size + 2)

    def inputs(self, words: np.ndarray) -> np.ndarray:
        """Teacher-forcing inputs [N, T]: the first 0 is BOS, the others PAD."""
        ids = np.where(words == 0, 0, self.ours[words])
        ids[:, 0] = 1
        return ids.astype(np.int32)

    def sentences(self, words: np.ndarray) -> np.ndarray:
        """Generated sentences [N, T]: the first 0 is EOS, the others PAD."""
        before = np.cumsum(words == 0, axis=1) - (words == 0)
        return np.where(before > 0, 0, self.ours[words]).astype(np.int32)

    def logits(self, ours: np.ndarray) -> np.ndarray:
        """Our logits [..., V + 2] in the released order [..., V]; 0 means the end."""
        return ours[..., self.ours]


def weights_of(arrays: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The weights of a fixture by their state dict keys, without constant buffers."""
    result = {key[2:]: value for key, value in arrays.items() if key.startswith("w/")}
    return {key: value for key, value in result.items() if not key.endswith(".pe")}
