"""The memory of a traced training step, estimated before it runs."""

import collections
import math
from collections.abc import Sequence
from typing import NamedTuple

import keras
import tensorflow as tf

from tfcap.measure import graphs

PROCESS = int(0.75 * 2**30)  # of a process with TensorFlow, Keras and the Model Garden, no step run
# The same memory under another name or shape.
VIEWS = {
    "Identity",
    "IdentityN",
    "Reshape",
    "ExpandDims",
    "Squeeze",
    "StopGradient",
    "PreventGradient",
    "EnsureShape",
    "Bitcast",
    "CheckNumerics",
    "TensorListFromTensor",
}
# Elementwise: these write over an input of their size that nobody else reads.
IN_PLACE = {
    *("Add", "AddV2", "AddN", "Sub", "Mul", "MulNoNan", "RealDiv", "DivNoNan", "SquaredDifference"),
    *("Maximum", "Minimum", "Neg", "Abs", "Exp", "Expm1", "Log", "Log1p", "Sqrt", "Rsqrt"),
    *("Square", "Sigmoid", "Tanh", "Relu", "Elu", "Softmax", "LogSoftmax", "BiasAdd", "Select"),
    *("SigmoidGrad", "TanhGrad", "ReluGrad", "EluGrad", "SqrtGrad", "RsqrtGrad", "Reciprocal"),
    *("LogicalAnd", "LogicalOr", "LogicalNot", "Sin", "Cos", "Erf", "Softplus", "SoftplusGrad"),
}
# What holds no tensor of its own: variables and what others hand in.
OUTSIDE = {"VarHandleOp", "ReadVariableOp", "Placeholder", "Const"}


class Memory(NamedTuple):
    """Bytes. `total` is what the process needs at the step's fullest moment, without TensorFlow."""

    weights: int
    gradients: int  # of the trainable weights
    slots: int  # of the optimizer, its other variables included
    activations: int  # what else is alive at the fullest moment, temporaries and the batch too
    total: int


def memory_of_step(
    concrete: tf.types.experimental.ConcreteFunction,
    model: keras.Model,
    optimizer: keras.optimizers.Optimizer,
    loops: int | None = None,
    shapes: Sequence[Sequence[int]] | None = None,
) -> Memory:
    """What a training step needs, estimated from its graph.

    Weights, gradients and slots are exact. The rest follows every tensor of the step from the
    operation that makes it to the last that reads it. Operations run in the order in which the
    runtime meets them, each as soon as it can (so an optimizer works on all weights at once); views
    share their memory; elementwise operations write over an input that nobody reads later; what a
    loop keeps of each turn for the backward pass counts once for each turn. The total is the
    greatest sum on that way.

    The memory that a process took on two cores (36 regions, 5 captions of 17 words, 9,490 words,
    float32, the sizes of the papers), in GiB, beside the total and `PROCESS`:

    | | 2 images | 10 images |
    |---|---|---|
    | X-LAN | 3.00, estimated 2.98 | 3.85, 2.99 |
    | X-Transformer | 5.34, 4.85 | 8.6, 7.25 |
    | ExpansionNet | 2.64, 2.59 | 3.44, 2.69 |
    | m-RNN | 1.03, 0.97 | 1.21, 1.02 |

    It falls short, by at most 22 % there: what the allocator holds between tensors is not in it.

    Args:
      concrete: the step, traced with static shapes.
      model: its weights.
      optimizer: its slots.
      loops: see `graphs.flatten`.
      shapes: see `graphs.flatten`.

    Raises:
      ValueError: if the shape of a tensor stays open.
    """
    weights = sum(_bytes(v.shape, v.dtype) for v in model.variables)
    gradients = sum(_bytes(v.shape, v.dtype) for v in model.trainable_variables)
    slots = sum(_bytes(v.shape, v.dtype) for v in optimizer.variables)
    peak = peak_bytes(graphs.flatten(concrete, loops, shapes))
    total = weights + slots + max(peak, gradients)
    return Memory(weights, gradients, slots, total - weights - slots - gradients, total)


def _bytes(shape, dtype) -> int:
    return math.prod(shape) * tf.as_dtype(dtype).size


def peak_bytes(program: graphs.Program) -> int:
    """The most that tensors of a program take at once, its variables not counted."""
    program = _by_level(program)
    buffers = _Buffers(program)
    alive = peak = sum(graphs.size_of(t) * t.dtype.size for t in program.inputs if _plain(t))
    ending = collections.defaultdict(list)
    for buffer, last in buffers.last.items():
        ending[last].append(buffer)
    for index in range(len(program.nodes)):
        for buffer in buffers.made.get(index, ()):
            alive += buffers.size[buffer]
        peak = max(peak, alive)
        for buffer in ending[index]:
            alive -= buffers.size[buffer]
    return peak


