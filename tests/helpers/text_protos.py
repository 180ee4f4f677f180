"""Reads text files of TF Serving whose messages tensorflow-serving-api does not have.

The fields are those of `session_bundle_config.proto` and `monitoring_config.proto` of TF Serving
2.20, with their numbers. protobuf's own reader then refuses unknown fields and wrong types.
"""

from google.protobuf import (
    descriptor_pb2,
    descriptor_pool,
    message_factory,
    text_format,
    wrappers_pb2,
)

_INT = ".google.protobuf.Int64Value"
_FIELDS = {  # message -> field -> number and type; a list is a repeated field
    "BatchingParameters": {
        "max_batch_size": (1, _INT),
        "batch_timeout_micros": (2, _INT),
        "max_enqueued_batches": (3, _INT),
        "num_batch_threads": (4, _INT),
        "thread_pool_name": (5, ".google.protobuf.StringValue"),
        "allowed_batch_sizes": (6, ["int64"]),
        "pad_variable_length_inputs": (7, "bool"),
    },
    "PrometheusConfig": {"enable": (1, "bool"), "path": (2, "string")},
    "MonitoringConfig": {"prometheus_config": (1, ".serving.PrometheusConfig")},
}


def _pool():
    pool = descriptor_pool.DescriptorPool()
    pool.AddSerializedFile(wrappers_pb2.DESCRIPTOR.serialized_pb)
    file = descriptor_pb2.FileDescriptorProto(name="serving.proto", package="serving")
    file.syntax = "proto3"
    file.dependency.append(wrappers_pb2.DESCRIPTOR.name)
    for message, fields in _FIELDS.items():
        own = file.message_type.add(name=message)
        for name, (number, kind) in fields.items():
            field = own.field.add(name=name, number=number, label=3 if kind == ["int64"] else 1)
            kind = kind[0] if isinstance(kind, list) else kind
            if kind.startswith("."):
                field.type, field.type_name = field.TYPE_MESSAGE, kind
            else:
                field.type = {"bool": 8, "int64": 3, "string": 9}[kind]
    pool.Add(file)
    return pool


def parse(message: str, text: str):
    """Returns a message of the text; raises `text_format.ParseError`."""
    made = message_factory.GetMessageClass(_pool().FindMessageTypeByName(f"serving.{message}"))
    return text_format.Parse(text, made())
