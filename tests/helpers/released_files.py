"""Checkpoints and vocabularies as released code writes them, made from the fixtures."""

import collections
import json

import numpy as np

from helpers import parity, torch_writer

ROWS = 60
JDAI = [f"w{number}" for number in range(1, ROWS - 1)] + ["UNK"]  # word i is the id i
END, PAD, SOS = 1, 0, 3  # of the fixture of ExpansionNet
EXPANSION = [f"w{number}" for number in range(ROWS)]
EXPANSION[PAD], EXPANSION[END], EXPANSION[2], EXPANSION[SOS] = "PAD", "EOS", "\n", "SOS"
EXPANSION[ROWS - 1] = "UNK"


def family(name):
    return {"xlan_relu0": "xlan", "expansion": "expansionnet"}.get(name, name)


def state(name):
    """Returns the state dict of a fixture, with the prefix that the released trainer adds."""
    prefix = "" if name == "expansion" else "module."
    arrays = parity.read(name).items()
    return collections.OrderedDict((prefix + k[2:], v) for k, v in arrays if k.startswith("w/"))


def checkpoint(folder, name, tensors=None):
    """Writes the checkpoint and the vocabulary of a fixture as the released code does."""
    tensors = state(name) if tensors is None else tensors
    if name == "expansion":
        tensors = {"model_state_dict": tensors, "optimizer_state_dict": {"lr": 1e-4}, "epoch": 3}
    torch_writer.write(folder / "model.pth", tensors, top="model")
    words = json.dumps(EXPANSION) if name == "expansion" else "\n".join(JDAI) + "\n"
    (folder / "words.txt").write_text(words)
    return family(name), str(folder / "model.pth"), str(folder / "words.txt")


def float32_positions(count, width):
    """The positions [count, width] of a released file: sinusoids computed in float32."""
    one = np.float32
    rates = np.exp(np.arange(0, width, 2, dtype=one) * one(-np.log(2.0 * 5000) / width))
    angles = np.arange(count, dtype=one)[:, None] * rates
    return np.stack([np.sin(angles), np.cos(angles)], -1).reshape(count, width)
