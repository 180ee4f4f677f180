"""Which model of ours a released checkpoint holds, found from names and shapes alone."""

import dataclasses
import re
from collections.abc import Mapping
from typing import Any

import numpy as np

from tfcap.layers.positions import sinusoids
from tfcap.released import weights

FAMILIES = ("xlan", "xtransformer", "updown", "expansionnet", "xmodaler")
# Under which keys the released trainers keep the state dict inside a checkpoint.
WRAPPERS = ("model_state_dict", "model", "state_dict")
# What tells the systems of xmodaler apart: the beginning of a name, the table of names, the system.
_XMODALER = (
    ("decoder.lstm1.", "xmodaler_updown", "updown"),
    ("decoder.lstm.", "xmodaler_attention", "attention_lstm"),
    ("decoder.att_lstm.", "xmodaler_xlan", "xlan"),
    ("decoder.g_layers.", "xmodaler_transformer", "transformer"),
)


@dataclasses.dataclass
class Checkpoint:
    """A released model.

    Attributes:
      system: its name in `MODELS`.
      tensors: its weights by our names, in our layout, without buffers of positions.
      names: the released name of each of them.
      options: the arguments of the system that names and shapes tell, with the released choice of
        those that they cannot tell (activations, heads without a trace in any shape).
      feature_dim: width of the regions' features.
      rows: entries of its word table.
      positions: released name and values [P, D] of its buffer of position codes, if it has one.
    """

    system: str
    tensors: dict[str, np.ndarray]
    names: dict[str, str]
    options: dict[str, Any]
    feature_dim: int
    rows: int
    positions: tuple[str, np.ndarray] | None = None

    def has_sinusoids(self, max_length: int) -> bool:
        """Whether the first `max_length` position codes of the file are the sinusoids.

        The released code computes its buffer in float32. Its angles are then wrong by up to 1.2e-7
        of the position, so that the tolerance grows with the position: a table of 5,000 rows is
        4e-4 away from the sinusoids at its end and 7e-6 at position 100.
        """
        if self.positions is None:
            return True
        table = self.positions[1][:max_length]
        tolerance = 1e-6 + 2.0**-22 * np.arange(len(table))[:, None]
        return bool((np.abs(table - sinusoids(*table.shape)) <= tolerance).all())

    def store_positions(self, max_length: int) -> None:
        """Makes the first `max_length` position codes of the file a weight of the model.

        Raises:
          ValueError: the file has fewer codes.
        """
        key, table = self.positions
        if len(table) < max_length:
            raise ValueError(
                f"{key} must hold at least max_length ({max_length}) positions, because they are "
                f"not sinusoids. Received: {len(table)}. Choose a smaller --max_length"
            )
        self.options["stored_positions"] = True
        self.tensors["position_codes/table"] = table[:max_length]
        self.names["position_codes/table"] = key


def recognize(family: str, content: Any) -> Checkpoint:
    """The model in the content of a checkpoint.

    Args:
      family: one of FAMILIES.
      content: of `torch_files.load`, a state dict, with or without the prefix `module.`.

    Raises:
      ValueError: it is no state dict of this family, two tensors claim the same place, or a buffer
        of positions does not fit the system.
    """
    state = _clean(content)
    buffers = {key: state.pop(key) for key in list(state) if key.endswith(".pe")}
    table, system = family, family
    if family == "xmodaler":
        found = [row for row in _XMODALER if any(key.startswith(row[0]) for key in state)]
        if len(found) != 1:
            raise _foreign(family, state)
        ((_, table, system),) = found
    tensors, names = {}, {}
    for key, value in state.items():
        ((name, tensor),) = weights.translate({key: value}, weights.NAMES[table]).items()
        if name in names:
            raise ValueError(f"the tensors {names[name]} and {key} mean the same weight")
        tensors[name], names[name] = tensor, key
    if "embed_tokens/embeddings" not in tensors and "head/kernel" not in tensors:
        raise _foreign(family, state)
    options, feature_dim = _SYSTEMS[system](_Sizes(tensors))
    options |= _UNTOLD.get(table, {})
    options = {key: value for key, value in options.items() if value is not None}
    sizes = _Sizes(tensors)
    rows = sizes("embed_tokens/embeddings", 0) or sizes("head/kernel", 1)
    positions = _positions(buffers, system, sizes.width())
    return Checkpoint(system, tensors, names, options, feature_dim or 2048, rows, positions)


def expected_name(ours: str, checkpoint: Checkpoint) -> str:
    """The released name that a missing weight `ours` would have, going by those that are there.

    Ours if nothing similar is there.
    """
    layer = re.search(r"/(\d+)/", ours)
    for name, key in checkpoint.names.items():
        path, leaf = name.rsplit("/", 1)
        other, wanted = ours.rsplit("/", 1)
        if layer:
            path = re.sub(r"/\d+/", layer[0], f"{path}/", count=1).rstrip("/")
            key = re.sub(r"\.\d+\.", layer[0].replace("/", "."), key, count=1)
        if path != other:
            continue
        if leaf == wanted:
            return key
        endings = {"kernel": "weight", "gamma": "weight", "bias": "bias", "beta": "bias"}
        if "lstm" in path:
            endings = {ours: ending for ending, ours in weights.LSTM.items()}
        if leaf in endings and wanted in endings:
            return key.removesuffix(endings[leaf]) + endings[wanted]
    return ours


