"""Writes and replays the requests that TF Serving sends to a new version before it serves it.

TensorFlow builds and optimises graphs at the first calls, which therefore take many times as long.
"""

import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow_serving.apis import prediction_log_pb2

from tfcap.runs.server import OK
from tfcap.serving import samples

PATH = os.path.join("assets.extra", "tf_serving_warmup_requests")  # TF Serving looks there
MOST_RECORDS = 1000  # TF Serving refuses a file with more
_REMEDY = "Delete the version and export again with --bundle."


def write(
    version: str,
    name: str,
    signatures: Mapping[str, Any],
    sizes: Sequence[int],
    pictures: Sequence[bytes],
    regions: int | None,
) -> int:
    """Writes a request of every size for every signature.

    Args:
      version: the directory of the SavedModel.
      name: the model's name on the server.
      signatures: name -> concrete function.
      sizes: numbers of pictures.
      pictures: picture files.
      regions: of an image in `features`; None takes 36.

    Returns:
      The number of requests.
    """
    path = os.path.join(version, PATH)
    os.makedirs(os.path.dirname(path), exist_ok=True)
    count = 0
    with tf.io.TFRecordWriter(path) as file:
        for signature, function in signatures.items():
            specs = function.structured_input_signature[1]
            for size in sizes:
                log = prediction_log_pb2.PredictionLog()
                request = log.predict_log.request
                request.model_spec.name = name
                request.model_spec.signature_name = signature
                for key, value in samples.inputs(specs, size, pictures, regions).items():
                    request.inputs[key].CopyFrom(tf.make_tensor_proto(value))
                file.write(log.SerializeToString())
                count += 1
    return count


def requests(version: str) -> Iterator[tuple[str, dict[str, np.ndarray]]]:
    """Yields the signature and the inputs of each request of the file.

    Raises:
      ValueError: the file is missing, damaged, or no file of requests.
    """
    path = os.path.join(version, PATH)
    try:
        for number, record in enumerate(tf.data.TFRecordDataset(path).as_numpy_iterator()):
            log = prediction_log_pb2.PredictionLog.FromString(record)
            if number >= MOST_RECORDS or log.WhichOneof("log_type") != "predict_log":
                raise ValueError(f"request {number} is not one of {MOST_RECORDS} PredictLogs")
            request = log.predict_log.request
            values = {key: tf.make_ndarray(value) for key, value in request.inputs.items()}
            yield request.model_spec.signature_name, values
    except Exception as error:  # of TensorFlow's reader and of protobuf, without a common base
        reason = " ".join(str(error).split())[:200]
        raise ValueError(f"{path} is not a usable warm-up file: {reason}. {_REMEDY}") from None


def replay(version: str, signatures: Mapping[str, Any]) -> int:
    """Sends every request of the file to the signatures, as TF Serving will do.

    Returns:
      The number of requests.

    Raises:
      ValueError: the file cannot be read, or a request fails, has a bad row or scores that are not
        finite.
    """
    count = 0
    for name, values in requests(version):
        if name not in signatures:
            raise ValueError(
                f"A warm-up request must be for {', '.join(signatures)}. Received: {name!r}. "
                f"{_REMEDY}"
            )
        try:
            results = signatures[name](**{key: tf.constant(v) for key, v in values.items()})
        except (tf.errors.OpError, TypeError, ValueError) as error:
            reason = " ".join(str(error).split())[:200]
            raise ValueError(
                f"Warm-up request {count} fails for {name}: {reason}. {_REMEDY}"
            ) from error
        status = [text for text in results["status"].numpy() if text != OK.encode()]
        if status or not np.isfinite(results["scores"]).all():
            reason = status[0].decode() if status else "scores that are not finite"
            raise ValueError(
                f"A warm-up request must be captioned. Received from {name}: {reason}. Give other "
                "pictures with --warmup_images."
            )
        count += 1
    if not count:
        raise ValueError(f"{os.path.join(version, PATH)} must hold requests. {_REMEDY}")
    return count
