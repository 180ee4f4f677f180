"""The server's own messages read its files: models and labels, batches, monitoring."""

import os

import pytest
from google.protobuf import text_format
from helpers import text_protos

from tfcap.serving.timing import choose

model_server_config_pb2 = pytest.importorskip("tensorflow_serving.config.model_server_config_pb2")
from tfcap.serving import server_files  # noqa: E402  it imports tensorflow_serving

HOW = choose({1: 0.05, 2: 0.06, 4: 0.1, 8: 0.25}, cores=4)


def _models(folder):
    text = (folder / "models.config").read_text()
    config = text_format.Parse(text, model_server_config_pb2.ModelServerConfig())
    return config.model_config_list.config


def test_models_config_serves_the_versions_with_labels(tmp_path):
    server_files.write_models(str(tmp_path), {"stable": 3, "canary": 5})
    (model,) = _models(tmp_path)
    assert (model.name, model.base_path) == ("captions", "/models/captions")
    assert model.model_platform == "tensorflow"
    assert list(model.model_version_policy.specific.versions) == [3, 5]
    assert dict(model.version_labels) == {"stable": 3, "canary": 5}
    server_files.write_models(str(tmp_path), {"stable": 1, "canary": 1})
    (one,) = _models(tmp_path)
    assert list(one.model_version_policy.specific.versions) == [1]


def test_what_a_person_wrote_into_models_config_stays(tmp_path):
    """Another model, a label of a version that exists, and the name of the own model."""
    for number in "123":
        os.mkdir(tmp_path / number)
    (tmp_path / "models.config").write_text(
        """model_config_list {
        config { name: "other" base_path: "/models/other" model_platform: "tensorflow"
                 version_labels { key: "stable" value: 7 } }  # its label is not ours
        config { name: "birds" base_path: "/models/captions/" model_platform: "tensorflow"
                 version_labels { key: "stable" value: 2 } version_labels { key: "old" value: 1 }
                 version_labels { key: "gone" value: 9 } }
        }"""
    )
    labelled = server_files.labels(str(tmp_path), 3)
    assert labelled == {"stable": 2, "canary": 3}
    server_files.write_models(str(tmp_path), labelled)
    other, own = _models(tmp_path)
    assert other.name == "other" and dict(other.version_labels) == {"stable": 7}
    assert own.name == "birds" and dict(own.version_labels) == labelled | {"old": 1}
    assert list(own.model_version_policy.specific.versions) == [1, 2, 3]


@pytest.mark.parametrize(
    "entry",
    [
        'name: "captions" base_path: "/models/captions/"',
        'name: "captions" base_path: "/mnt/served"',
        'name: "birds" base_path: "/mnt/served"',
    ],
)
def test_an_entry_with_another_path_or_name_stays_the_only_one(tmp_path, entry):
    for number in "123":
        os.mkdir(tmp_path / number)
    labels = 'version_labels { key: "stable" value: 1 } version_labels { key: "canary" value: 2 }'
    (tmp_path / "models.config").write_text(
        f'model_config_list {{ config {{ {entry} model_platform: "tensorflow" {labels} }} }}'
    )
    labelled = server_files.labels(str(tmp_path), 3)
    assert labelled == {"stable": 1, "canary": 3}
    server_files.write_models(str(tmp_path), labelled)
    (own,) = _models(tmp_path)
    assert dict(own.version_labels) == labelled and f'"{own.base_path}"' in entry


def test_stable_stays_until_a_person_moves_it(tmp_path):
    folder = str(tmp_path)

    def write(labelled):
        server_files.write_models(folder, labelled)

    assert server_files.labels(folder, 1) == {"stable": 1, "canary": 1}
    for number in "123":
        os.mkdir(tmp_path / number)
    write({"stable": 1, "canary": 2})
    assert server_files.labels(folder, 3) == {"stable": 1, "canary": 3}
    write({"stable": 2, "canary": 2})  # a person has promoted the second version
    assert server_files.labels(folder, 3) == {"stable": 2, "canary": 3}
    os.rmdir(tmp_path / "2")
    assert server_files.labels(folder, 3) == {"stable": 3, "canary": 3}
    (tmp_path / "models.config").write_bytes(b"\xff")
    with pytest.raises(ValueError, match="models.config is not a ModelServerConfig"):
        server_files.labels(folder, 3)


def test_batching_config_has_the_chosen_sizes():
    message = text_protos.parse("BatchingParameters", server_files.batching(HOW))
    assert message.max_batch_size.value == 4 == list(message.allowed_batch_sizes)[-1]
    assert list(message.allowed_batch_sizes) == [1, 2, 4]
    assert message.batch_timeout_micros.value == 5000
    assert message.num_batch_threads.value == 4 and message.max_enqueued_batches.value == 100
    assert message.pad_variable_length_inputs


def test_monitoring_config_enables_prometheus():
    message = text_protos.parse("MonitoringConfig", server_files.monitoring())
    assert message.prometheus_config.enable
    assert message.prometheus_config.path == "/monitoring/prometheus/metrics"


@pytest.mark.parametrize(
    "text",
    ["max_batch_size: 4", "max_batchsize { value: 4 }", "allowed_batch_sizes: 1.5", "enable: true"],
)
def test_the_reader_refuses_what_the_server_would_refuse(text):
    with pytest.raises(text_format.ParseError):
        text_protos.parse("BatchingParameters", text)
