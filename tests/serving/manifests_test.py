"""The manifests fit the schemas of Docker Compose and Kubernetes and name files of the bundle."""

import importlib.resources
import json
import re
import shlex
import subprocess

import pytest
import yaml

pytest.importorskip("tensorflow_serving")
from tfcap.serving import manifests, server_files  # noqa: E402  it imports tensorflow_serving

SIZE = 120 * 2**20  # bytes of a model


def test_compose_fits_the_specification():
    jsonschema, check = pytest.importorskip("jsonschema"), pytest.importorskip("check_jsonschema")
    path = importlib.resources.files(check) / "builtin_schemas/vendor/compose-spec.json"
    schema = json.loads(path.read_text())
    content = yaml.safe_load(manifests.compose(SIZE))
    validator = jsonschema.validators.validator_for(schema)(schema)
    assert not list(validator.iter_errors(content))
    content["services"]["server"]["health_check"] = {}
    assert list(validator.iter_errors(content))
    server = content["services"]["server"]
    assert server["image"] == "tensorflow/serving:2.20.0" and server["mem_limit"] == "3432m"
    every = [port for service in content["services"].values() for port in service["ports"]]
    assert every and all(port.startswith("127.0.0.1:") for port in every)


def test_the_server_reads_the_files_of_the_bundle():
    flags = dict(flag.lstrip("-").split("=") for flag in manifests.COMMAND[1:])
    for flag, name in (
        ("model_config_file", server_files.MODELS),
        ("batching_parameters_file", server_files.BATCHING),
        ("monitoring_config_file", server_files.MONITORING),
    ):
        assert flags[flag] == f"/models/captions/{name}"
    scraped = yaml.safe_load(manifests.prometheus())["scrape_configs"][0]
    assert scraped["metrics_path"] == server_files.METRICS
    assert scraped["static_configs"] == [{"targets": ["server:8501"]}]


def test_every_kubernetes_object_fits_its_schema():
    kubernetes_validate = pytest.importorskip("kubernetes_validate")
    objects = list(yaml.safe_load_all(manifests.kubernetes(SIZE, 4)))
    assert [each["kind"] for each in objects] == ["PersistentVolumeClaim", "Deployment", "Service"]
    for each in objects:
        kubernetes_validate.validate(each, "1.30", strict=True)
    claim, deployment, service = objects
    pod = deployment["spec"]["template"]
    assert service["spec"]["selector"].items() <= pod["metadata"]["labels"].items()
    volumes = [v.get("persistentVolumeClaim", {}) for v in pod["spec"]["volumes"]]
    assert {"claimName": claim["metadata"]["name"]} in volumes
    container = pod["spec"]["containers"][0]
    assert {"startupProbe", "readinessProbe", "livenessProbe", "resources"} <= container.keys()
    assert container["resources"]["limits"]["memory"] == "3432Mi"
    container["resource"] = {}
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(deployment, "1.30", strict=True)


def test_the_probe_is_a_shell_command_that_reads_the_state():
    """Its syntax is checked by bash; the address is replaced by a file with an answer."""
    probe = yaml.safe_load(manifests.compose(1))["services"]["server"]["healthcheck"]["test"]
    assert probe[:3] == ["CMD", "bash", "-c"] and "/labels/stable" in probe[3]
    assert subprocess.run(["bash", "-n", "-c", probe[3]]).returncode == 0
    asked = shlex.split(re.search(r"printf ('.*?')", probe[3])[1])[0]
    assert asked.startswith("GET /v1/models/captions") and asked.endswith(r"HTTP/1.0\r\n\r\n")
