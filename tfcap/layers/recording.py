"""What the attention of a captioner looked at, taken down while it computes eagerly.

Letters: B images, N rows of words, T positions, S what is read, H heads, d channels of a head,
E expansion vectors.

Layers call `record`, which does nothing unless it is inside of `recording`: it adds nothing to a
graph, and what other threads compute meanwhile is not taken down.
"""

import contextlib
import dataclasses
import threading
from collections.abc import Callable, Iterator

import numpy as np
from keras import layers, ops


@dataclasses.dataclass(frozen=True, eq=False)
class Record:
    """The weights of one call of one layer, float32, as they are without dropout.

    What is weighed is on the last axis:

    * `attention` [N, H, T, S]: a distribution over S, with one head where a layer has none.
    * `channel` [N, H, T, d]: gates in 0..1, a number for each channel.
    * `forward_a`, `forward_b` of expansions: parts of a sum over what is read, [B, E, S] of the
      static and [N, T, E, S] of the dynamic one. All are 0 where the class is empty.
    * `backward_a`, `backward_b`: parts of a sum over the expanded vectors, [B, S, E] of the static
      and [N, S, T, E] of the dynamic one, where the sum is over the vectors of all positions.

    Attributes:
      layer: that computed them.
      kind: see above.
      over: what the last axis counts: `regions`, `words`, `channels` or `vectors`.
      weights: see above.
    """

    layer: layers.Layer
    kind: str
    over: str
    weights: np.ndarray


class _Active(threading.local):
    """What this thread takes down; None outside of `recording`."""

    records: list[Record] | None = None


_ACTIVE = _Active()


@contextlib.contextmanager
def recording() -> Iterator[list[Record]]:
    """Yields the list of everything that layers record inside, in the order of their calls.

    Call `encode` and `decode` inside it eagerly: a recurrence then runs step by step, and each of
    its steps makes a record with T = 1.
    """
    before, _ACTIVE.records = _ACTIVE.records, []
    try:
        yield _ACTIVE.records
    finally:
        _ACTIVE.records = before


def record(layer: layers.Layer, kind: str, over: str, weights: Callable) -> None:
    """Takes down `weights()`, which is called inside of `recording` only.

    Raises:
      ValueError: if there are no numbers, since a graph is being built.
    """
    if _ACTIVE.records is None:
        return
    try:
        found = ops.convert_to_numpy(ops.cast(weights(), "float32"))
    except NotImplementedError:
        raise ValueError(
            f"the weights of {layer.name} can be recorded eagerly only: call encode and decode "
            "inside of recording() without tf.function"
        ) from None
    _ACTIVE.records.append(Record(layer, kind, over, found))
