"""Finds the system and its options from the tensor names and shapes of a released checkpoint."""

import dataclasses
import re
from collections.abc import Mapping
from typing import Any

import numpy as np

from tfcap.backbones.swin import PREFIX as SWIN
from tfcap.importers import FAMILIES, weights
from tfcap.layers.positions import sinusoids

# The systems of toolkits: the start of a name, its table of names, our system; the first row that
# fits counts.
_TOOLKITS = {
    "xmodaler": (
        ("encoder.gcn_", "xmodaler_gcn", "gcn_lstm"),
        ("decoder.attribute_fc.", "xmodaler_lstm_a", "lstm_a"),
        ("decoder.lstm1.", "xmodaler_updown", "updown"),
        ("decoder.lstm.", "xmodaler_attention", "attention_lstm"),
        ("decoder.att_lstm.", "xmodaler_xlan", "xlan"),
        ("decoder.g_layers.", "xmodaler_transformer", "transformer"),
    ),
    "self_critical": (
        ("core.a2c.", "self_critical", "att2in"),
        ("core.a2h.", "self_critical", "att2in"),
        ("core.lang_lstm.", "self_critical_updown", "updown"),
        ("fc_embed.weight", "self_critical_fc", "show_tell"),
        ("img_embed.weight", "self_critical_fc", "show_tell"),
    ),
}

# Where a larger module keeps the model.
_PARTS = ("model.", "net.", "network.", "captioner.", "model.net.")


@dataclasses.dataclass
class Checkpoint:
    """A released captioner: what `recognize` finds in its checkpoint.

    Attributes:
      system: name of the captioner's architecture in `models.MODELS`.
      tensors: the weights, by the names that they have in our model and with its shapes. Tables of
        position codes are not among them.
      names: the released name of each weight, by its name in our model.
      options: options of the architecture. Names and shapes of the weights show most of them. The
        others, such as activations, have the values of the released code.
      feature_dim: width of the features, F.
      rows: number of words for which the checkpoint has embeddings or logits.
      positions: the released name of the table of position codes, and the table [P, D], D numbers
        for each of P positions; None without such a table.
      backbone: the weights of the backbone that the checkpoint also holds, by the names that the
        backbone's own checkpoints use; empty if the captioner reads features.
    """

    system: str
    tensors: dict[str, np.ndarray]
    names: dict[str, str]
    options: dict[str, Any]
    feature_dim: int
    rows: int
    positions: tuple[str, np.ndarray] | None = None
    backbone: dict[str, np.ndarray] = dataclasses.field(default_factory=dict)

    def has_sinusoids(self, max_length: int) -> bool:
        """Returns whether the position codes of the checkpoint are the usual sinusoids.

        The formula of the sinusoids is in `layers.positions.sinusoids`. The answer is also True if
        the checkpoint has no table of position codes. The released code computes its table in
        float32, so that the angles have an error of up to 1.2e-7 times the position. Therefore the
        codes may differ from the formula by up to 1e-6 + 2^-22 * position.

        Args:
          max_length: number of positions to compare, from the first.
        """
        if self.positions is None:
            return True
        table = self.positions[1][:max_length]
        tolerance = 1e-6 + 2.0**-22 * np.arange(len(table))[:, None]
        return bool((np.abs(table - sinusoids(*table.shape)) <= tolerance).all())

    def store_positions(self, max_length: int) -> None:
        """Adds the table of position codes to `tensors`, so that the model stores it as a weight.

        This also sets the option `stored_positions`. Nothing happens if the checkpoint has no such
        table.

        Args:
          max_length: number of positions to take, from the first.

        Raises:
          ValueError: the table has fewer positions.
        """
        if self.positions is not None:
            key, table = self.positions
            if len(table) < max_length:
                raise ValueError(
                    f"{key} has codes for {len(table)} words. Set `max_length` to at most "
                    f"{len(table)}."
                )
            self.options["stored_positions"] = True
            self.tensors["position_codes/table"] = table[:max_length]
            self.names["position_codes/table"] = key


def recognize(family: str, state: Mapping[str, np.ndarray]) -> Checkpoint:
    """Finds the captioner of a family in the tensors of a checkpoint.

    The captioner may be a part of a larger module, as in Lightning. Then the names of its tensors
    begin with, for example, "model.". Other tensors, such as the weights of a loss, are left out.

    Args:
      family: the code that wrote the checkpoint, one of `importers.FAMILIES`.
      state: the tensors by name, the result of `torch_file.read_tensors`.

    Raises:
      ValueError: the checkpoint holds no captioner of this family.
    """
    checkpoint = _recognized(family, state)
    for part in _PARTS:
        inside = {k.removeprefix(part): v for k, v in state.items() if k.startswith(part)}
        if checkpoint is None and inside:
            checkpoint = _recognized(family, inside)
    if checkpoint is None:
        raise ValueError(
            f"the file is no checkpoint of {family}. Choose with `family` the code that "
            f"wrote the file: {', '.join(FAMILIES)}."
        )
    return checkpoint


