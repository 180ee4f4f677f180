"""TF Serving's gRPC API over the session loader, for tests of clients and of exports.

    PYTHONPATH=tests python -m helpers.prediction_service --base_path served --port 8500

It is not TF Serving: it joins no requests to batches, and has no JSON of its own.
"""

import argparse
import concurrent.futures
import signal
import threading

import grpc
import tensorflow as tf
from tensorflow_serving.apis import (
    get_model_metadata_pb2,
    get_model_status_pb2,
    model_service_pb2_grpc,
    predict_pb2,
    prediction_service_pb2_grpc,
)

from helpers.model_versions import ModelVersions


class PredictionService(
    prediction_service_pb2_grpc.PredictionServiceServicer,
    model_service_pb2_grpc.ModelServiceServicer,
):
    """Answers Predict, GetModelMetadata and GetModelStatus."""

    def __init__(self, versions):
        self.versions = versions

    def Predict(self, request, context):  # noqa: N802, the name is the protocol's
        with self._session(request.model_spec, context) as (number, session):
            try:
                inputs = {key: tf.make_ndarray(value) for key, value in request.inputs.items()}
                spec, wanted = request.model_spec, request.output_filter
                results = session.run(inputs, spec.signature_name, wanted)
            except (ValueError, KeyError) as error:
                context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))
            answer = predict_pb2.PredictResponse()
            answer.model_spec.CopyFrom(request.model_spec)
            answer.model_spec.version.value = number
            for key, value in results.items():
                answer.outputs[key].CopyFrom(tf.make_tensor_proto(value))
            return answer

    def GetModelMetadata(self, request, context):  # noqa: N802
        with self._session(request.model_spec, context) as (number, session):
            answer = get_model_metadata_pb2.GetModelMetadataResponse()
            answer.model_spec.name = request.model_spec.name
            answer.model_spec.version.value = number
            signatures = get_model_metadata_pb2.SignatureDefMap()
            for key, value in session.signatures.items():
                signatures.signature_def[key].CopyFrom(value)
            answer.metadata["signature_def"].Pack(signatures)
            return answer

    def GetModelStatus(self, request, context):  # noqa: N802
        with self._session(request.model_spec, context) as (number, _):
            answer = get_model_status_pb2.GetModelStatusResponse()
            answer.model_version_status.add(version=number, state="AVAILABLE")
            return answer

    def _session(self, spec, context):
        version = spec.version.value if spec.HasField("version") else 0
        try:
            manager = self.versions.session(spec.name, version, spec.version_label)
            return _Entered(manager, manager.__enter__())
        except LookupError as error:
            context.abort(grpc.StatusCode.NOT_FOUND, str(error))


class _Entered:
    """A context manager that is entered already, so that its errors are known."""

    def __init__(self, manager, value):
        self._manager, self._value = manager, value

    def __enter__(self):
        return self._value

    def __exit__(self, *error):
        return self._manager.__exit__(*error)


def start(versions, port=0):
    """Starts a server on loopback; returns it and its port."""
    limits = [("grpc.max_receive_message_length", -1), ("grpc.so_reuseport", 0)]
    server = grpc.server(concurrent.futures.ThreadPoolExecutor(64), options=limits)
    service = PredictionService(versions)
    prediction_service_pb2_grpc.add_PredictionServiceServicer_to_server(service, server)
    model_service_pb2_grpc.add_ModelServiceServicer_to_server(service, server)
    port = server.add_insecure_port(f"127.0.0.1:{port}")
    server.start()
    return server, port


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--base_path", required=True, help="Numbered versions, or models.config.")
    parser.add_argument("--base", help="Directory in place of base_path of models.config.")
    parser.add_argument("--port", type=int, default=8500)
    given = parser.parse_args()
    versions = ModelVersions(given.base_path, given.base)
    versions.watch()
    server, port = start(versions, given.port)
    print(f"ready on 127.0.0.1:{port}, {versions.replayed} records of warm-up", flush=True)
    ended = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: ended.set())
    ended.wait()
    server.stop(5).wait()
    versions.close()


if __name__ == "__main__":
    main()
