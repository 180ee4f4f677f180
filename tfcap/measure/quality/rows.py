"""The systems that the table compares, and what the papers claim about them."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from tfcap import configs


@dataclasses.dataclass(frozen=True)
class Row:
    """A system of the table.

    Attributes:
      key: its name in flags and files.
      name: its name in the table.
      experiment: the registered experiment.
      options: options of the model that differ from the experiment.
      widths: options of the model that are multiples of the common width.
      self_critical: whether its best runs are also trained by self-critical training.
    """

    key: str
    name: str
    experiment: str
    options: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    widths: Mapping[str, float] = dataclasses.field(default_factory=lambda: {"width": 1})
    self_critical: bool = False


_ATTENTION = {"width": 1, "attention_width": 0.5}
_EXPANSION = {"width": 1, "inner_width": 2}
_MRNN = {"embed_width": 1, "width": 1, "multimodal_width": 2}
_BASE = {"encoder_block": "attention", "decoder_block": "attention", "reduce": False}
_VECTORS = {"encoder_vectors": 64, "decoder_vectors": 16}

# The rows of X-LAN are rows 1, 2, 3 and 7 of table 3 of its paper.
_ROWS = (
    Row("show_tell", "Show and Tell", "show_tell"),
    Row("attention_lstm", "attention LSTM", "attention_lstm", widths=_ATTENTION),
    Row("updown", "Up-Down", "updown", widths=_ATTENTION, self_critical=True),
    Row("aoanet", "AoANet", "aoanet", self_critical=True),
    Row(
        "xlan_row1",
        "X-LAN row 1 (conventional attention, no encoder)",
        "xlan",
        {"encoder_layers": 0, "attention": "additive"},
        _ATTENTION,
    ),
    Row(
        "xlan_row2",
        "X-LAN row 2 (X-Linear attention, no encoder)",
        "xlan",
        {"encoder_layers": 0, "activation": "relu"},
    ),
    Row(
        "xlan_row3",
        "X-LAN row 3 (one X-Linear layer)",
        "xlan",
        {"encoder_layers": 1, "activation": "relu"},
    ),
    Row("xlan", "X-LAN", "xlan", {"encoder_layers": 4}, self_critical=True),
    Row("transformer", "Transformer", "transformer", self_critical=True),
    Row("xtransformer", "X-Transformer", "xtransformer", self_critical=True),
    Row("expansionnet_base", "ExpansionNet's Base", "expansionnet", _BASE, _EXPANSION),
    Row("expansionnet", "ExpansionNet", "expansionnet", _VECTORS, _EXPANSION, self_critical=True),
    Row("mrnn", "m-RNN", "mrnn", widths=_MRNN),
    Row(
        "mrnn_recurrent",
        "m-RNN, image in the recurrent layer",
        "mrnn",
        {"variant": "vis_in_rnn"},
        _MRNN,
    ),
    Row("mrnn_no_image", "m-RNN, no image", "mrnn", {"variant": "rnn_base"}, _MRNN),
    Row("mrnn_shared", "m-RNN with shared weights", "mrnn_shared", widths=_MRNN),
)
ROWS = {row.key: row for row in _ROWS if row.experiment in configs.SYSTEMS}
KEYS = tuple(ROWS)

# What the papers claim: the first is above the second.
CLAIMS = (
    ("xlan", "updown"),
    ("xlan", "attention_lstm"),
    ("updown", "attention_lstm"),
    ("xlan_row2", "xlan_row1"),
    ("xlan_row3", "xlan_row2"),
    ("xlan", "xlan_row3"),
    ("xtransformer", "transformer"),
    ("expansionnet", "expansionnet_base"),
    ("expansionnet", "transformer"),
    ("mrnn", "mrnn_recurrent"),
    ("aoanet", "updown"),
    ("xlan", "aoanet"),
)


def claims(keys: Sequence[str]) -> list[tuple[str, str]]:
    """Returns the claims about the rows `keys`: pairs, the row that should score higher first."""
    return [pair for pair in CLAIMS if set(pair) <= set(keys)]