def _clean(content: Any) -> dict[str, np.ndarray]:
    """Returns the tensors by their names without `module.`."""
    if not isinstance(content, dict) or not content:
        raise ValueError("the checkpoint holds no dictionary of tensors")
    strange = [key for key, value in content.items() if not isinstance(value, np.ndarray)]
    if strange:
        raise ValueError(
            f"the checkpoint is no state dict: there is no tensor under {_some(strange)}; a state "
            f"dict may stand alone or under one of {', '.join(WRAPPERS)}"
        )
    state = {str(key).removeprefix("module."): value for key, value in content.items()}
    if len(state) < len(content):
        raise ValueError("the checkpoint has names with and without module. for the same tensor")
    return state


def _positions(buffers, system, width):
    """Returns the name and the values [P, D] of the buffer of positions; None without one."""
    if not buffers:
        return None
    (key, table), *others = buffers.items()
    if others or system not in _WITH_POSITIONS:
        raise ValueError(f"{', '.join(buffers)} must not be there: {system} cannot use it")
    if table.size and table.ndim == 3 and len(table) == 1:  # an axis for the batch
        table = table[0]
    if not table.size or table.ndim != 2 or table.shape[1] != width:
        raise ValueError(f"{key} must have the shape [positions, {width}]. Received: {table.shape}")
    if not np.isfinite(table).all():
        raise ValueError(f"{key} must be finite. Received: NaN or infinity")
    return key, table


def _foreign(family: str, state: Mapping[str, np.ndarray]) -> ValueError:
    return ValueError(
        f"this is no checkpoint of --from={family}, its tensors are {_some(sorted(state))}"
    )


def _some(names) -> str:
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return ", ".join(map(str, names[:3])) + more


class _Sizes:
    """The sizes of tensors by our names; None where there is no such tensor or axis."""

    def __init__(self, tensors: Mapping[str, np.ndarray]):
        self.tensors = tensors

    def __call__(self, name: str, axis: int) -> int | None:
        shape = self.tensors[name].shape if name in self.tensors else ()
        return shape[axis] if axis < len(shape) else None

    def layers(self, stack: str) -> int:
        """How many layers `stack`/0, `stack`/1, ... there are; where one is left out, it will be
        missing."""
        found = [re.match(rf"{stack}/(\d+)/", name) for name in self.tensors]
        return len({int(match[1]) for match in found if match})

    def width(self) -> int | None:
        """D."""
        return self("embed_tokens/embeddings", 1)

    def xlinear(self, block: str) -> dict[str, int | None]:
        """Heads and middle width, from the maps that all heads share."""
        depth, middle = self(f"{block}/joint/kernel", 0), self(f"{block}/joint/kernel", 1)
        heads = self.width() // depth if depth and self.width() else None
        return {"heads": heads, "middle_width": middle if middle != (depth or 0) // 2 else None}

    def inner(self, *layers: str) -> int | None:
        """The inner width of the first feed-forward block that there is, unless it is 4 D."""
        found = [self(f"{layer}/ff_layer/fc1/kernel", 1) for layer in layers]
        found = [size for size in found if size]
        return found[0] if found and found[0] != 4 * (self.width() or 0) else None


def _xlan(sizes):
    layers = {
        "encoder_layers": sizes.layers("encoder"),
        "decoder_layers": sizes.layers("attention") or None,
    }
    options = {"width": sizes.width(), **layers, **sizes.xlinear("attention/0")}
    return options, sizes("region_embed/kernel", 0)


def _xtransformer(sizes):
    options = {
        **_transformer(sizes)[0],
        **sizes.xlinear("decoder/0/word_attn"),
    }
    return options, sizes("region_embed/kernel", 0)


def _transformer(sizes):
    options = {
        "width": sizes.width(),
        "encoder_layers": sizes.layers("encoder"),
        "decoder_layers": sizes.layers("decoder") or None,
        "inner_width": sizes.inner("encoder/0", "decoder/0"),
    }
    return options, sizes("region_embed/kernel", 0)


def _attention_lstm(sizes):
    options = {"width": sizes.width(), "attention_width": sizes("attention/query/kernel", 1)}
    return options, sizes("region_embed/kernel", 0)


def _updown(sizes):
    embeds = "region_embed/kernel" in sizes.tensors
    options = _attention_lstm(sizes)[0] | {"embed_regions": embeds}
    return options, sizes("region_embed/kernel" if embeds else "attention/key/kernel", 0)


def _expansionnet(sizes):
    dynamic = "encoder/0/expansion/cond_embed/kernel" in sizes.tensors
    options = {
        "width": sizes.width(),
        "encoder_layers": sizes.layers("encoder") or None,
        "decoder_layers": sizes.layers("decoder") or None,
        "inner_width": sizes("encoder/0/ff/fc1/kernel", 1),
        "encoder_block": "dynamic" if dynamic else "static",
        "encoder_vectors": sizes("encoder/0/expansion/query_exp_vectors", 0),
        "decoder_vectors": sizes("decoder/0/expansion/query_exp_vectors", 0),
        "reduce": any(name.startswith(("encoder_proj", "decoder_proj")) for name in sizes.tensors),
        "positions": sizes("embed_positions/embeddings", 0),
    }
    return options, sizes("region_embed/kernel", 0)


_SYSTEMS = {
    "xlan": _xlan,
    "xtransformer": _xtransformer,
    "updown": _updown,
    "attention_lstm": _attention_lstm,
    "transformer": _transformer,
    "expansionnet": _expansionnet,
}
_WITH_POSITIONS = ("xtransformer", "transformer")  # their position codes are not learned
# What no shape tells, by table of names, where it is not the default of the system.
_UNTOLD: dict[str, dict[str, Any]] = {
    # The defaults of X-LAN's authors' code (docs/systems.md 4.1).
    "updown": {"embed_activation": "none", "word_dropout": 0.0, "region_dropout": 0.0},
    "xmodaler_xlan": {"embed_activation": "relu"},
}
