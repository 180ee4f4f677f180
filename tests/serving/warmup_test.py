"""The warm-up file holds requests that TF Serving can send; a bad file ends the export."""

import os
import shutil

import numpy as np
import pytest
import tensorflow as tf

prediction_log_pb2 = pytest.importorskip("tensorflow_serving.apis.prediction_log_pb2")
from tfcap.serving import warmup  # noqa: E402  it imports tensorflow_serving

pytestmark = pytest.mark.slow  # it trains, and loads a SavedModel


@pytest.fixture(scope="module")
def version(bundle):
    return str(bundle / "1")


@pytest.fixture(scope="module")
def signatures(version):
    loaded = tf.saved_model.load(version)  # it owns the variables
    yield dict(loaded.signatures)


def test_both_signatures_are_warmed_up_with_every_served_size(version, bundle):
    sizes, contents = {}, set()
    for name, values in warmup.requests(version):
        first = values["image_bytes"] if name == "serving_default" else values["features"]
        sizes.setdefault(name, []).append(len(first))
        if name == "serving_default":
            contents |= set(first.tolist())
        else:
            assert np.isfinite(first).all() and first.shape[1:] == (36, 194)
    text = (bundle / "batching.config").read_text()
    served = [int(line.split(":")[1]) for line in text.splitlines() if line.startswith("allowed")]
    assert sizes == {"serving_default": served, "features": served} and served[0] == 1
    assert contents and all(content[:4] == b"\x89PNG" for content in contents)  # of --warmup_images


def test_the_records_are_those_that_tf_serving_expects(version):
    path = os.path.join(version, "assets.extra", "tf_serving_warmup_requests")
    for record in tf.data.TFRecordDataset(path).as_numpy_iterator():
        log = prediction_log_pb2.PredictionLog.FromString(record)
        assert log.WhichOneof("log_type") == "predict_log"
        assert log.predict_log.request.model_spec.name == "captions"
        for tensor in log.predict_log.request.inputs.values():
            assert tensor.tensor_shape.dim[0].size >= 1


@pytest.fixture
def damaged(version, tmp_path):
    """Writes records into the warm-up file of a version without a model."""

    def write(*logs):
        folder = tmp_path / os.path.dirname(warmup.PATH)
        folder.mkdir(exist_ok=True)
        with tf.io.TFRecordWriter(str(tmp_path / warmup.PATH)) as file:
            for log in logs:
                file.write(log.SerializeToString())
        return str(tmp_path)

    return write


def _log(signature="serving_default", **inputs):
    log = prediction_log_pb2.PredictionLog()
    log.predict_log.request.model_spec.signature_name = signature
    for key, value in inputs.items():
        log.predict_log.request.inputs[key].CopyFrom(tf.make_tensor_proto(value))
    return log


def test_a_good_file_is_replayed(version, signatures):
    assert warmup.replay(version, signatures) == len(list(warmup.requests(version)))


def test_a_missing_or_damaged_file_is_refused(version, signatures, tmp_path):
    with pytest.raises(ValueError, match="not a usable warm-up file"):
        warmup.replay(str(tmp_path), signatures)
    (tmp_path / "assets.extra").mkdir()
    path = shutil.copy(os.path.join(version, warmup.PATH), tmp_path / warmup.PATH)
    os.truncate(path, os.path.getsize(path) - 9)
    with pytest.raises(ValueError, match="not a usable warm-up file"):
        warmup.replay(str(tmp_path), signatures)
    os.truncate(path, 0)
    with pytest.raises(ValueError, match="must hold requests"):
        warmup.replay(str(tmp_path), signatures)


def test_requests_that_do_not_fit_are_refused(signatures, damaged):
    zeros = np.zeros([1, 2, 194], np.float32)
    for log, sentence in (
        (prediction_log_pb2.PredictionLog(), "request 0 is not one of"),
        (_log("other", image_bytes=[b"a"]), "must be for .*Received: 'other'"),
        (_log(image_bytes=[b"a"]), "must be captioned. Received from serving_default: not a"),
        (_log(image_bytes=[1.0]), "Warm-up request 0 fails for serving_default"),
        (_log("features", features=zeros[..., :9], num_regions=[2]), "fails for features"),
        (_log("features", features=zeros, num_regions=[3]), "num_regions must be at most"),
    ):
        with pytest.raises(ValueError, match=sentence):
            warmup.replay(damaged(log), signatures)
