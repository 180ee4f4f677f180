"""TF Serving's gRPC API over the session loader, asked through the client of a bundle.

It is not TF Serving, which cannot be installed here; docs/serving_checks.md has what this shows.
"""

import os
import shutil
import threading

import numpy as np
import pytest
import tensorflow as tf
from helpers.client import captions_client
from helpers.model_versions import ModelVersions

pytest.importorskip("tensorflow_serving", reason="tensorflow-serving-api is not installed")

import grpc  # noqa: E402
from helpers import prediction_service  # noqa: E402
from tensorflow_serving.apis import (  # noqa: E402
    get_model_metadata_pb2,
    predict_pb2,
    prediction_log_pb2,
    prediction_service_pb2_grpc,
)


@pytest.fixture(scope="module")
def address(versions):
    server, port = prediction_service.start(versions)
    yield f"127.0.0.1:{port}"
    server.stop(0)


@pytest.fixture(scope="module")
def stub(address):
    return prediction_service_pb2_grpc.PredictionServiceStub(grpc.insecure_channel(address))


def _request(**inputs):
    request = predict_pb2.PredictRequest()
    request.model_spec.name = "captions"
    for key, value in inputs.items():
        request.inputs[key].CopyFrom(tf.make_tensor_proto(value))
    return request


def test_the_client_gets_the_captions_of_the_command(address, pictures, broken, same):
    client = captions_client.Client(address, protocol="grpc", batch_size=4)
    client.wait(5)
    results = list(client.caption([*pictures, broken["text"]]))
    for number in range(len(pictures)):
        same(results[number], number)
    assert results[-1].status != "ok" and results[-1].caption == ""
    same(next(captions_client.Client(address, protocol="grpc", version="1").caption(pictures)), 0)
    with pytest.raises(captions_client.ServerError, match="NOT_FOUND"):
        next(captions_client.Client(address, protocol="grpc", label="beta").caption(pictures))


@pytest.mark.parametrize(
    "inputs",
    [
        {},
        {"picture": [b"x"]},
        {"image_bytes": [[b"x"]]},
        {"image_bytes": b"x"},
        {"image_bytes": [1.5]},
        {"image_bytes": np.zeros([0], object)},
    ],
    ids=str,
)
def test_wrong_inputs_are_invalid_arguments_and_the_next_request_works(
    address, stub, inputs, pictures, same
):
    with pytest.raises(grpc.RpcError) as raised:
        stub.Predict(_request(**inputs), timeout=30)
    assert raised.value.code() == grpc.StatusCode.INVALID_ARGUMENT
    assert raised.value.details()
    same(next(captions_client.Client(address, protocol="grpc").caption(pictures)), 0)


def test_the_warm_up_is_replayed_and_its_captions_are_those_of_the_command(
    bundle, versions, stub, captioner
):
    path = str(bundle / "1" / "assets.extra" / "tf_serving_warmup_requests")
    records = list(tf.data.TFRecordDataset(path).as_numpy_iterator())
    assert versions.replayed == len(records) > 1
    compared = 0
    for record in records:
        request = prediction_log_pb2.PredictionLog.FromString(record).predict_log.request
        outputs = stub.Predict(request, timeout=60).outputs
        assert set(tf.make_ndarray(outputs["status"])) == {b"ok"}
        contents = request.inputs["image_bytes"].string_val
        if request.model_spec.signature_name != "serving_default" or len(contents) > 4:
            continue
        found = tf.make_ndarray(outputs["captions"])[:, 0]
        assert [text.decode() for text in found] == [one.text for one in captioner(list(contents))]
        compared += len(contents)
    assert compared > 0


def test_metadata_names_the_signatures(stub):
    request = get_model_metadata_pb2.GetModelMetadataRequest(metadata_field=["signature_def"])
    request.model_spec.name = "captions"
    packed = stub.GetModelMetadata(request).metadata["signature_def"]
    signatures = get_model_metadata_pb2.SignatureDefMap()
    assert packed.Unpack(signatures)
    assert {"serving_default", "features"} <= set(signatures.signature_def)


CONFIG = """
model_config_list { config {
  name: "captions" base_path: "/models/captions" model_platform: "tensorflow"
  model_version_policy { specific { %s } }
  version_labels { key: "stable" value: %d }
} }
"""


def test_a_roll_under_load_fails_no_request(bundle, pictures, same, tmp_path):
    """Labels move to version 2 after it has been loaded, and version 1 ends after its requests."""
    base, config = tmp_path / "base", tmp_path / "models.config"
    # Without the warm-up requests: the test of the warm-up replays them.
    shutil.copytree(bundle / "1", base / "1", ignore=shutil.ignore_patterns("assets.extra"))
    config.write_text(CONFIG % ("versions: 1", 1))
    versions = ModelVersions(config, base)
    server, port = prediction_service.start(versions)
    first, ended, failures = versions.sessions[1], threading.Event(), []
    answered = {1: 0, 2: 0}

    def ask(label):
        client = captions_client.Client(f"127.0.0.1:{port}", protocol="grpc", label=label)
        while not ended.is_set():
            try:
                same(next(client.caption(pictures)), 0)
                answered[max(versions.sessions)] += 1
            except Exception as error:  # the thread of the test reads it
                failures.append(error)

    threads = [threading.Thread(target=ask, args=(label,)) for label in ("", "stable")]
    for thread in threads:
        thread.start()
    try:
        shutil.copytree(base / "1", tmp_path / "next")
        os.rename(tmp_path / "next", base / "2")
        for content in (("versions: 1", 1), ("versions: 1 versions: 2", 1), ("versions: 2", 2)):
            config.write_text(CONFIG % content)
            versions.look()
            done = sum(answered.values())
            while sum(answered.values()) < done + 4 and not failures:
                ended.wait(0.01)
    finally:
        ended.set()
        for thread in threads:
            thread.join()
        server.stop(0)
    assert not failures and set(versions.sessions) == {2} and min(answered.values()) > 0
    with pytest.raises(RuntimeError, match="closed Session"):
        first.run({"image_bytes": np.array([b"x"], object)})
    versions.close()
