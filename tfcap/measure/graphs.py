"""A traced function as one flat list of operations, with every shape and every trip count known.

A `tf.function` hides most of its work in functions of its graph: bodies of loops, branches, calls.
Inside them shapes are often open, where the caller's are known. `flatten` copies everything into
one scratch graph, the operations of a body in place of its call and applied to the caller's
tensors, so that TensorFlow's own shape inference sees through; nothing is executed.
"""

import inspect
from collections.abc import Sequence
from typing import Any, NamedTuple

import tensorflow as tf

from tfcap.measure.functions import Origins, Scope, in_order

CALLS = ("PartitionedCall", "StatefulPartitionedCall", "RemoteCall")
LOOPS = ("While", "StatelessWhile")
BRANCHES = ("If", "StatelessIf", "Case", "StatelessCase")
CREATE = inspect.unwrap(tf.Graph.create_op)  # its decorator takes half of the time
FOLDED = 1000  # captured integers of at most this many elements are folded into shapes


class Node(NamedTuple):
    """An operation of the scratch graph."""

    op: tf.Operation
    times: int  # how often it runs
    loop: int  # the outermost loop that holds it, an index of `Program.ends`; -1 for none
    branch: tuple[tuple[int, int], ...]  # (conditional, branch) of each conditional around it


class Program(NamedTuple):
    """What `flatten` finds."""

    nodes: list[Node]  # in the order of tracing, the dead ones left out
    ends: list[int]  # for each outermost loop, the index of the node after its last
    lists: dict[str, str]  # the name of a tensor that is a TensorList -> of the one it began as
    starts: dict[str, str]  # the name of what changes from turn to turn -> of its first value
    uncounted: list[str]  # loops of unknown length that were taken to run once
    inputs: list[tf.Tensor]  # arguments and captured tensors
    outputs: list[tf.Tensor]


def flatten(
    concrete: tf.types.experimental.ConcreteFunction,
    loops: int | None = None,
    shapes: Sequence[Sequence[int]] | None = None,
) -> Program:
    """The operations of a concrete function, those of its loops, branches and calls included.

    A loop runs as often as its condition allows: the least limit that a constant sets to a
    counter. One that may end earlier (every sentence has ended) counts in full, and so does a slice
    whose end depends on the data.

    Args:
      concrete: the traced function.
      loops: how often a loop without such a limit runs; without it, once, and `uncounted` names it.
      shapes: of the arguments, in flat order, where the trace left them open.
    """
    flat = _Flattening(concrete, loops, shapes)
    return flat.program()


