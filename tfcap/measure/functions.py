"""Reading the definitions of a graph's functions: names, order, and where results come from."""

import numpy as np
import tensorflow as tf


class Scope:
    """The tensors of one graph or function body by the names that its nodes call them."""

    def __init__(self, inputs: dict[str, tf.Tensor]):
        self.tensors = dict(inputs)  # an input of a function: name -> tensor
        self.outputs: dict[str, list[tf.Tensor]] = {}  # node -> tensors
        self.starts: dict[tuple[str, str], int] = {}  # node and output's name -> its first tensor

    def get(self, name: str) -> tf.Tensor:
        """`input`, `node`, `node:index` (a graph) or `node:output:index` (a function)."""
        if name in self.tensors:
            return self.tensors[name]
        node, *place = name.split(":")
        start = self.starts.get((node, place[0]), 0) if len(place) == 2 else 0
        return self.outputs[node][start + (int(place[-1]) if place else 0)]

    def put(self, node, tensors: list[tf.Tensor], op_def=None) -> None:
        """The outputs of a node; `op_def` tells their names where there are several."""
        self.outputs[node.name] = tensors
        start = 0
        for output in op_def.output_arg if op_def else ():
            self.starts[node.name, output.name] = start
            if output.number_attr:
                start += node.attr[output.number_attr].i
            elif output.type_list_attr:
                start += len(node.attr[output.type_list_attr].list.type)
            else:
                start += 1


class Origins:
    """Where the results of a function body come from."""

    def __init__(self, function):
        self.nodes = {node.name: node for node in function.node_def}

    def of(self, name: str) -> str:
        """The tensor that `name` is a copy of."""
        node = self.nodes.get(name.split(":")[0])
        return self.of(node.input[0]) if node is not None and node.op == "Identity" else name

    def step(self, result: str, argument: str) -> int | None:
        """n, where the result is the argument + n, a constant; None otherwise."""
        node = self.nodes.get(self.of(result).split(":")[0])
        if node is None or node.op not in ("Add", "AddV2") or self.of(node.input[0]) != argument:
            return None
        constant = self.nodes.get(self.of(node.input[1]).split(":")[0])
        if constant is None or constant.op != "Const":
            return None
        value = tf.make_ndarray(constant.attr["value"].tensor)
        whole = value.ndim == 0 and np.issubdtype(value.dtype, np.integer)
        return int(value) if whole and value > 0 else None


def in_order(nodes) -> list:
    """The nodes in their order, but each after what it reads.

    The gradient gives a loop, after it was written down, lists to keep its intermediates in.
    """
    known = {node.name: node for node in nodes}
    done, ordered = set(), []
    for first in nodes:
        waiting = [first]
        while waiting:
            node = waiting[-1]
            needed = [name.lstrip("^").split(":")[0] for name in node.input]
            needed = [name for name in needed if name in known and name not in done]
            if needed and node.name not in done:
                waiting += [known[name] for name in reversed(needed)]
                continue
            waiting.pop()
            if node.name not in done:
                done.add(node.name)
                ordered.append(node)
    return ordered
