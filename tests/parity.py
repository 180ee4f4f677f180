"""Weights and outputs of released PyTorch models, for comparison with ours.

A fixture `fixtures/<name>.npz` holds random weights of a released model under `w/<state dict key>`
(PyTorch layout), inputs under `in/` and what the released code computes from them under `out/`.

The released models have one id, 0, for the start, the end and padding, and the unknown word last;
ours have 0 pad, 1 bos, 2 eos, 3 unk. `Vocabulary` goes from one to the other.
"""

import pathlib
import re

import numpy as np

from tfcap.models.captioner import is_seed, named_variables

FIXTURES = pathlib.Path(__file__).parent / "fixtures"

# Names of the released X-Transformer's modules -> the chain of attributes of ours.
XTRANSFORMER = (
    (r"^att_embed\.0", "region_embed"),
    (r"^att_embed\.2", "region_norm"),
    (r"^(encoder|decoder)\.layers\.(\d+)\.", r"\1.\2."),
    (r"(in_proj_\w+)\.0", r"\1.linear"),
    (r"(in_proj_\w+)\.2", r"\1.norm"),
    (r"attn_net\.attention_basic\.0", "joint"),
    (r"attn_net\.attention_last2", "channel"),
    (r"attn_net\.attention_last", "spatial"),
    (r"bifeat_emb\.0", "bifeat_emb"),
    (r"^encoder\.proj_norm\.0", "encoder_proj"),
    (r"^encoder\.proj_norm\.1", "encoder_norm"),
    (r"^decoder\.proj_norm\.0", "decoder_proj"),
    (r"^decoder\.proj_norm\.2", "decoder_norm"),
    (r"^decoder\.embed_tokens", "embed_tokens"),
    (r"^decoder\.layer_norm_word", "word_norm"),
    (r"^decoder\.generator", "head"),
    (r"^decoder\.(wbil\d)\.0", r"\1"),
    (r"^decoder\.(wbil\d)\.2", r"\1_norm"),
)


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


def assign(model, weights: dict[str, np.ndarray], rules, vocabulary: Vocabulary) -> None:
    """Gives `model` the released `weights`, by name, every one and each once.

    PAD and BOS, which the released models do not have apart, can never be predicted.
    """
    left = {name: v for name, v in named_variables(model).items() if not is_seed(v)}
    for key, value in weights.items():
        path, leaf = key.rsplit(".", 1)
        for pattern, ours in rules:
            path = re.sub(pattern, ours, path)
        path = path.replace(".", "/")
        if path == "embed_tokens":
            name, value = f"{path}/embeddings", value[vocabulary.released]
        elif leaf == "weight":
            name, value = (
                (f"{path}/kernel", value.T) if value.ndim == 2 else (f"{path}/gamma", value)
            )
        else:
            name = f"{path}/bias" if f"{path}/bias" in left else f"{path}/beta"
        if path == "head":
            value = value[..., vocabulary.released]
            if leaf == "bias":
                value[:2] = -1e9
        variable = left.pop(name)
        assert tuple(variable.shape) == value.shape, (key, name, variable.shape, value.shape)
        variable.assign(value)
    assert not left, f"no released weight for {sorted(left)}"


def weights_of(arrays: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The weights of a fixture by their state dict keys, without constant buffers."""
    found = {key[2:]: value for key, value in arrays.items() if key.startswith("w/")}
    return {key: value for key, value in found.items() if not key.endswith(".pe")}
