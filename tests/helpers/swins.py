"""A narrow Swin with the weights of the fixture `expansion_v2`, and its files."""

import numpy as np

from helpers import parity, torch_writer
from tfcap import backbones
from tfcap.backbones import networks, swin

NAME = "swin_narrow"
SIZE = swin.Size(8, (2, 3, 2), 1, 4, 64)
PREFIX = "swin_transf."


def add(patch, name=NAME, size=SIZE):
    """Makes a size known while `patch`, a `pytest.MonkeyPatch`, lasts."""
    patch.setitem(swin.SIZES, name, size)
    patch.setitem(networks.TABLE, name, networks.swin_row(size))
    patch.setattr(backbones, "BACKBONES", (*backbones.BACKBONES, name))


def state(prefix="w/", buffers=True):
    """The released state dict of the Swin, under the names of its authors' own file."""
    prefix += PREFIX
    arrays = {k.removeprefix(prefix): v for k, v in arrays_of().items() if k.startswith(prefix)}
    constant = ("attn_mask", "relative_position_index")
    return {k: v for k, v in arrays.items() if buffers or not k.endswith(constant)}


def arrays_of():
    return parity.read("expansion_v2")


def write(path, tensors=None):
    """Writes a file as microsoft/Swin-Transformer has them, with its classes."""
    head = {"head.weight": np.ones((5, 32), "f4"), "head.bias": np.ones(5, "f4")}
    content = {**(state() if tensors is None else tensors), **head}
    torch_writer.write(path, {"model": content})
    return str(path)
