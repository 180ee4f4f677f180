"""Helpers of `graphs.flatten`: names, order and origins of tensors, lists, and open shapes."""

import numpy as np
import tensorflow as tf


class Scope:
    """The tensors of one graph or function body, by the names that its nodes use for them."""

    def __init__(self, inputs: dict[str, tf.Tensor]):
        self.tensors = dict(inputs)  # input of a function -> tensor
        self.outputs: dict[str, list[tf.Tensor]] = {}  # node -> tensors
        self.starts: dict[
            tuple[str, str], int
        ] = {}  # (node, name of an output) -> index of its first tensor

    def get(self, name: str) -> tf.Tensor:
        """Returns the tensor named `input`, `node`, `node:index` or `node:output:index`.

        Graphs use `node:index`; bodies of functions use `node:output:index`.
        """
        if name in self.tensors:
            return self.tensors[name]
        node, *place = name.split(":")
        start = self.starts.get((node, place[0]), 0) if len(place) == 2 else 0
        return self.outputs[node][start + (int(place[-1]) if place else 0)]

    def put(self, node, tensors: list[tf.Tensor], op_def=None) -> None:
        """Adds the outputs of a node; `op_def` gives their names if there are several."""
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
    """Recognises tensors of a function body that copy another one, or add a constant to it.

    Args:
      function: the `FunctionDef` of the body.
    """

    def __init__(self, function):
        self.nodes = {node.name: node for node in function.node_def}

    def of(self, name: str) -> str:
        """Returns the name of the tensor that `name` is a copy of."""
        node = self.nodes.get(name.split(":")[0])
        return self.of(node.input[0]) if node is not None and node.op == "Identity" else name

    def step(self, result: str, argument: str) -> int | None:
        """Returns n if `result` is `argument` + n with a constant n > 0; otherwise None."""
        node = self.nodes.get(self.of(result).split(":")[0])
        if node is None or node.op not in ("Add", "AddV2") or self.of(node.input[0]) != argument:
            return None
        constant = self.nodes.get(self.of(node.input[1]).split(":")[0])
        if constant is None or constant.op != "Const":
            return None
        value = tf.make_ndarray(constant.attr["value"].tensor)
        whole = value.ndim == 0 and np.issubdtype(value.dtype, np.integer)
        return int(value) if whole and value > 0 else None


class TensorLists:
    """Follows the TensorLists of a graph, which shape inference knows little about.

    Attributes:
      origins: the name of a tensor that is a list -> the name of the tensor in which it began.
    """

    def __init__(self):
        self.origins: dict[str, str] = {}
        self.known: dict[str, tuple[int | None, tf.TensorShape]] = {}  # length, shape of an element
        self._pushed: dict[str, tf.Tensor] = {}  # origin -> the tensor that a loop adds to the list

    def follow(self, op: tf.Operation) -> None:
        """Records the lists among the results of `op`, and completes shapes of what it reads."""
        if op.type == "EmptyTensorList":
            self._begin(op.outputs[0], tf.TensorShape(None))
        elif op.type == "TensorListReserve":
            size = op.inputs[1]
            if size.op.type == "TensorListLength":  # the list of a gradient is as long as its list
                length, _ = self.known.get(size.op.inputs[0].name, (None, None))
            else:
                length = scalar_value(size)
            self._begin(op.outputs[0], tf.TensorShape(None), length)
        elif op.type == "TensorListFromTensor":
            self._begin(op.outputs[0], op.inputs[0].shape[1:], op.inputs[0].shape[0])
        elif op.type == "IdentityN":
            for old, new in zip(op.inputs, op.outputs, strict=True):
                self.copy(old, new)
        elif op.inputs and op.inputs[0].name in self.origins:
            given, outputs = op.inputs[0], op.outputs
            length, element = self.known[given.name]
            if op.type in ("TensorListPushBack", "TensorListSetItem"):
                self.copy(given, outputs[0])
                self.known[outputs[0].name] = (length, op.inputs[-1].shape)
                self._pushed[self.origins[given.name]] = op.inputs[-1]
            elif op.type == "TensorListPopBack":
                self.copy(given, outputs[0])
                refine_shapes(outputs[1:], [element])
            elif op.type == "TensorListGetItem":
                refine_shapes(outputs, [element])
            elif op.type == "TensorListStack":
                refine_shapes(outputs, [tf.TensorShape([length]).concatenate(element)])
            elif op.type == "AddN":  # a sum of gradients: lists that are still empty, and others
                lists = (tensor for tensor in op.inputs if tensor.name in self.known)
                full = (tensor for tensor in lists if self.known[tensor.name][1].rank is not None)
                self.copy(next(full, given), outputs[0])
            elif op.type in ("Identity", "ZerosLike"):
                self.copy(given, outputs[0])

    def source(self, tensor: tf.Tensor) -> tf.Tensor:
        """Returns the tensor of the forward pass that a gradient takes from a list, or `tensor`."""
        if tensor.op.type != "TensorListPopBack":
            return tensor
        return self._pushed.get(self.origins.get(tensor.op.inputs[0].name, ""), tensor)

    def _begin(self, tensor, element, length=None):
        self.origins[tensor.name] = tensor.name
        self.known[tensor.name] = (length, element)

    def copy(self, old: tf.Tensor, new: tf.Tensor) -> None:
        """Records that `new` is the same list as `old`, if `old` is a list."""
        if old.name in self.origins:
            self.origins[new.name] = self.origins[old.name]
            self.known[new.name] = self.known[old.name]


