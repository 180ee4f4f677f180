"""Records the attention weights of a captioner while it runs eagerly.

Letters: N rows of words, T positions, S keys, H heads.

Layers call `record`. Outside of `recording`, `record` does nothing and adds nothing to a graph. A
recording holds only the weights that its thread computes.
"""

import contextlib
import dataclasses
import threading
from collections.abc import Callable, Iterator

import numpy as np
from keras import layers, ops


@dataclasses.dataclass(frozen=True, eq=False)
class Record:
    """The attention weights of one call of one layer.

    Attributes:
      layer: the layer that attended.
      weights: attention weights, float32 [N, H, T, S] before dropout, for N rows (captions), H
        heads, T queries and S keys. They add up to 1 over S. H is 1 for additive attention.
    """

    layer: layers.Layer
    weights: np.ndarray


class _Active(threading.local):
    """The records of this thread so far; None outside of `recording`."""

    records: list[Record] | None = None


_ACTIVE = _Active()


@contextlib.contextmanager
def recording() -> Iterator[list[Record]]:
    """Records attention weights inside a `with` block.

    Inside the block, call `encode` and `decode` of a captioner, without `tf.function`. A recurrent
    captioner calls its attention layers, and so adds records, for each word.

    Yields:
      A list, to which each call of an attention layer adds a `Record`.

    Example:
      >>> from tfcap.layers.attention import MultiHeadAttention
      >>> attention = MultiHeadAttention(width=8, heads=2)
      >>> with recording() as records:
      ...     _ = attention(ops.ones((4, 3, 8)), ops.ones((2, 5, 8)))
      >>> records[0].weights.shape
      (4, 2, 3, 5)
    """
    before = _ACTIVE.records
    records: list[Record] = []
    _ACTIVE.records = records
    try:
        yield records
    finally:
        _ACTIVE.records = before


def record(layer: layers.Layer, weights: Callable) -> None:
    """Adds a `Record` to the list of the enclosing `recording`, or does nothing if there is none.

    Args:
      layer: the attention layer.
      weights: function without arguments that returns the attention weights [N, H, T, S] of the
        layer: N rows (captions), H heads, T queries and S keys. It is called only inside of
        `recording`.

    Raises:
      ValueError: inside of `recording`, the layer runs in a graph instead of eagerly.
    """
    if _ACTIVE.records is None:
        return
    try:
        values = ops.convert_to_numpy(ops.cast(weights(), "float32"))
    except NotImplementedError:
        raise ValueError(
            f"The attention weights of {layer.name} can be recorded only in eager mode. Inside of "
            "`recording`, call `encode` and `decode` without tf.function."
        ) from None
    _ACTIVE.records.append(Record(layer, values))
