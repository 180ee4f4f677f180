"""Checkpoints and vocabularies as released code writes them, made from the fixtures."""

import collections
import json
import pickle

import numpy as np

from helpers import parity, swins, torch_writer

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


V2_OPTIONS = "task.model.expansionnet_v2.encoder_groups=2 3 5,task.model.expansionnet_v2.heads=4"


def v2_state(prefix="w/", without=()):
    """The whole state dict of ExpansionNet v2, but for names that contain one of `without`."""
    arrays = swins.arrays_of().items()
    state = {k.removeprefix(prefix): v for k, v in arrays if k.startswith(prefix)}
    return {k: v for k, v in state.items() if not any(part in k for part in without)}


def v2_checkpoint(folder, state, write=torch_writer.write):
    """Writes a checkpoint with its optimizer, and the pickle of the words, as released."""
    optimizer = {"state": {0: {"exp_avg": np.ones(7, "f4")}}, "param_groups": [{"lr": 1e-4}]}
    content = {"model_state_dict": collections.OrderedDict(state)}
    content |= {"optimizer_state_dict": optimizer, "scheduler_state_dict": {"last_epoch": 3}}
    write(folder / "rf_model.pth", content)
    words = json.loads(str(swins.arrays_of()["cfg"]))["words"]
    table = {"word2idx_dict": {word: i for i, word in enumerate(words)}, "idx2word_list": words}
    table |= {"sos_str": "SOS", "eos_str": "EOS"}
    (folder / "tokens.pickle").write_bytes(pickle.dumps(table, 3))
    return "expansionnet_v2", str(folder / "rf_model.pth"), str(folder / "tokens.pickle")
