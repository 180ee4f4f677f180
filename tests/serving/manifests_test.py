"""The manifests fit the schemas of Docker Compose, Kubernetes and KServe, and name the files."""

import importlib.resources
import json
import re
import shlex
import subprocess

import pytest
import yaml

pytest.importorskip("tensorflow_serving")
from tfcap.images import SERVED_PIXELS  # noqa: E402
from tfcap.serving import manifests, server_files  # noqa: E402  it imports tensorflow_serving

SIZE = 120 * 2**20  # bytes of a model
NEEDS = manifests.Needs(manifests.memory(SIZE, 4, SERVED_PIXELS), 4)


def test_the_memory_grows_with_threads_and_pictures():
    assert NEEDS.memory == 1024 + 4 * 512 + 3 * 120 == manifests.memory(SIZE, 2, SERVED_PIXELS)
    assert manifests.memory(0, 8, SERVED_PIXELS) == 1024 + 8 * 512
    assert manifests.memory(0, 8, 2 * SERVED_PIXELS) == 1024 + 8 * 1024
    assert manifests.memory(0, 1, 3_000_000) == 1024 + 123


def test_compose_fits_the_specification():
    jsonschema, check = pytest.importorskip("jsonschema"), pytest.importorskip("check_jsonschema")
    path = importlib.resources.files(check) / "builtin_schemas/vendor/compose-spec.json"
    schema = json.loads(path.read_text())
    content = yaml.safe_load(manifests.compose(NEEDS))
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
    objects = list(yaml.safe_load_all(manifests.kubernetes(SIZE, NEEDS)))
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


# Fields of a predictor beside those of a pod, from KServe 0.20:
# config/crd/full/serving.kserve.io_inferenceservices.yaml, and the names of metrics in
# pkg/apis/serving/v1beta1/component.go. Kubernetes' own schema checks the strategy and the pod.
COUNT = {"type": "integer", "minimum": 0}
TEXTS = {"type": "object", "additionalProperties": {"type": "string"}}
PREDICTOR = {
    "annotations": TEXTS,
    "labels": TEXTS,
    "minReplicas": COUNT,
    "maxReplicas": COUNT,
    "scaleMetric": {"enum": ["cpu", "memory", "concurrency", "rps"]},
    "scaleTarget": COUNT,
    "timeout": COUNT,
}


def _check_inference_service(service, kubernetes_validate):
    """Raises if an InferenceService does not fit, as the Deployment that KServe makes of it."""
    jsonschema = pytest.importorskip("jsonschema")
    assert service.keys() == {"apiVersion", "kind", "metadata", "spec"}
    assert (service["apiVersion"], service["kind"]) == (
        "serving.kserve.io/v1beta1",
        "InferenceService",
    )
    assert service["spec"].keys() == {"predictor"}
    predictor = dict(service["spec"]["predictor"])
    strategy = predictor.pop("deploymentStrategy")
    own = {key: predictor.pop(key) for key in list(predictor) if key in PREDICTOR}
    jsonschema.validate(own, {"properties": PREDICTOR})
    labels = {"app": "isvc.captions-predictor"}
    pod = {"metadata": {"labels": labels, "annotations": own["annotations"]}, "spec": predictor}
    spec = {"replicas": own["minReplicas"], "selector": {"matchLabels": labels}, "template": pod}
    made = {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": service["metadata"]}
    made["spec"] = {**spec, "strategy": strategy}
    kubernetes_validate.validate(made, "1.30", strict=True)


def test_the_inference_service_of_kserve_fits_its_schema():
    kubernetes_validate = pytest.importorskip("kubernetes_validate")
    claim, service = yaml.safe_load_all(manifests.kserve(SIZE, NEEDS))
    kubernetes_validate.validate(claim, "1.30", strict=True)
    _check_inference_service(service, kubernetes_validate)
    predictor = service["spec"]["predictor"]
    (container,) = predictor["containers"]
    assert container["name"] == "kserve-container" and container["ports"][0]["name"] == "rest"
    assert {"startupProbe", "readinessProbe", "livenessProbe"} <= container.keys()
    # A default limit of KServe would be below what is requested.
    asked, limits = (container["resources"][key] for key in ("requests", "limits"))
    assert asked == limits == {"cpu": "4", "memory": "3432Mi"}
    volumes = [v.get("persistentVolumeClaim", {}) for v in predictor["volumes"]]
    assert {"claimName": claim["metadata"]["name"]} in volumes
    predictor["minReplica"] = predictor.pop("minReplicas")
    with pytest.raises((kubernetes_validate.ValidationError, KeyError)):
        _check_inference_service(service, kubernetes_validate)


def test_the_probe_is_a_shell_command_that_reads_the_state():
    """Its syntax is checked by bash; the address is replaced by a file with an answer."""
    probe = yaml.safe_load(manifests.compose(NEEDS))["services"]["server"]["healthcheck"]["test"]
    assert probe[:3] == ["CMD", "bash", "-c"] and "/labels/stable" in probe[3]
    assert subprocess.run(["bash", "-n", "-c", probe[3]]).returncode == 0
    asked = shlex.split(re.search(r"printf ('.*?')", probe[3])[1])[0]
    assert asked.startswith("GET /v1/models/captions") and asked.endswith(r"HTTP/1.0\r\n\r\n")