def in_order(nodes) -> list:
    """Returns the nodes sorted so that each one comes after the nodes that it reads.

    Otherwise they keep their order. The order of a graph may differ: the gradient of a loop adds
    lists for intermediate results to the inputs of the loop after the loop was added to the graph.
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


def complete_slice(op, lists: TensorLists) -> None:
    """Completes the shape of a slice.

    A slice from i to i + n has n elements. One from the beginning with an unknown end is assumed to
    take all elements.
    """
    given, result = op.inputs[0].shape, op.outputs[0].shape
    others = any(op.get_attr(f"{kind}_mask") for kind in ("ellipsis", "new_axis", "shrink_axis"))
    if given.rank is None or result.rank is None or others:
        return  # the entries of the slice are not those of the axes
    begin, *bounds = (_entries(lists.source(bound)) for bound in op.inputs[1:4])
    masked, sizes = op.get_attr("begin_mask"), result.as_list()
    for axis, first in enumerate(begin):
        if sizes[axis] is None:
            last, stride = (bound[axis] if bound else None for bound in bounds)
            whole = masked >> axis & 1 or (isinstance(first, int) and first == 0)
            sizes[axis] = given[axis] if whole else _distance(first, last, stride)
    op.outputs[0].set_shape(sizes)


def _entries(vector: tf.Tensor) -> list[int | tf.Tensor]:
    """Returns the elements of a vector of integers: numbers, or tensors where they are not known.

    The list is empty if the vector is neither a constant nor stacked.
    """
    values = tf.get_static_value(vector)
    if values is not None:
        return [int(value) for value in values]
    if vector.op.type != "Pack":
        return []
    known = [tf.get_static_value(one) for one in vector.op.inputs]
    return [
        one if value is None else int(value)
        for one, value in zip(vector.op.inputs, known, strict=True)
    ]


def _distance(
    first: int | tf.Tensor, last: int | tf.Tensor | None, stride: int | tf.Tensor | None
) -> int | None:
    """Returns n if `last` is the tensor `first` + n with a constant n, and the stride is 1."""
    if not isinstance(first, tf.Tensor) or not isinstance(last, tf.Tensor) or stride != 1:
        return None
    if last.op.type not in ("Add", "AddV2") or last.op.inputs[0].name != first.name:
        return None
    number = tf.get_static_value(last.op.inputs[1])
    return None if number is None or number < 0 else int(number)


def scalar_value(tensor: tf.Tensor) -> int | None:
    """Returns the value of an integer scalar if TensorFlow can infer it; otherwise None."""
    if not tensor.dtype.is_integer or tensor.shape.rank != 0:
        return None
    value = tf.get_static_value(tensor)
    if value is not None:
        return int(value)
    try:  # shape inference finds more than get_static_value: it infers the size of a vector
        return tf.fill(tf.reshape(tensor, [1]), 0).shape[0]
    except ValueError:  # the value is negative
        return None


def refine_shapes(tensors, shapes) -> None:
    """Merges `shapes` into the shapes of `tensors` wherever the two do not contradict."""
    for tensor, shape in zip(tensors, shapes, strict=False):
        known = tensor.shape
        if known.is_fully_defined():
            continue
        shape = tf.TensorShape(shape)
        if known.is_compatible_with(shape):
            tensor.set_shape(known.merge_with(shape))
