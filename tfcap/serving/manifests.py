"""Writes the manifests that start servers of a bundle: for Compose, Prometheus, Kubernetes, KServe.

The fields of an InferenceService are those of KServe's v1beta1, github.com/kserve/kserve,
pkg/apis/serving/v1beta1/component.go.
"""

import dataclasses
import math
from typing import Any

import yaml

from tfcap.images import SERVED_PIXELS
from tfcap.serving.server_files import (
    BATCHING,
    FOLDER,
    METRICS,
    MODELS,
    MONITORING,
    NAME,
)

COMPOSE, PROMETHEUS = "compose.yaml", "prometheus.yml"
KUBERNETES, KSERVE = "kubernetes.yaml", "kserve.yaml"
IMAGE = "tensorflow/serving:2.20.0"
_PROMETHEUS_IMAGE = "prom/prometheus:v3.5.0"
GRPC, REST = 8500, 8501
_UID = 10001  # the server needs no rights of root
COMMAND = [
    "tensorflow_model_server",
    f"--port={GRPC}",
    f"--rest_api_port={REST}",
    "--rest_api_timeout_in_ms=60000",
    f"--model_config_file={FOLDER}/{MODELS}",
    "--model_config_file_poll_wait_seconds=60",  # a label that is moved counts within a minute
    # Otherwise a label must not be in the file while its version is loading.
    "--allow_version_labels_for_unavailable_models=true",
    "--enable_batching=true",
    f"--batching_parameters_file={FOLDER}/{BATCHING}",
    f"--monitoring_config_file={FOLDER}/{MONITORING}",
]
# The image has bash, but neither curl nor wget. The server answers also while it loads a version.
_ALIVE = (
    f"exec 3<>/dev/tcp/127.0.0.1/{REST} && "
    f"printf 'GET /v1/models/{NAME}/labels/stable HTTP/1.0\\r\\n\\r\\n' >&3 && "
    'grep -q \'"state": "AVAILABLE"\' <&3'
)


@dataclasses.dataclass(frozen=True)
class Needs:
    """What a server needs.

    Attributes:
      memory: MiB.
      cores: processor cores.
    """

    memory: int
    cores: int


def memory(model_bytes: int, threads: int, max_pixels: int) -> int:
    """Returns how many MiB of memory a server needs.

    While a version is replaced, two are loaded: three times the model. The server itself and its
    batches take 1 GiB. A picture of 50 million pixels takes half a GiB while it is decoded and
    turned. A batch decodes at most four pictures at once, and each thread has a batch. More than
    four are decoded at once only with more than four threads.

    Args:
      model_bytes: size of the SavedModel.
      threads: threads of the server for batches, as many as it has cores.
      max_pixels: the largest picture that the export reads.
    """
    pictures = max(4, threads)
    decoding = pictures * 512 * max_pixels / SERVED_PIXELS
    return 1024 + math.ceil(decoding) + 3 * model_bytes // 2**20


def compose(needs: Needs) -> str:
    """Returns compose.yaml: the server with a health check, and Prometheus that reads its metrics.

    Both answer on this machine only.
    """
    shared = {
        "restart": "unless-stopped",
        "read_only": True,
        "security_opt": ["no-new-privileges:true"],
        "cap_drop": ["ALL"],
    }
    server = {
        "image": IMAGE,
        "entrypoint": COMMAND,
        "user": f"{_UID}:{_UID}",
        "ports": [f"127.0.0.1:{port}:{port}" for port in (GRPC, REST)],
        "volumes": [f".:{FOLDER}:ro"],
        "tmpfs": ["/tmp"],
        "mem_limit": f"{needs.memory}m",
        "healthcheck": {
            "test": ["CMD", "bash", "-c", _ALIVE.replace("$", "$$")],
            "interval": "10s",
            "timeout": "5s",
            "retries": 3,
            "start_period": "120s",
        },
        **shared,
    }
    prometheus = {
        "image": _PROMETHEUS_IMAGE,
        "ports": ["127.0.0.1:9090:9090"],
        "volumes": [f"./{PROMETHEUS}:/etc/prometheus/{PROMETHEUS}:ro", "metrics:/prometheus"],
        "depends_on": {"server": {"condition": "service_healthy"}},
        **shared,
    }
    return _yaml(
        {
            "name": NAME,
            "services": {"server": server, "prometheus": prometheus},
            "volumes": {"metrics": {}},
        }
    )


def prometheus() -> str:
    """Returns prometheus.yml, which reads the metrics of the server of compose.yaml."""
    target = {"targets": [f"server:{REST}"]}
    return _yaml(
        {
            "global": {"scrape_interval": "15s"},
            "scrape_configs": [
                {"job_name": NAME, "metrics_path": METRICS, "static_configs": [target]}
            ],
        }
    )


