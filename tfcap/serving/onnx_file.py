"""Converts a traced function to an ONNX file, which ONNX Runtime runs without TensorFlow."""

import logging
from collections.abc import Mapping

import numpy as np
import onnx
import tensorflow as tf
from onnx import TensorProto, helper, numpy_helper
from tf2onnx import optimizer, tf_loader, tfonnx
from tf2onnx.onnx_opset.tensor import ScatterND
from tf2onnx.optimizer.identity_optimizer import IdentityOptimizer
from tf2onnx.optimizer.merge_duplicated_nodes_optimizer import MergeDuplicatedNodesOptimizer

logging.getLogger("tf2onnx").setLevel(logging.CRITICAL)  # `convert` raises what it logs
_SMALL = 1024  # bytes of a constant that stays float32, because it may be an exact number
OPSET = 18  # the newest that tf2onnx writes


def convert(
    function: tf.types.experimental.ConcreteFunction,
    path: str,
    *,
    metadata: Mapping[str, str] | None = None,
    weights: str = "float32",
) -> None:
    """Writes a function as an ONNX file that contains its weights.

    Trace the function inside `layers.trees.portable_graphs`. The file has the function's
    inputs, by the names of their `tf.TensorSpec`s, and its outputs, by their keys. A first axis of
    open length is called `batch`, axis 1 of `features` is called `features_1`.

    Args:
      function: a function of named tensors that returns a dictionary of tensors.
      path: path of the new file.
      metadata: texts by name that the file contains, too; programs read them as `metadata_props`.
      weights: dtype in which weights are stored, `float16` or `float32`. All computations are in
        float32.

    Raises:
      ValueError: ONNX, or tf2onnx, lacks a part of the function.
    """
    inputs = function.inputs[: len(function.inputs) - len(function.captured_inputs)]
    names = {tensor.name: tensor.op.name for tensor in inputs}
    names |= {tensor.name: name for name, tensor in function.structured_outputs.items()}
    read = [tensor.name for tensor in inputs]
    written = [tensor.name for tensor in function.outputs]
    try:
        model = _model(tf_loader.from_function(function, read, written), read, written, names)
        onnx.checker.check_model(model, full_check=True)
    except Exception as error:  # tf2onnx raises all kinds, and writes operators that do not exist
        reason = str(error).partition("\n")[0]
        raise ValueError(
            f"This model cannot become an ONNX file ({reason}). Export it in another format."
        ) from error
    for value in (*model.graph.input, *model.graph.output):
        for index, axis in enumerate(value.type.tensor_type.shape.dim):
            if not axis.dim_value:
                axis.dim_param = f"{value.name}_{index}" if index else "batch"
    if weights == "float16":
        _halve(model.graph)
    helper.set_model_props(model, dict(metadata or {}))
    onnx.checker.check_model(model, full_check=True)
    onnx.save(model, path)


def _model(graph_def, inputs, outputs, names):
    """Converts a graph without variables to a model, whose tensors are renamed by `names`."""
    with tf.Graph().as_default() as graph:
        tf.import_graph_def(graph_def, name="")
        converted = tfonnx.process_tf_graph(
            graph,
            opset=OPSET,
            custom_op_handlers={"Erfc": (_erfc, []), "ScatterNd": (_scatter_nd, ["ScatterND"])},
            input_names=inputs,
            output_names=outputs,
            tensors_to_rename=names,
        )
    # ONNX Runtime does what the other optimisers do. These remove weights that are there twice, as
    # grappler makes a constant for each read, and what is left of lists.
    few = {"merge": MergeDuplicatedNodesOptimizer, "identity": IdentityOptimizer}
    return optimizer.optimize_graph(converted, catch_errors=False, optimizers=few).make_model("")


def _erfc(graph, node, name, arguments):
    """Makes 1 - Erf of an Erfc, which is in Keras' GELU and which tf2onnx does not know."""
    shape, dtype = graph.get_shape(node.output[0]), graph.get_dtype(node.output[0])
    graph.remove_node(name)
    one = graph.make_const(f"{name}/one", np.float32(1))
    erf = graph.make_node("Erf", node.input, shapes=[shape], dtypes=[dtype])
    inputs = [one.output[0], erf.output[0]]
    graph.make_node("Sub", inputs, outputs=node.output, shapes=[shape], dtypes=[dtype])


def _scatter_nd(graph, node, name, arguments):
    """Makes a ScatterND that sums values at the same index, of which tf2onnx keeps the last."""
    ScatterND.version_11(graph, node)
    node.set_attr("reduction", "add")


def _fits(values):
    return np.abs(values).max() <= np.finfo(np.float16).max


def _halve(graph):
    """Stores the large float32 weights of a graph as float16, each with a cast to float32."""
    casts = []
    for weight in graph.initializer:
        values = numpy_helper.to_array(weight)
        # A mask has numbers that float16 lacks.
        if values.dtype == np.float32 and values.nbytes > _SMALL and _fits(values):
            name = weight.name
            weight.CopyFrom(numpy_helper.from_array(values.astype(np.float16), f"{name}_float16"))
            casts.append(helper.make_node("Cast", [weight.name], [name], to=TensorProto.FLOAT))
    nodes = [*casts, *graph.node]
    del graph.node[:]
    graph.node.extend(nodes)
