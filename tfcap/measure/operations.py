"""Floating-point operations of a traced function."""

import collections
import math
from collections.abc import Sequence
from typing import NamedTuple

import tensorflow as tf

from tfcap.measure import graphs


class Operations(NamedTuple):
    """Of a function, once through."""

    flops: int  # 2 m n k of every product
    by_type: dict[str, int]  # the same by type of operation
    uncounted: list[str]  # loops of unknown length (counted once), products of unknown shape (not)


def flops(
    concrete: tf.types.experimental.ConcreteFunction,
    loops: int | None = None,
    shapes: Sequence[Sequence[int]] | None = None,
) -> Operations:
    """Floating-point operations of the matrix products, einsums and convolutions of a function.

    2 m n k for an [m, k] by [k, n] product; the backward pass counts where it is in the graph;
    everything else (elementwise, softmax, gathers) counts nothing. Of the branches of a conditional
    the costlier one counts. What the runtime would drop as unused is not counted.

    Args:
      concrete: the traced function.
      loops: see `graphs.flatten`.
      shapes: see `graphs.flatten`.
    """
    program = graphs.flatten(concrete, loops, shapes)
    uncounted = list(program.uncounted)
    counts = collections.Counter()
    branches: dict[tuple, collections.Counter] = {}
    for node in program.nodes:
        try:
            count = _product(node.op)
        except (TypeError, ValueError):  # arithmetic with None
            uncounted.append(f"{node.op.type} {node.op.name}")
            continue
        if count:
            branches.setdefault(node.branch, collections.Counter())[node.op.type] += (
                count * node.times
            )
    while branches:  # innermost first; of the branches of a conditional the greater goes outwards
        depth = max(map(len, branches))
        if not depth:
            counts = branches.pop(())
            break
        groups = collections.defaultdict(list)
        for path in [path for path in branches if len(path) == depth]:
            groups[path[:-1], path[-1][0]].append(branches.pop(path))
        for (outer, _), found in groups.items():
            branches.setdefault(outer, collections.Counter()).update(
                max(found, key=lambda counter: counter.total())
            )
    return Operations(counts.total(), dict(sorted(counts.items())), uncounted)


def _product(op: tf.Operation) -> int:
    """2 m n k; 0 of what is no product. Raises TypeError or ValueError where a shape is open."""
    if op.type in ("MatMul", "_FusedMatMul"):
        inner = op.inputs[0].shape[0 if op.get_attr("transpose_a") else 1]
        return 2 * graphs.size_of(op.outputs[0]) * inner
    if op.type in ("BatchMatMul", "BatchMatMulV2", "BatchMatMulV3"):
        inner = op.inputs[0].shape[-2 if op.get_attr("adj_x") else -1]
        return 2 * graphs.size_of(op.outputs[0]) * inner
    if op.type == "Einsum" and len(op.inputs) == 2:
        return 2 * _einsum(op)
    if op.type == "Conv2D":
        return 2 * graphs.size_of(op.outputs[0]) * math.prod(op.inputs[1].shape[:3])
    if op.type == "Conv2DBackpropInput":
        return 2 * graphs.size_of(op.inputs[2]) * math.prod(op.inputs[1].shape[:3])
    if op.type == "Conv2DBackpropFilter":
        return 2 * graphs.size_of(op.inputs[2]) * math.prod(op.outputs[0].shape[:3])
    return 0


def _einsum(op):
    """The product of the sizes of all labels, of both inputs."""
    equation = op.get_attr("equation").decode().replace(" ", "").split("->")[0]
    sizes = {}
    for labels, tensor in zip(equation.split(","), op.inputs, strict=True):
        before, dots, after = labels.partition("...")
        shape = tensor.shape.as_list()
        rest = len(shape) - len(after)
        sizes.update(zip(before, shape, strict=False))
        sizes.update(zip(after, shape[rest:], strict=True))
        if dots:  # broadcast axes, counted from their end
            middle = shape[len(before) : rest]
            for place, size in enumerate(reversed(middle)):
                sizes[f".{place}"] = max(size, sizes.get(f".{place}", 1))
    return math.prod(sizes.values())