def kubernetes(model_bytes: int, needs: Needs) -> str:
    """Returns kubernetes.yaml: a volume claim for the bundle, a Deployment and a Service.

    Args:
      model_bytes: size of the SavedModel.
      needs: what a server needs.
    """
    deployment = {
        "replicas": 2,
        "selector": {"matchLabels": _NAMES},
        "strategy": _ROLLING,
        "template": {
            "metadata": {"labels": _NAMES, "annotations": _SCRAPED},
            "spec": _pod(needs),
        },
    }
    ports = [
        {"name": name, "port": p, "targetPort": name}
        for name, p in (("grpc", GRPC), ("rest", REST))
    ]
    return "---\n".join(
        [
            _claim(model_bytes, "Deployment"),
            _object("apps/v1", "Deployment", NAME, deployment),
            _object("v1", "Service", NAME, {"selector": _NAMES, "ports": ports}),
        ]
    )


def kserve(model_bytes: int, needs: Needs) -> str:
    """Returns kserve.yaml: a volume claim for the bundle, and an InferenceService of KServe.

    KServe makes the Deployment, the Service and the autoscaler. The server is that of
    kubernetes.yaml, so labels, batches and probes are the same.

    Args:
      model_bytes: size of the SavedModel.
      needs: what a server needs.
    """
    pod = _pod(needs)
    (container,) = pod["containers"]
    container["name"] = "kserve-container"  # KServe looks for this name
    container["ports"].reverse()  # the first one gets port 80 of the Service
    # Without it KServe sets its default of one core, which may be below what is requested.
    container["resources"]["limits"]["cpu"] = str(needs.cores)
    predictor = {
        "annotations": _SCRAPED,
        "minReplicas": 2,
        "maxReplicas": 8,
        "scaleMetric": "cpu",
        "scaleTarget": 80,
        "timeout": 60,
        "deploymentStrategy": _ROLLING,
        **pod,
    }
    # A Deployment of Kubernetes. KServe 0.16 and later also call it Standard; the other mode,
    # Knative, allows only one port and does not mount every volume.
    mode = {"serving.kserve.io/deploymentMode": "RawDeployment"}
    service = _object(
        "serving.kserve.io/v1beta1", "InferenceService", NAME, {"predictor": predictor}, mode
    )
    return "---\n".join([_claim(model_bytes, "InferenceService"), service])


_NAMES = {"app.kubernetes.io/name": NAME}
_SCRAPED = {
    "prometheus.io/scrape": "true",
    "prometheus.io/path": METRICS,
    "prometheus.io/port": str(REST),
}
_ROLLING = {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": 0, "maxSurge": 1}}


def _pod(needs: Needs) -> dict[str, Any]:
    """Returns the specification of a pod with one server."""
    probe = {"exec": {"command": ["bash", "-c", _ALIVE]}, "timeoutSeconds": 5}
    size = f"{needs.memory}Mi"
    container = {
        "name": "server",
        "image": IMAGE,
        "command": COMMAND,
        "ports": [
            {"name": "grpc", "containerPort": GRPC},
            {"name": "rest", "containerPort": REST},
        ],
        "startupProbe": {**probe, "periodSeconds": 5, "failureThreshold": 60},
        "readinessProbe": {**probe, "periodSeconds": 10, "failureThreshold": 2},
        "livenessProbe": {"tcpSocket": {"port": "rest"}, "periodSeconds": 20},
        "resources": {
            "requests": {"cpu": str(needs.cores), "memory": size},
            "limits": {"memory": size},
        },
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        },
        "volumeMounts": [
            {"name": "models", "mountPath": FOLDER, "readOnly": True},
            {"name": "tmp", "mountPath": "/tmp"},
        ],
    }
    return {
        "containers": [container],
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": _UID,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "terminationGracePeriodSeconds": 60,
        "volumes": [
            {"name": "models", "persistentVolumeClaim": {"claimName": _CLAIM}},
            {"name": "tmp", "emptyDir": {}},
        ],
    }


_CLAIM = f"{NAME}-models"


def _claim(model_bytes: int, reader: str) -> str:
    """Returns the volume claim for the bundle that the pods of `reader` mount."""
    claim = {
        "accessModes": ["ReadWriteMany"],  # it is filled while several servers read it
        "resources": {"requests": {"storage": f"{max(1, 8 * model_bytes // 2**30)}Gi"}},
    }
    return (
        f"# Copy the bundle into the volume before the {reader} starts. The storage class\n"
        "# must allow ReadWriteMany: later versions are copied while the servers read.\n"
    ) + _object("v1", "PersistentVolumeClaim", _CLAIM, claim)


def _object(
    version: str, kind: str, name: str, spec: dict, annotations: dict[str, str] | None = None
) -> str:
    metadata: dict[str, Any] = {"name": name, "labels": _NAMES}
    if annotations:
        metadata["annotations"] = annotations
    return _yaml({"apiVersion": version, "kind": kind, "metadata": metadata, "spec": spec})


def _yaml(content: dict[str, Any]) -> str:
    class Plain(yaml.SafeDumper):
        """Writes every value in full: an alias is hard to read, and some readers refuse it."""

        def ignore_aliases(self, data):
            return True

    return yaml.dump(content, Dumper=Plain, sort_keys=False, width=100, allow_unicode=True)