def _recognized(family: str, state: Mapping[str, np.ndarray]) -> Checkpoint | None:
    """Returns the released model with exactly these names; None for names of another family."""
    state = weights.split(state, family)
    swin = {key: state.pop(key) for key in list(state) if key.startswith(SWIN)}
    if family == "expansionnet" and swin:
        raise ValueError(
            "the checkpoint is an ExpansionNet v2 with its Swin. Use `family=expansionnet_v2`."
        )
    buffers = {key: state.pop(key) for key in list(state) if key.endswith(".pe")}
    if family == "m2" and (codes := state.pop("decoder.pos_emb.weight", None)) is not None:
        buffers["decoder.pos_emb.weight"] = codes[1:]  # the first row is that of padding
    table = system = family
    if family in _TOOLKITS:
        toolkit = _TOOLKITS[family]
        matches = [row for row in toolkit if any(key.startswith(row[0]) for key in state)]
        if not matches:
            return None
        _, table, system = matches[0]
    tensors: dict[str, np.ndarray] = {}
    names: dict[str, str] = {}
    for key, value in state.items():
        name, tensor = weights.translate(key, value, weights.NAMES[table])
        if name in names:
            raise ValueError(
                f"the tensors {names[name]} and {key} both stand for the weight {name}. Save the "
                "checkpoint without the one that is wrong."
            )
        tensors[name], names[name] = tensor, key
    if "embed_tokens/embeddings" not in tensors and "head/kernel" not in tensors:
        return None
    if empty := [names[name] for name, value in tensors.items() if not value.size]:
        raise ValueError(
            f"the tensor {empty[0]} is empty. Copy the file again, or save the model again."
        )
    sizes = _Sizes(tensors)
    options = _SYSTEMS[system](sizes) | _NOT_IN_SHAPES.get(table, {})
    options = {key: value for key, value in options.items() if value is not None}
    rows = sizes("embed_tokens/embeddings", 0) or sizes("head/kernel", 1)
    positions = None
    for key, codes in buffers.items():
        positions = key, codes.reshape(-1, codes.shape[-1] if codes.ndim else 1)  # of a batch of 1
    feature_dim = _feature_dim(system, sizes) or 2048
    checkpoint = Checkpoint(system, tensors, names, options, feature_dim, rows or 0, positions)
    checkpoint.backbone = {key.removeprefix(SWIN): value for key, value in swin.items()}
    return checkpoint


