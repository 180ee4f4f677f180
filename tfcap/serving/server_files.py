"""Writes the text files that TF Serving reads at its start: models, batches and monitoring."""

import os

from google.protobuf import text_format
from tensorflow_serving.config import model_server_config_pb2

from tfcap.files import versions
from tfcap.serving.timing import Batching

MODELS, BATCHING, MONITORING = "models.config", "batching.config", "monitoring.config"
NAME = "captions"  # of the model on the server
FOLDER = f"/models/{NAME}"  # where the server's container has the bundle
METRICS = "/monitoring/prometheus/metrics"


def labels(export_dir: str, newest: int) -> dict[str, int]:
    """Finds which versions have the labels `stable` and `canary`.

    `canary` is the newest version. `stable` stays what models.config says, until a person changes
    it there; without a models.config, or if that version is gone, it is the newest version.

    Raises:
      ValueError: models.config cannot be read.
    """
    stable = newest
    path = os.path.join(export_dir, MODELS)
    if os.path.exists(path):
        config = model_server_config_pb2.ModelServerConfig()
        try:
            with open(path, encoding="utf-8") as file:
                text_format.Parse(file.read(), config)
        except (text_format.ParseError, UnicodeDecodeError) as error:
            raise ValueError(
                f"{path} is not a ModelServerConfig: {error}. Correct or delete it."
            ) from None
        known = [m.version_labels.get("stable") for m in config.model_config_list.config]
        if known and known[0] in versions(export_dir):
            stable = known[0]
    return {"stable": stable, "canary": newest}


def models(labelled: dict[str, int]) -> str:
    """Returns models.config: the versions with labels are served, and no others."""
    config = model_server_config_pb2.ModelServerConfig()
    model = config.model_config_list.config.add()
    model.name, model.base_path, model.model_platform = NAME, FOLDER, "tensorflow"
    model.model_version_policy.specific.versions.extend(sorted(set(labelled.values())))
    for label, version in labelled.items():
        model.version_labels[label] = version
    return text_format.MessageToString(config)


def batching(how: Batching) -> str:
    """Returns batching.config, the text of TF Serving's message BatchingParameters.

    Images with fewer regions are padded with any number, because the model does not read regions
    beyond `num_regions`.
    """
    lines = [f"# {note}" for note in _reasons(how)]
    lines += [
        f"max_batch_size {{ value: {how.largest} }}",
        f"batch_timeout_micros {{ value: {round(how.timeout * 1e6)} }}",
        f"max_enqueued_batches {{ value: {how.queue} }}",
        f"num_batch_threads {{ value: {how.threads} }}",
        *(f"allowed_batch_sizes: {size}" for size in how.sizes),
        "pad_variable_length_inputs: true",
    ]
    return "\n".join(lines) + "\n"


def _reasons(how: Batching) -> list[str]:
    rows = [
        f"  a batch of {size}: {1000 * seconds:.0f} ms, {size / seconds:.1f} pictures/s"
        for size, seconds in how.seconds.items()
    ]
    return [
        "Measured when the model was exported, on the machine that exported it:",
        *rows,
        "max_batch_size is the smallest size with 90 % of the highest throughput. A request waits",
        "for others at most a tenth of the time that it takes alone, from 1 to 20 ms. The queue",
        f"holds the work of 10 s. {how.threads} threads are the cores of that machine.",
    ]


def monitoring() -> str:
    """Returns monitoring.config, the text of TF Serving's message MonitoringConfig."""
    return f'prometheus_config {{\n  enable: true\n  path: "{METRICS}"\n}}\n'
