"""Turns a traced function into one flat list of operations with known shapes and loop lengths.

Most of the work of a `tf.function` is done by inner functions of its graph: loop bodies, branches
and calls. Inside them shapes are often open although the shapes of the caller are known. `flatten`
copies all operations into one scratch graph. It replaces each call by the operations of the called
function, applied to the tensors of the caller, so that TensorFlow can infer their shapes. Nothing
is executed.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import tensorflow as tf

from tfcap.measure.functions import (
    Origins,
    Scope,
    TensorLists,
    complete_slice,
    in_order,
    refine_shapes,
    scalar_value,
)

CALLS = ("PartitionedCall", "StatefulPartitionedCall", "RemoteCall")
LOOPS = ("While", "StatelessWhile")
BRANCHES = ("If", "StatelessIf", "Case", "StatelessCase")
FOLDED = 1000  # captured integer tensors with at most so many elements become constants


class Node(NamedTuple):
    """An operation of the scratch graph."""

    op: tf.Operation
    times: int  # number of times it runs
    loop: int  # outermost loop around it, an index of `Program.ends`; -1 if there is none
    branch: tuple[tuple[int, int], ...]  # (conditional, branch) for each conditional around it


class Program(NamedTuple):
    """The result of `flatten`."""

    nodes: list[Node]  # in the order of tracing, without operations whose results are not used
    ends: list[int]  # for each outermost loop, the index of the node after its last
    lists: dict[str, str]  # TensorList, by tensor name -> the tensor in which the list began
    starts: dict[str, str]  # state of a loop, by tensor name -> its value before the loop
    uncounted: list[str]  # loops of unknown length, counted as one iteration
    inputs: list[tf.Tensor]  # arguments and captured tensors
    outputs: list[tf.Tensor]


def flatten(
    concrete: tf.types.experimental.ConcreteFunction,
    loops: int | None = None,
    shapes: Sequence[Sequence[int]] | None = None,
) -> Program:
    """Lists the operations of a concrete function with those of its loops, branches and calls.

    The number of iterations of a loop is the smallest constant limit on a counter in its condition.
    A loop that may end earlier (every caption has ended) counts with this number, and a slice whose
    end depends on the data counts with its full length.

    Args:
      concrete: the traced function.
      loops: number of iterations of a loop without such a limit. None counts one iteration and adds
        the loop to `uncounted`.
      shapes: shapes of the arguments, in flat order, if the trace has open ones.
    """
    flat = _Flattening(concrete, loops, shapes)
    return flat.program()


class _Flattening:
    """The state of `flatten` while it copies a graph."""

    def __init__(self, concrete, loops, shapes):
        definition = concrete.graph.as_graph_def(add_shapes=True)
        self.library = {f.signature.name: f for f in definition.library.function}
        self.loops = loops
        self.graph = tf.Graph()
        self.nodes: list[Node] = []
        self.ends: list[int] = []
        self.carried: dict[
            tf.Operation, list[tf.Tensor]
        ] = {}  # what an operation needs besides inputs
        self.lists = TensorLists()
        self.starts: dict[str, str] = {}
        self.uncounted: list[str] = []
        self.inputs: list[tf.Tensor] = []
        self.times, self.loop, self.conditionals = 1, -1, 0
        self.branch: tuple[tuple[int, int], ...] = ()
        with self.graph.as_default():
            scope = Scope(self._arguments(concrete, shapes))
            self._run(definition.node, scope)
            self.outputs = [scope.get(tensor.name) for tensor in concrete.graph.outputs]

    def program(self) -> Program:
        """Returns the result, without operations that nothing needs."""
        live = self._live()
        kept: list[Node] = []
        moved: list[int] = []
        for node in self.nodes:
            moved.append(len(kept))
            if node.op in live:
                kept.append(node)
        moved.append(len(kept))
        ends = [moved[end] for end in self.ends]
        return Program(
            kept, ends, self.lists.origins, self.starts, self.uncounted, self.inputs, self.outputs
        )

    def _live(self) -> set[tf.Operation]:
        """Finds the operations that outputs and side effects need; the runtime drops the others."""
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
        """Makes a placeholder, variable or constant for each input of the graph, by its name."""
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
            elif source is not None and _small(source):
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
            refine_shapes(scope.outputs[node.name], node.attr["_output_shapes"].list.shape)

    def _copy(self, node, inputs):
        """Copies one operation and records it as a node."""
        attributes = {k: v for k, v in node.attr.items() if not k.startswith("_")}
        op = self.graph.create_op(node.op, inputs, [], name=node.name.lstrip("_"), attrs=attributes)
        self.nodes.append(Node(op, self.times, self.loop, self.branch))
        self.lists.follow(op)
        if op.type == "StridedSlice":
            complete_slice(op, self.lists)
        return op

    def _call(self, name, inputs):
        """Copies the body of a function of the library and returns its outputs."""
        function = self.library[name]
        names = [argument.name for argument in function.signature.input_arg]
        scope = Scope(dict(zip(names, inputs, strict=True)))
        self._run(function.node_def, scope)
        return [scope.get(function.ret[out.name]) for out in function.signature.output_arg]

    def _branches(self, node, inputs):
        """Copies all branches of a conditional and returns the outputs of the first one."""
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
        for index, tensor in enumerate(
            first
        ):  # it needs the condition and the results of all branches
            self.carried[tensor.op] = [inputs[0], *(result[index] for result in results)]
            self.lists.copy(results[0][index], tensor)
            self.nodes.append(Node(tensor.op, self.times, self.loop, around))
        return first

    def _while(self, node, inputs):
        """Copies the body of a loop once, with `times` multiplied, and returns the outputs."""
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
            index: (scalar_value(inputs[index]), step)
            for index, (name, result) in enumerate(zip(names, results, strict=True))
            if (step := origin.step(result, name)) and scalar_value(inputs[index]) is not None
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
        """Returns a tensor of the same shape and unknown value: state that changes in a loop."""
        if tensor.dtype == tf.variant:
            made = tf.identity(tensor)
            self.lists.copy(tensor, made)
        else:
            made = tf.compat.v1.placeholder(tensor.dtype, tensor.shape)
        self.starts[made.name] = tensor.name
        self.nodes.append(Node(made.op, self.times, self.loop, self.branch))
        return made

    def _trips(self, node, state, counters):
        """Returns the largest number of iterations of a loop; None without a constant limit."""
        (going,) = self._call(node.attr["cond"].func.name, state)
        limits, waiting = [], [going]
        places = {state[index].ref(): counters[index] for index in counters}
        while waiting:
            op = waiting.pop().op
            if op.type in ("LogicalAnd", "Identity", "Squeeze", "ToBool"):
                waiting += op.inputs
            elif op.type == "Less" and op.inputs[0].ref() in places:
                first, step = places[op.inputs[0].ref()]
                last = scalar_value(op.inputs[1])
                if last is not None:
                    limits.append(max(0, -(-(last - first) // step)))
        return min(limits, default=None)


def _small(source: Any) -> bool:
    """Tells whether a captured tensor may be a shape or an index: a small integer tensor."""
    eager = isinstance(source, tf.Tensor) and hasattr(source, "numpy") and source.dtype.is_integer
    return bool(eager and source.shape.num_elements() <= FOLDED)


def size_of(tensor: tf.Tensor) -> int:
    """Counts the elements of a tensor; an open shape raises ValueError."""
    count = tensor.shape.num_elements()
    if count is None:
        raise ValueError(
            f"{tensor.name} must have a static shape. Received: {tensor.shape}. Trace the function "
            "with static shapes, or give `shapes`."
        )
    return count