class _Sizes:
    """Sizes of tensors by our names; None if there is no such tensor or axis."""

    def __init__(self, tensors: Mapping[str, np.ndarray]):
        self.tensors = tensors

    def __call__(self, name: str, axis: int) -> int | None:
        shape = self.tensors[name].shape if name in self.tensors else ()
        return shape[axis] if axis < len(shape) else None

    def layers(self, stack: str) -> int:
        """Returns the number of layers `stack`/0, `stack`/1, ..."""
        matches = [re.match(rf"{stack}/(\d+)/", name) for name in self.tensors]
        return len({int(match[1]) for match in matches if match})

    def width(self) -> int | None:
        """Returns D, the width of the word table."""
        return self("embed_tokens/embeddings", 1)

    def xlinear(self, block: str) -> dict[str, int | None]:
        """Returns heads and middle width of an X-Linear block; all heads share its joint map."""
        depth = self(f"{block}/joint/kernel", 0)
        middle = self(f"{block}/joint/kernel", 1)
        width = self.width()
        heads = width // depth if depth and width else None
        return {"heads": heads, "middle_width": middle if middle != (depth or 0) // 2 else None}

    def inner(self, *layers: str) -> int | None:
        """Returns the inner width of the first feed-forward block there is; None if it is 4 D."""
        sizes = [self(f"{layer}/ff_layer/fc1/kernel", 1) for layer in layers]
        sizes = [size for size in sizes if size]
        return sizes[0] if sizes and sizes[0] != 4 * (self.width() or 0) else None


# The options of each system, by the sizes of its tensors. None stands for the default.
_Options = dict[str, Any]


def _xlan(sizes: _Sizes) -> _Options:
    layers = {
        "encoder_layers": sizes.layers("encoder"),
        "decoder_layers": sizes.layers("attention") or None,
    }
    return {"width": sizes.width(), **layers, **sizes.xlinear("attention/0")}


def _transformer(sizes: _Sizes) -> _Options:
    return {
        "width": sizes.width(),
        "encoder_layers": sizes.layers("encoder"),
        "decoder_layers": sizes.layers("decoder") or None,
        "inner_width": sizes.inner("encoder/0", "decoder/0"),
    }


def _xtransformer(sizes: _Sizes) -> _Options:
    return _transformer(sizes) | sizes.xlinear("decoder/0/word_attn")


def _attention_lstm(sizes: _Sizes) -> _Options:
    return {"width": sizes.width(), "attention_width": sizes("attention/query/kernel", 1)}


def _att2in(sizes: _Sizes) -> _Options:
    joint = sizes("attended/kernel", 1) or 0  # of all five sums, or of the two candidates
    attend = "all" if joint == 5 * (sizes.width() or 0) else "in"
    return _attention_lstm(sizes) | {"attend": attend}


def _show_tell(sizes: _Sizes) -> _Options:
    maxout = "lstm/input_map/kernel" in sizes.tensors
    return {"width": sizes.width(), "cell": "maxout" if maxout else "lstm"}


def _lstm_a(sizes: _Sizes) -> _Options:
    return {"width": sizes.width(), "attributes": sizes("attribute_embed/kernel", 0)}


def _gcn_lstm(sizes: _Sizes) -> _Options:
    return _attention_lstm(sizes) | {"labels": sizes("graph/bias", 0)}


def _updown(sizes: _Sizes) -> _Options:
    options = {"embed_regions": "region_embed/kernel" in sizes.tensors}
    if "mean_embed/kernel" in sizes.tensors:
        options["embed_mean"] = True
    return _attention_lstm(sizes) | options


def _aoanet(sizes: _Sizes) -> _Options:
    return {"width": sizes.width(), "refiner_layers": sizes.layers("refiner")}


def _ort(sizes: _Sizes) -> _Options:
    inner = sizes("decoder/0/fc1/kernel", 1)
    heads = sizes("encoder/0/geometry/weigh/kernel", 1)
    return _transformer(sizes) | {"inner_width": inner, "heads": heads}


def _m2(sizes: _Sizes) -> _Options:
    slots = sizes("encoder/0/self_att/attend/memory_keys", 0)
    return _transformer(sizes) | {"slots": slots, "filled_regions": 50, "head_bias": True}


def _expansionnet_v2(sizes: _Sizes) -> _Options:
    return {
        "width": sizes.width(),
        "encoder_layers": sizes.layers("encoder") or None,
        "decoder_layers": sizes.layers("decoder") or None,
        "inner_width": sizes("encoder/0/ff/fc1/kernel", 1),
        "decoder_vectors": sizes("decoder/0/expansion/query_exp_vectors", 0),
        "positions": sizes("embed_positions/embeddings", 0),
    }


def _expansionnet(sizes: _Sizes) -> _Options:
    dynamic = "encoder/0/expansion/cond_embed/kernel" in sizes.tensors
    return _expansionnet_v2(sizes) | {
        "encoder_block": "dynamic" if dynamic else "static",
        "encoder_vectors": sizes("encoder/0/expansion/query_exp_vectors", 0),
        "reduce": any(name.startswith(("encoder_proj", "decoder_proj")) for name in sizes.tensors),
    }


def _feature_dim(system: str, sizes: _Sizes) -> int | None:
    """Returns the width of the features, F."""
    regions = sizes("region_embed/kernel", 0)
    if system == "lstm_a":
        return (regions or 0) + (sizes("attribute_embed/kernel", 0) or 0)
    if system == "gcn_lstm":
        return (sizes("graph/loop/kernel", 0) or 0) + 36  # columns of labels by default
    return regions or sizes("attention/key/kernel", 0)  # Up-Down may have no map


_SYSTEMS = {
    "xlan": _xlan,
    "xtransformer": _xtransformer,
    "updown": _updown,
    "attention_lstm": _attention_lstm,
    "att2in": _att2in,
    "show_tell": _show_tell,
    "lstm_a": _lstm_a,
    "gcn_lstm": _gcn_lstm,
    "transformer": _transformer,
    "aoanet": _aoanet,
    "ort": _ort,
    "m2": _m2,
    "expansionnet": _expansionnet,
    "expansionnet_v2": _expansionnet_v2,
}
# Options that no shape shows and that are not the defaults of the system, by table of names.
_NOT_IN_SHAPES: dict[str, dict[str, Any]] = {
    # The defaults of X-LAN's authors' code (docs/systems.md 4.1).
    "updown": {"embed_activation": "none", "word_dropout": 0.0, "region_dropout": 0.0},
    "self_critical_fc": {"word_dropout": 0.0, "region_dropout": 0.0, "head_dropout": 0.5},
    "xmodaler_xlan": {"embed_activation": "relu"},
}