def _by_level(program: graphs.Program) -> graphs.Program:
    """The nodes in the order in which the runtime meets them: each as soon as it can run.

    So an optimizer works on all weights at once, and not on one after the other. A loop is one
    piece, which keeps its own order.
    """
    levels: list[int] = []  # of each node; of a loop, the greatest
    made: dict[str, tuple[int, int]] = {}  # tensor -> level and loop
    touched: dict[str, int] = {}  # variable -> level of what last wrote it
    inside = collections.defaultdict(int)
    for node in program.nodes:
        level = 0
        for tensor in node.op.inputs:
            before, loop = made.get(tensor.name, (-1, -1))
            if loop >= 0 and loop != node.loop:
                before = inside[loop]
            level = max(level, before + 1)
        for tensor in node.op.inputs:
            if tensor.dtype == tf.resource:
                level = max(level, touched.get(tensor.name, 0))
                if node.op.type != "ReadVariableOp":
                    touched[tensor.name] = level + 1
        if node.loop >= 0:
            level = inside[node.loop] = max(level, inside[node.loop])
        levels.append(level)
        made.update({t.name: (level, node.loop) for t in node.op.outputs})
    leveled = zip(levels, program.nodes, strict=True)
    keys = [(inside[n.loop] if n.loop >= 0 else level, n.loop) for level, n in leveled]
    nodes = [program.nodes[i] for i in sorted(range(len(keys)), key=keys.__getitem__)]
    ends = [0] * len(program.ends)
    for index, node in enumerate(nodes):
        if node.loop >= 0:
            ends[node.loop] = index + 1
    return program._replace(nodes=nodes, ends=ends)


def _plain(tensor):
    return tensor.dtype not in (tf.resource, tf.variant, tf.string)


def _held(tensor):
    """Bytes of a tensor; 0 for lists of axes, the only tensors whose sizes may stay open."""
    if tensor.shape.rank == 1 and tensor.dtype.is_integer and tensor.shape[0] is None:
        return 0
    return graphs.size_of(tensor) * tensor.dtype.size


class _Buffers:
    """The pieces of memory of a program.

    Attributes:
      size: bytes of each.
      made: the pieces that a node makes, by the node's index.
      last: the index of the last node that reads it.
    """

    def __init__(self, program: graphs.Program):
        self.program = program
        self.size: dict[str, int] = {}
        self.made: dict[int, list[str]] = collections.defaultdict(list)
        self.last: dict[str, int] = {}
        self._of: dict[str, str] = {}  # tensor -> the piece that it lies in
        self._joined: dict[str, str] = {}  # piece -> the one that it was written over
        self._place()
        self._read()
        self._keep()
        self._write_over()

    def _place(self):
        """Every tensor in a piece of its own, except for views."""
        for index, node in enumerate(self.program.nodes):
            for place, tensor in enumerate(node.op.outputs):
                start = self.program.starts.get(tensor.name)
                if start is None and place == 0 and node.op.type in VIEWS:
                    start = node.op.inputs[0].name
                if start is not None:
                    self._of[tensor.name] = self._of.get(start, start)
                    continue
                self._of[tensor.name] = tensor.name
                if node.op.type not in OUTSIDE and _plain(tensor):
                    taken = ("TensorListPopBack", "TensorListGetItem")  # it lies in the list
                    size = 0 if node.op.type in taken else _held(tensor)
                    self.size[tensor.name] = size
                    self.made[index].append(tensor.name)
                    self.last[tensor.name] = index

    def _read(self):
        """The last reader; what a loop reads and does not change it reads until its last turn."""
        nodes = self.program.nodes
        loops = {t.name: node.loop for node in nodes for t in node.op.outputs}
        for index, node in enumerate(nodes):
            for tensor in node.op.inputs:
                last = index
                if node.loop >= 0 and loops.get(tensor.name, -1) != node.loop:
                    last = self.program.ends[node.loop] - 1
                self._alive(tensor.name, last)
        for tensor in self.program.outputs:
            self._alive(tensor.name, len(nodes) - 1)

    def _alive(self, tensor: str, until: int) -> None:
        buffer = self._of.get(tensor, tensor)
        if buffer in self.last:
            self.last[buffer] = max(self.last[buffer], until)

    def _keep(self):
        """What lists hold: an element for each turn, until the last reader of the list."""
        nodes, ends, lists = self.program.nodes, self.program.ends, self.program.lists
        until: dict[str, int] = {}
        times = {t.name: node.times for node in nodes for t in node.op.outputs}
        loops = {b: nodes[index].loop for index, made in self.made.items() for b in made}
        for index, node in enumerate(nodes):
            last = ends[node.loop] - 1 if node.loop >= 0 else index
            until.update({lists[t.name]: last for t in node.op.inputs if t.name in lists})
        kept: dict[str, str] = {}
        for index, node in enumerate(nodes):
            if node.op.type not in ("TensorListPushBack", "TensorListSetItem"):
                continue
            buffer, root = self._of[node.op.inputs[-1].name], lists[node.op.inputs[0].name]
            if buffer not in self.size:
                continue
            self.last[buffer] = max(self.last[buffer], until[root])
            turns = node.times // times.get(root, 1)
            if turns > 1 and loops[buffer] == node.loop:
                name = kept.setdefault(buffer, f"{buffer} of each turn")
                if name not in self.size:
                    self.made[index].append(name)
                self.size[name] = (turns - 1) * self.size[buffer]
                self.last[name] = max(self.last.get(name, 0), until[root])

    def _write_over(self):
        """Elementwise operations in the place of an input that they are the last to read."""
        for index, node in enumerate(self.program.nodes):
            if node.op.type not in IN_PLACE or node.op.outputs[0].name not in self.size:
                continue
            output = node.op.outputs[0].name
            for tensor in node.op.inputs:
                buffer = self._piece(self._of.get(tensor.name, tensor.name))
                free = self.last.get(buffer) == index and self.size[buffer] == self.size[output]
                if free and self.size[output]:
                    self.last[buffer] = self.last.pop(output)
                    self.made[index].remove(output)
                    self._joined[output] = buffer
                    break

    def _piece(self, buffer: str) -> str:
        while buffer in self._joined:
            buffer = self._joined[buffer]
        return buffer
