"""Reads the weights in a .caffemodel, without Caffe.

The file is a protobuf message of the type NetParameter. This module builds a descriptor with the
few fields that hold weights. The parser of protobuf skips all other fields. The numbers of the
fields are those in caffe.proto.
"""

import math
import os

import numpy as np
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

_BYTES = descriptor_pb2.FieldDescriptorProto.TYPE_BYTES
# Name, number and type of the fields by message; a type is a number of protobuf or a message. All
# are repeated, which also reads a field that occurs once.
_MESSAGES = {
    "BlobShape": [("dim", 1, descriptor_pb2.FieldDescriptorProto.TYPE_INT64)],
    # A packed field of floats is read as bytes, so that no Python number is made of each float.
    "BlobProto": [("data", 5, _BYTES), ("shape", 7, "BlobShape")],
    "LayerParameter": [("name", 1, _BYTES), ("blobs", 7, "BlobProto")],
    "NetParameter": [("layers", 2, _BYTES), ("layer", 100, "LayerParameter")],
}


def read_tensors(path: str | os.PathLike) -> dict[str, np.ndarray]:
    """Reads the weights in a .caffemodel, without Caffe.

    Args:
      path: path of the file.

    Returns:
      Read-only float32 arrays by name. A name such as `conv1[0]` is the name of the layer and the
      number of the weight in the layer, from 0. Layers without weights are left out.

    Raises:
      ValueError: the file cannot be read, is not a .caffemodel, has no weights, or has Caffe's
        layout of 2014.
    """
    try:
        with open(os.path.expanduser(path), "rb") as file:
            net = _message_class().FromString(file.read())
        arrays = {
            f"{layer.name[-1].decode()}[{number}]": _array(blob)
            for layer in net.layer
            for number, blob in enumerate(layer.blobs)
        }
    except OSError as error:
        raise ValueError(
            f"{path} cannot be read: {error.strerror or error}. Check the path."
        ) from error
    except Exception as error:  # DecodeError of protobuf, and errors of what a stranger wrote
        raise ValueError(f"{path} is no usable .caffemodel: {error}. Copy it again.") from error
    if net.layers and not arrays:
        raise ValueError(
            f"{path} has Caffe's layout of 2014 (V1LayerParameter). Convert it with Caffe's tool "
            "upgrade_net_proto_binary."
        )
    if not arrays:
        raise ValueError(
            f"{path} is no usable .caffemodel: it holds no layers with weights. Give the file of "
            "the trained network."
        )
    return arrays


def _message_class():
    """Returns the class of NetParameter."""
    file = descriptor_pb2.FileDescriptorProto(name="caffe.proto", package="caffe", syntax="proto2")
    for message, fields in _MESSAGES.items():
        description = file.message_type.add(name=message)
        for name, number, kind in fields:
            field = description.field.add(name=name, number=number)
            field.label = field.LABEL_REPEATED
            if isinstance(kind, str):
                field.type, field.type_name = field.TYPE_MESSAGE, f".caffe.{kind}"
            else:
                field.type = kind
    pool = descriptor_pool.DescriptorPool()  # apart from a caffe.proto of the same process
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("caffe.NetParameter"))


def _array(blob) -> np.ndarray:
    """Returns the numbers of a BlobProto, in the shape that it states."""
    numbers = np.frombuffer(b"".join(blob.data), "<f4")
    shape = [int(size) for part in blob.shape for size in part.dim]
    if min(shape, default=0) < 0 or math.prod(shape) != len(numbers):
        raise ValueError(f"a weight has {len(numbers)} numbers, but the shape {shape}")
    return numbers.reshape(shape)
