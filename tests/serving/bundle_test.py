"""The bundle is complete, its files name the right things, and its card says what the run knows."""

import io
import os
import re
import shutil

import numpy as np
import pytest
import tensorflow as tf
import yaml
from helpers import picture_bytes
from PIL import Image

from tfcap import runs
from tfcap.serving import saved_model

prediction_log_pb2 = pytest.importorskip("tensorflow_serving.apis.prediction_log_pb2")
from tfcap.serving import bundle as bundles  # noqa: E402  it imports tensorflow_serving
from tfcap.serving import card  # noqa: E402

pytestmark = pytest.mark.slow  # it trains, and writes SavedModels


@pytest.fixture(scope="module")
def run_and_server(trained):
    run = runs.load(trained)
    return run, saved_model.server(run)


def allowed(bundle):
    return [
        int(n) for n in re.findall(r"allowed.*: (\d+)", (bundle / "batching.config").read_text())
    ]


def test_the_bundle_has_every_file_and_the_limit_of_the_flag(bundle):
    files = {"1", "batching.config", "compose.yaml", "kserve.yaml", "client"}
    assert set(os.listdir(bundle)) == files
    assert set(os.listdir(bundle / "client")) == {"captions_client.py", "curl.sh"}
    assert {"saved_model.pb", "assets.extra", "MODEL_CARD.md"} <= set(os.listdir(bundle / "1"))
    describe = tf.saved_model.load(str(bundle / "1")).signatures["serving_default"]
    values = [picture_bytes.file("JPEG"), picture_bytes.claiming("JPEG", 3001, 1000)]
    result = describe(image_bytes=tf.constant(values))["status"].numpy()
    assert result.tolist() == [b"ok", b"too many pixels: 3001000, at most 3000000"]


def test_every_signature_is_warmed_up_with_every_served_size(bundle):
    sizes = {}
    path = str(bundle / "1" / "assets.extra" / "tf_serving_warmup_requests")
    for record in tf.data.TFRecordDataset(path).as_numpy_iterator():
        log = prediction_log_pb2.PredictionLog.FromString(record)
        assert log.WhichOneof("log_type") == "predict_log"
        request = log.predict_log.request
        assert request.model_spec.name == "captions"
        values = {key: tf.make_ndarray(value) for key, value in request.inputs.items()}
        sizes.setdefault(request.model_spec.signature_name, []).append(
            len(next(iter(values.values())))
        )
        if "features" in values:
            assert np.isfinite(values["features"]).all() and values["features"].shape[1:] == (
                36,
                194,
            )
        else:
            assert all(content[:2] == b"\xff\xd8" for content in values["image_bytes"])
    assert sizes == dict.fromkeys(("serving_default", "features"), allowed(bundle))
    assert allowed(bundle)[0] == 1


def test_compose_and_kserve_start_the_same_server(bundle):
    [server] = yaml.safe_load((bundle / "compose.yaml").read_text())["services"].values()
    claim, service = yaml.safe_load_all((bundle / "kserve.yaml").read_text())
    predictor = service["spec"]["predictor"]
    [container] = predictor["containers"]
    assert server["entrypoint"] == container["command"] and server["image"] == container["image"]
    flags = dict(flag.lstrip("-").split("=") for flag in server["entrypoint"][1:])
    assert flags["model_name"] == "captions" and flags["model_base_path"] == "/models/captions"
    assert flags["batching_parameters_file"] == "/models/captions/batching.config"
    assert all(port.startswith("127.0.0.1:") for port in server["ports"])
    probes = container["startupProbe"], container["readinessProbe"]
    assert all(probe["exec"]["command"] == server["healthcheck"]["test"][1:] for probe in probes)
    limit = container["resources"]["limits"]["memory"]
    assert server["mem_limit"] + "i" == limit.replace("Mi", "mi") and claim["kind"].endswith(
        "Claim"
    )
    for text in (server, service):
        assert "$" not in str(text)


def test_memory_and_batches_follow_the_measured_times():
    assert bundles.memory(120 * 2**20, 4, 50_000_000) == 1024 + 4 * 512 + 3 * 120
    assert bundles.memory(0, 8, 50_000_000) == 1024 + 8 * 512
    assert bundles.memory(0, 1, 3_000_000) == 1024 + 123
    assert bundles.largest_batch({1: 0.1, 2: 0.12, 4: 0.2, 8: 0.41}) == 4  # 8 gives no more
    seconds = {1: 0.05, 2: 0.06, 4: 0.3}
    text = bundles._texts(seconds, 10**7, 50_000_000)["batching.config"]
    assert "max_batch_size { value: 2 }" in text and "micros { value: 5000 }" in text
    assert f"max_enqueued_batches {{ value: {round(10 / 0.06)} }}" in text
    assert "allowed_batch_sizes: 1\nallowed_batch_sizes: 2\npad" in text


@pytest.mark.parametrize(("slow", "sizes"), [((), 0), ((2,), 0), ((2, 8), 2)])
def test_a_measurement_that_other_work_disturbs_is_said(monkeypatch, capsys, slow, sizes):
    """The clock is one of the test. One slow call among many is no sign of other work."""
    now, calls = 0.0, []
    monkeypatch.setattr(bundles.time, "perf_counter", lambda: now)

    def call(size):
        nonlocal now
        calls.append(size)
        disturbed = size in slow and calls.count(size) == 3
        now += size / 100 * (2 if disturbed else 1)

    assert bundles.measure(call) == pytest.approx({n: n / 100 for n in (1, 2, 4, 8, 16, 32)})
    said = capsys.readouterr().out
    assert said.count(" to ") == sizes and ("20 to 40 ms and 80 to 160 ms" in said) == bool(sizes)


def test_drawn_pictures_fit_into_the_limit_of_the_export():
    sizes = [Image.open(io.BytesIO(bundles._draw(1, most))).size for most in (4096, 10**5, 10**7)]
    assert sizes == [(72, 54), (364, 273), (640, 480)]


def test_a_second_version_keeps_the_files_that_exist(bundle, run_and_server, tmp_path, capsys):
    folder, (run, served) = shutil.copytree(bundle, tmp_path / "served"), run_and_server
    (folder / "batching.config").write_text("# of a person")
    bundles.write_bundle(served, run, str(folder))
    assert set(os.listdir(folder)) == set(os.listdir(bundle)) | {"2"}
    assert (folder / "batching.config").read_text() == "# of a person"
    assert f"note: {folder}/batching.config stays" in capsys.readouterr().out


def test_the_card_states_what_the_run_knows(bundle, trained, run_and_server):
    text, run = (bundle / "1" / "MODEL_CARD.md").read_text(), run_and_server[0]
    headings = re.findall(r"^## (.*)$", text, re.M)
    assert headings == ["Model", "Training data", "Scores", "Latency", "Limits", "Licences"]
    assert f"| {run.fingerprint['vocab_sha256']} |" in text and "| 64 images, " in text
    assert f"| CIDEr | {run.scores['CIDEr']:.2f} |" in text and "at most 3,000,000 pixels" in text
    assert trained not in text and not re.search(r"/(tmp|home|root)/", text)


def test_a_card_without_scores_says_so():
    assert "There are no validation scores" in card._scores({})
    assert card._cell("a | b\n<x> `d`") == "a \\| b &lt;x> 'd'"
