"""Counts the floating-point operations of a traced function."""

import collections
import math
from collections.abc import Sequence
from typing import NamedTuple

import tensorflow as tf

from tfcap.measure import graphs


class Operations(NamedTuple):
    """Operations of one call of a function."""

    flops: int  # floating-point operations of all products, 2 m n k each
    by_type: dict[str, int]  # the same by type of TensorFlow operation
    uncounted: list[str]  # loops of unknown length, counted once, and products of unknown shape


def flops(
    concrete: tf.types.experimental.ConcreteFunction,
    loops: int | None = None,
    shapes: Sequence[Sequence[int]] | None = None,
) -> Operations:
    """Counts the operations of the matrix products, einsums and convolutions of a function.

    The product of an [m, k] and a [k, n] matrix counts 2 m n k. The backward pass counts if it is
    in the graph. All other operations (elementwise, softmax, gathers) count 0. Of the branches of a
    conditional only the most expensive one counts. Operations whose results nothing uses do not
    count, because the runtime drops them.

    Args:
      concrete: the traced function.
      loops: see `graphs.flatten`.
      shapes: see `graphs.flatten`.
    """
    program = graphs.flatten(concrete, loops, shapes)
    uncounted = list(program.uncounted)
    counts: collections.Counter[str] = collections.Counter()
    branches: dict[tuple, collections.Counter] = {}
    for node in program.nodes:
        try:
            count = _product(node.op)
        except (TypeError, ValueError):  # a size is None
            uncounted.append(f"{node.op.type} {node.op.name}")
            continue
        if count:
            branches.setdefault(node.branch, collections.Counter())[node.op.type] += (
                count * node.times
            )
    while branches:  # from the innermost: the largest branch of a conditional joins the outer one
        depth = max(map(len, branches))
        if not depth:
            counts = branches.pop(())
            break
        groups: dict[tuple, list[collections.Counter]] = collections.defaultdict(list)
        for path in [path for path in branches if len(path) == depth]:
            groups[path[:-1], path[-1][0]].append(branches.pop(path))
        for (outer, _), counters in groups.items():
            longest = max(counters, key=lambda counter: counter.total())
            branches.setdefault(outer, collections.Counter()).update(longest)
    return Operations(counts.total(), dict(sorted(counts.items())), uncounted)


def _product(op: tf.Operation) -> int:
    """Counts one operation; 0 if it is no product. An open shape raises TypeError or ValueError."""
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
    """Returns the product of the sizes of all labels of both inputs."""
    equation = op.get_attr("equation").decode().replace(" ", "").split("->")[0]
    sizes: dict[str, int] = {}
    for labels, tensor in zip(equation.split(","), op.inputs, strict=True):
        before, dots, after = labels.partition("...")
        shape = tensor.shape.as_list()
        rest = len(shape) - len(after)
        sizes.update(zip(before, shape, strict=False))
        sizes.update(zip(after, shape[rest:], strict=True))
        if dots:  # broadcast axes are aligned at their last one
            middle = shape[len(before) : rest]
            for place, size in enumerate(reversed(middle)):
                sizes[f".{place}"] = max(size, sizes.get(f".{place}", 1))
    return math.prod(sizes.values())