class _Flattening:
    """The state of `flatten`."""

    def __init__(self, concrete, loops, shapes):
        definition = concrete.graph.as_graph_def(add_shapes=True)
        self.library = {f.signature.name: f for f in definition.library.function}
        self.loops = loops
        self.graph = tf.Graph()
        self.nodes: list[Node] = []
        self.ends: list[int] = []
        self.carried: dict[tf.Operation, list[tf.Tensor]] = {}  # beside its inputs
        self.lists: dict[str, str] = {}
        self.held: dict[str, tuple[int | None, tf.TensorShape]] = {}  # length and element's shape
        self.starts: dict[str, str] = {}
        self.uncounted: list[str] = []
        self.inputs: list[tf.Tensor] = []
        self.times, self.loop, self.branch, self.conditionals = 1, -1, (), 0
        with self.graph.as_default():
            scope = Scope(self._arguments(concrete, shapes))
            self._run(definition.node, scope)
            self.outputs = [scope.get(tensor.name) for tensor in concrete.graph.outputs]

    def program(self) -> Program:
        live = self._live()
        kept, moved = [], []
        for node in self.nodes:
            moved.append(len(kept))
            if node.op in live:
                kept.append(node)
        moved.append(len(kept))
        ends = [moved[end] for end in self.ends]
        return Program(
            kept, ends, self.lists, self.starts, self.uncounted, self.inputs, self.outputs
        )

    def _live(self) -> set[tf.Operation]:
        """What the outputs and the operations with effects need: the runtime drops the rest."""
        waiting = [tensor.op for tensor in self.outputs]
        waiting += [n.op for n in self.nodes if n.op.op_def.is_stateful]
        live = set()
        while waiting:
            op = waiting.pop()
            if op not in live:
                live.add(op)
                waiting += [t.op for t in (*op.inputs, *self.carried.get(op, ()))]
        return live

    def _arguments(self, concrete, shapes):
        """A stand-in for each input of the traced graph, by its name there."""
        outside = {inside.name: outer for outer, inside in concrete.graph.captures}
        handles = {id(v.handle): v for v in concrete.graph.variables}
        given = iter(shapes or ())
        arguments = {}
        for tensor in concrete.graph.inputs:
            source, shape = outside.get(tensor.name), tensor.shape
            if source is None and shapes and tensor.dtype != tf.resource:
                shape = tf.TensorShape(next(given)).merge_with(shape)
            if id(source) in handles:
                variable = handles[id(source)]
                made = tf.raw_ops.VarHandleOp(dtype=variable.dtype, shape=variable.shape)
            elif _small(source):
                made = tf.constant(source.numpy())
            else:
                made = tf.compat.v1.placeholder(tensor.dtype, shape)
                self.inputs.append(made)
            arguments[tensor.name] = arguments[tensor.op.name] = made
        return arguments

    def _run(self, nodes, scope):
        """Copies the nodes of a graph or of a function body."""
        for node in in_order(nodes):
            if node.name in scope.tensors:  # an input of the outer graph
                continue
            inputs = [scope.get(name) for name in node.input if not name.startswith("^")]
            if node.op in CALLS or node.op in self.library:
                name = node.attr["f"].func.name if node.op in CALLS else node.op
                scope.put(node, self._call(name, inputs))
            elif node.op in LOOPS:
                scope.put(node, self._while(node, inputs))
            elif node.op in BRANCHES:
                scope.put(node, self._branches(node, inputs))
            else:
                op = self._copy(node, inputs)
                scope.put(node, list(op.outputs), op.op_def)
            _refine(scope.outputs[node.name], node.attr["_output_shapes"].list.shape)

    def _copy(self, node, inputs):
        attributes = {k: v for k, v in node.attr.items() if not k.startswith("_")}
        op = self.graph.create_op(node.op, inputs, [], name=node.name.lstrip("_"), attrs=attributes)
        self.nodes.append(Node(op, self.times, self.loop, self.branch))
        self._follow_list(op)
        if op.type == "StridedSlice":
            _whole_slice(op)
        return op

    def _call(self, name, inputs):
        """The outputs of a function of the library."""
        function = self.library[name]
        names = [argument.name for argument in function.signature.input_arg]
        scope = Scope(dict(zip(names, inputs, strict=True)))
        self._run(function.node_def, scope)
        return [scope.get(function.ret[out.name]) for out in function.signature.output_arg]

    def _branches(self, node, inputs):
        """All branches, of which one runs; the outputs are the first one's."""
        if node.op in ("If", "StatelessIf"):
            names = [node.attr[key].func.name for key in ("then_branch", "else_branch")]
        else:
            names = [function.name for function in node.attr["branches"].list.func]
        around, number = self.branch, self.conditionals
        self.conditionals += 1
        results = []
        for index, name in enumerate(names):
            self.branch = (*around, (number, index))
            results.append(self._call(name, inputs[1:]))
        self.branch = around
        with tf.control_dependencies(None):
            first = [tf.identity(tensor) for tensor in results[0]]
        for index, tensor in enumerate(first):  # alive with it: every branch's, and the condition
            self.carried[tensor.op] = [inputs[0], *(result[index] for result in results)]
            self._same_list(results[0][index], tensor)
            self.nodes.append(Node(tensor.op, self.times, self.loop, around))
        return first

    def _while(self, node, inputs):
        """The outputs of a loop, its body being run once with `times` multiplied."""
        body = self.library[node.attr["body"].func.name]
        names = [argument.name for argument in body.signature.input_arg]
        results = [body.ret[out.name] for out in body.signature.output_arg]
        origin = Origins(body)
        fixed = [origin.of(r) == name for r, name in zip(results, names, strict=True)]
        around = self.times, self.loop
        if self.loop < 0:
            self.loop = len(self.ends)
            self.ends.append(0)
        state = [t if f else self._varying(t) for t, f in zip(inputs, fixed, strict=True)]
        counters = {
            index: (_value(inputs[index]), step)
            for index, (name, result) in enumerate(zip(names, results, strict=True))
            if (step := origin.step(result, name)) and _value(inputs[index]) is not None
        }
        trips = self._trips(node, state, counters)
        if trips is None:
            if self.loops is None:
                self.uncounted.append(f"the loop {node.name}")
            trips = self.loops or 1
            counters = {}
        self.times *= trips
        outputs = self._call(node.attr["body"].func.name, state)
        if around[1] < 0:
            self.ends[self.loop] = len(self.nodes)
        self.times, self.loop = around
        for index, (start, output) in enumerate(zip(state, outputs, strict=True)):
            if not fixed[index]:
                self.carried.setdefault(start.op, []).extend([inputs[index], output])
            if fixed[index]:
                outputs[index] = inputs[index]
            elif index in counters:
                first, step = counters[index]
                outputs[index] = tf.constant(first + step * trips, output.dtype)
        return outputs

    def _varying(self, tensor):
        """What changes from turn to turn: of the same shape, its value unknown."""
        if tensor.dtype == tf.variant:
            made = tf.identity(tensor)
            self._same_list(tensor, made)
        else:
            made = tf.compat.v1.placeholder(tensor.dtype, tensor.shape)
        self.starts[made.name] = tensor.name
        self.nodes.append(Node(made.op, self.times, self.loop, self.branch))
        return made

    def _trips(self, node, state, counters):
        """How often the loop runs at most; None where no constant says."""
        (going,) = self._call(node.attr["cond"].func.name, state)
        limits, waiting = [], [going]
        places = {state[index].ref(): counters[index] for index in counters}
        while waiting:
            op = waiting.pop().op
            if op.type in ("LogicalAnd", "Identity", "Squeeze", "ToBool"):
                waiting += op.inputs
            elif op.type == "Less" and op.inputs[0].ref() in places:
                first, step = places[op.inputs[0].ref()]
                last = _value(op.inputs[1])
                if last is not None:
                    limits.append(max(0, -(-(last - first) // step)))
        return min(limits, default=None)

    def _follow_list(self, op):
        """What shape inference does not say about the elements of TensorLists."""
        if op.type == "EmptyTensorList":
            self._begin_list(op.outputs[0], tf.TensorShape(None))
        elif op.type == "TensorListReserve":
            size = op.inputs[1]
            if size.op.type == "TensorListLength":  # a gradient is as long as its list
                length, _ = self.held.get(size.op.inputs[0].name, (None, None))
            else:
                length = _value(size)
            self._begin_list(op.outputs[0], tf.TensorShape(None), length)
        elif op.type == "TensorListFromTensor":
            self._begin_list(op.outputs[0], op.inputs[0].shape[1:], op.inputs[0].shape[0])
        elif op.inputs and op.inputs[0].name in self.lists:
            given, outputs = op.inputs[0], op.outputs
            length, element = self.held[given.name]
            if op.type in ("TensorListPushBack", "TensorListSetItem"):
                self._same_list(given, outputs[0])
                self.held[outputs[0].name] = (length, op.inputs[-1].shape)
            elif op.type == "TensorListPopBack":
                self._same_list(given, outputs[0])
                _refine(outputs[1:], [element])
            elif op.type == "TensorListGetItem":
                _refine(outputs, [element])
            elif op.type == "TensorListStack":
                _refine(outputs, [tf.TensorShape([length]).concatenate(element)])
            elif op.type in ("Identity", "AddN", "ZerosLike"):
                self._same_list(given, outputs[0])

    def _begin_list(self, tensor, element, length=None):
        self.lists[tensor.name] = tensor.name
        self.held[tensor.name] = (length, element)

    def _same_list(self, old, new):
        if old.name in self.lists:
            self.lists[new.name] = self.lists[old.name]
            self.held[new.name] = self.held[old.name]


def _whole_slice(op) -> None:
    """A slice from the beginning whose end is not known takes everything."""
    given, found = op.inputs[0].shape, op.outputs[0].shape
    begin = tf.get_static_value(op.inputs[1])
    if given.rank is None or given.rank != found.rank or begin is None or len(begin) != given.rank:
        return
    masked = op.get_attr("begin_mask")
    from_start = [first == 0 or masked >> place & 1 for place, first in enumerate(begin)]
    axes = zip(found, given, from_start, strict=True)
    op.outputs[0].set_shape(
        [whole if size is None and start else size for size, whole, start in axes]
    )


def _small(source: Any) -> bool:
    """Whether a captured tensor is worth folding: it may be a shape or an index."""
    eager = isinstance(source, tf.Tensor) and hasattr(source, "numpy") and source.dtype.is_integer
    return bool(eager and source.shape.num_elements() <= FOLDED)


def _value(tensor: tf.Tensor) -> int | None:
    """The value of an integer scalar that TensorFlow can work out; None of any other."""
    if not tensor.dtype.is_integer or tensor.shape.rank != 0:
        return None
    value = tf.get_static_value(tensor)
    if value is not None:
        return int(value)
    try:  # shape inference knows more than get_static_value: what size would a vector have?
        return tf.fill(tf.reshape(tensor, [1]), 0).shape[0]
    except ValueError:  # a negative one
        return None


def _refine(tensors, shapes) -> None:
    """Adds what is known of the shapes, where it does not contradict what is found here."""
    for tensor, shape in zip(tensors, shapes, strict=False):
        known = tensor.shape
        if known.is_fully_defined():
            continue
        shape = tf.TensorShape(shape)
        if known.is_compatible_with(shape):
            tensor.set_shape(known.merge_with(shape))


def size_of(tensor: tf.Tensor) -> int:
    """Elements. Raises ValueError where the shape is open."""
    count = tensor.shape.num_elements()
    if count is None:
        raise ValueError(
            f"{tensor.name} has the open shape {tensor.shape}: trace the function with static "
            "shapes, or give `shapes`"
        )
    return count
