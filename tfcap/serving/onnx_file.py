"""Converts a traced function to an ONNX file, which ONNX Runtime runs without TensorFlow."""

from collections.abc import Mapping

import numpy as np
import onnx
import tensorflow as tf
from onnx import TensorProto, helper, numpy_helper
from tf2onnx import tf_loader, tfonnx

OPSET = 18  # the newest that tf2onnx writes
_SMALL = 1024  # bytes; smaller constants keep float32, because they may be exact numbers


def convert(
    function: tf.types.experimental.ConcreteFunction,
    path: str,
    *,
    metadata: Mapping[str, str] | None = None,
    weights: str = "float32",
) -> None:
    """Writes a function as an ONNX file that contains its weights.

    Trace the function inside `layers.trees.without_slice_updates`. The file has the function's
    inputs, by the names of their `tf.TensorSpec`s, and its outputs, by their keys. A first axis of
    unknown length is called `batch`.

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
    ends = [[tensor.name for tensor in tensors] for tensors in (inputs, function.outputs)]
    frozen = tf_loader.from_function(function, *ends)
    with tf.Graph().as_default() as graph:
        tf.import_graph_def(frozen, name="")
        converted = tfonnx.process_tf_graph(
            graph,
            opset=OPSET,
            input_names=ends[0],
            output_names=ends[1],
            tensors_to_rename=names,
        )
    model = converted.make_model("")  # ONNX Runtime optimises it: tf2onnx's optimisers gain nothing
    for value in (*model.graph.input, *model.graph.output):
        axes = value.type.tensor_type.shape.dim
        if axes and not axes[0].dim_value:
            axes[0].dim_param = "batch"
    if weights == "float16":
        _halve(model.graph)
    helper.set_model_props(model, dict(metadata or {}))
    try:
        onnx.checker.check_model(model, full_check=True)
    except onnx.checker.ValidationError as error:  # tf2onnx writes what it does not know as it is
        reason = str(error).partition("\n")[0]
        raise ValueError(
            f"This model cannot become an ONNX file ({reason}). Export it in another format."
        ) from error
    onnx.save(model, path)


def _halve(graph):
    """Stores the large float32 weights of a graph as float16, each with a cast to float32."""
    casts = []
    for weight in graph.initializer:
        values = numpy_helper.to_array(weight)
        if weight.data_type == TensorProto.FLOAT and values.nbytes > _SMALL:
            name = weight.name
            weight.CopyFrom(numpy_helper.from_array(values.astype(np.float16), f"{name}_float16"))
            casts.append(helper.make_node("Cast", [weight.name], [name], to=TensorProto.FLOAT))
    nodes = [*casts, *graph.node]
    del graph.node[:]
    graph.node.extend(nodes)
