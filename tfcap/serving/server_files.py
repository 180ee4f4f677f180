"""Writes the text files that TF Serving reads at its start: models, batches and monitoring."""

import os
import pathlib

from google.protobuf import text_format
from tensorflow_serving.config import model_server_config_pb2

from tfcap.files import replacing, versions
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
    model = _own(_read(export_dir))
    if model and (known := model.version_labels.get("stable")) in versions(export_dir):
        stable = known
    return {"stable": stable, "canary": newest}


def write_models(export_dir: str, labelled: dict[str, int]) -> None:
    """Writes models.config: the versions with labels are served, and no others.

    What a person has written there stays, but for comments: other models, other labels of versions
    that exist, and further fields of this model.

    Raises:
      ValueError: models.config cannot be read.
      OSError: it cannot be written.
    """
    config = _read(export_dir)
    model, there = _own(config), versions(export_dir)
    if model is None:
        model = config.model_config_list.config.add(name=NAME, base_path=FOLDER)
    model.model_platform = "tensorflow"
    for label, version in dict(model.version_labels).items():
        if version not in there:
            del model.version_labels[label]
    model.version_labels.update(labelled)
    served = sorted(set(model.version_labels.values()))
    del model.model_version_policy.specific.versions[:]
    model.model_version_policy.specific.versions.extend(served)
    with replacing(os.path.join(export_dir, MODELS)) as temporary:
        pathlib.Path(temporary).write_text(text_format.MessageToString(config), encoding="utf-8")


def _own(
    config: model_server_config_pb2.ModelServerConfig,
) -> "model_server_config_pb2.ModelConfig | None":
    """Returns the entry of this bundle: that of its directory, or of its name, or the only one."""
    every = list(config.model_config_list.config)
    for model in every:
        if model.base_path.rstrip("/") == FOLDER:
            return model
    for model in every:
        if model.name == NAME:
            return model
    return every[0] if len(every) == 1 else None


def _read(export_dir: str) -> model_server_config_pb2.ModelServerConfig:
    """Reads models.config; an empty message if there is none. Raises ValueError if it is bad."""
    config = model_server_config_pb2.ModelServerConfig()
    path = os.path.join(export_dir, MODELS)
    if os.path.exists(path):
        try:
            with open(path, encoding="utf-8") as file:
                text_format.Parse(file.read(), config)
        except (text_format.ParseError, UnicodeDecodeError) as error:
            raise ValueError(
                f"{path} is not a ModelServerConfig: {error}. Correct or delete it."
            ) from None
    return config


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
