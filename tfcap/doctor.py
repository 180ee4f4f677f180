"""Checks the machine, prepared data, a run and an export, and says how to mend what is wrong.

python -m tfcap.doctor
python -m tfcap.doctor --data_dir data/shapes --model_dir runs/xtransformer --export_dir served

Without flags it checks the machine. It prints one line per check, `ok`, `warning` or `problem` with
what to do, and changes nothing. The exit code is 0 without a problem, and 3 with one or more.
"""

import os
import platform
import sys
from collections.abc import Callable, Iterator
from importlib import metadata
from typing import Any, NamedTuple

from absl import flags
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

from tfcap import cli, files

OK, WARNING, PROBLEM = "ok", "warning", "problem"
SHOWN = ("tfcap", "tensorflow", "keras", "tf-models-official", "tensorflow-text", "numpy")
_BATCH = 64  # records that are read together


class Finding(NamedTuple):
    """The result of one check: what was found and what to do, in one line."""

    status: str
    text: str
    check: str = ""

    def __str__(self):
        return f"{self.status:<9}{self.check}: {self.text}"


def findings(
    data_dir: str | None = None, model_dir: str | None = None, export_dir: str | None = None
) -> Iterator[Finding]:
    """Checks the machine and each directory that is given.

    Args:
      data_dir: prepared data; every record is read.
      model_dir: a run; it is compared with `data_dir`, or with the data that it names.
      export_dir: an export, the directory of all versions.

    Yields:
      One finding per check. A check that fails does not stop the others.
    """
    yield _checked("versions", _versions)
    yield _checked("GPU", _gpus)
    yield _checked("Java", _java)
    if data_dir:
        yield from _data(data_dir)
    if model_dir:
        yield from _run_directory(model_dir, data_dir)
    if export_dir:
        yield from _export(os.path.normpath(export_dir))


def _checked(check: str, function: Callable[..., Finding], *arguments: Any) -> Finding:
    """Runs a check; an error in it becomes a problem."""
    try:
        return function(*arguments)._replace(check=check)
    except Exception as error:  # a fault of the program, too: the other checks go on
        kind = "" if isinstance(error, ValueError | OSError) else f"{type(error).__name__}: "
        return Finding(PROBLEM, kind + _one_line(error), check)


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())[:400] or type(error).__name__


def _versions() -> Finding:
    """Compares Python and the installed packages with the requirements of the package."""
    python = platform.python_version()
    shown = [f"{name} {_version(name) or 'missing'}" for name in SHOWN]
    text = f"Python {python} on {platform.system()} {platform.machine()}, {', '.join(shown)}"
    if not _version("tfcap"):
        return Finding(WARNING, f"{text}. tfcap is not installed: pip install -e .")
    described = metadata.metadata("tfcap")
    wanted = described["Requires-Python"] if "Requires-Python" in described else ""
    if not SpecifierSet(wanted).contains(python, prereleases=True):
        return Finding(PROBLEM, f"{text}. tfcap needs Python {wanted}: make such an environment")
    wrong = [
        f"'{needed.name}{needed.specifier}'"
        for needed in map(Requirement, metadata.requires("tfcap") or [])
        if needed.marker is None or needed.marker.evaluate({"extra": ""})
        if not needed.specifier.contains(_version(needed.name) or "0", prereleases=True)
        or not _version(needed.name)
    ]
    if wrong:
        return Finding(PROBLEM, f"{text}. Other versions are needed: pip install {' '.join(wrong)}")
    return Finding(OK, text)


def _version(name: str) -> str:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return ""


def _gpus() -> Finding:
    """Compares the GPUs that the driver shows with those that TensorFlow uses."""
    import tensorflow as tf

    used = tf.config.list_physical_devices("GPU")
    if unused := cli.unused_gpus(len(used)):
        return Finding(PROBLEM, f"{unused} To use them: {cli.USE_GPUS}")
    names = [
        tf.config.experimental.get_device_details(gpu).get("device_name", "GPU") for gpu in used
    ]
    return Finding(OK, ", ".join(names) or "none; TensorFlow computes on the processor")


def _java() -> Finding:
    from tfcap.metrics import java

    try:
        runtime = java.find_java()
    except java.JavaError as error:
        return Finding(WARNING, f"METEOR and SPICE are left out. {_one_line(error)}")
    text = f"Java {runtime.version} from {runtime.source}: {runtime.path}"
    try:
        java.check_spice(runtime, java.spice_folder())
    except java.JavaError as error:
        return Finding(WARNING, f"{text}. SPICE is left out. {_one_line(error)}")
    return Finding(OK, f"{text}; it computes METEOR and SPICE")


def _data(folder: str) -> Iterator[Finding]:
    loaded: list = []
    yield _checked("data", _load_data, folder, loaded)
    for data in loaded:
        for split in data.fingerprint["splits"]:
            yield _checked(f"records of {split}", _records, data, split)
        yield _checked("backbone of the data", _backbone, data.fingerprint, folder)


def _load_data(folder: str, loaded: list) -> Finding:
    """Reads the small files, and compares the sizes of the shards with those that were written."""
    from tfcap.data.prepared import PreparedData

    data = PreparedData.load(folder)
    for split in data.fingerprint["splits"]:
        data.check_split(split)
    if data.has_document_frequencies:
        data.document_frequencies()
    loaded.append(data)
    splits = [f"{name} {split['images']}" for name, split in data.fingerprint["splits"].items()]
    return Finding(
        OK,
        f"{folder} has {', '.join(splits)} images, at most {data.max_regions} regions of "
        f"{data.feature_dim} features, {len(data.vocab)} words",
    )


def _records(data: Any, split: str) -> Finding:
    """Reads every record. The features must be finite, the images and captions all there."""
    import tensorflow as tf

    from tfcap.data.record import parse_pictures

    ids, references = data.index(split).id, data.references(split)
    captions = done = 0
    with data.readable_errors():
        records = data.examples(split, tf.data.Dataset.range(len(ids))).batch(_BATCH)
        batches = -(-len(ids) // _BATCH)
        for batch in cli.progress(records, batches, f"batches of {split}"):
            found = data.parse(batch)
            if data.has_pictures:
                parse_pictures(batch, data.max_regions)
            for image, texts in zip(found["id"].numpy(), found["captions"], strict=True):
                if image != ids[done] or len(texts) != len(references.get(image, ())):
                    raise ValueError(
                        f"The record of image {image} does not fit index_{split} or "
                        f"references_{split}.json in {data.folder}. Run prepare again into a new "
                        "directory."
                    )
                captions += len(texts)
                done += 1
    return Finding(OK, f"{done} images with {captions} captions can be read, all numbers finite")


def _backbone(fingerprint: dict, folder: str) -> Finding:
    from tfcap.preparing.features.backbone import checked_weights

    made_by = fingerprint.get("backbone")
    if made_by is None:
        return Finding(OK, "none: the features came ready-made, so no picture can be captioned")
    path = checked_weights(made_by, folder)
    return Finding(OK, f"{made_by['name']}, " + (f"weights {path}" if path else "without weights"))


def _run_directory(directory: str, data_dir: str | None) -> Iterator[Finding]:
    loaded: list = []
    yield _checked("run", _weights, directory, "best", loaded)
    yield _checked("latest checkpoint", _weights, directory, "latest", [])
    for run in loaded:
        yield _checked("backbone of the run", _backbone, run.fingerprint, run.directory)
        yield _checked("caption", _caption_of_run, run)
        yield _checked("data of the run", _data_of_run, run, data_dir)


def _weights(directory: str, checkpoint: str, loaded: list) -> Finding:
    """Reads configuration, vocabulary and every tensor; the weights must be finite."""
    import numpy as np

    from tfcap import runs
    from tfcap.runs import checkpoints

    run = runs.load(directory, checkpoint)
    loaded.append(run)
    bad = []
    try:
        for name, value in checkpoints.tensors(run.checkpoint):
            weight = checkpoints.is_weight(name)
            if weight and not np.isfinite(np.asarray(value, np.float32)).all():
                bad.append(checkpoints.readable_name(name))
    except ValueError as error:
        raise ValueError(
            f"{run.checkpoint} is damaged: {error}. The next start of the training skips it; "
            "remove it, or restore it from a backup."
        ) from error
    if bad:
        raise ValueError(
            f"{run.checkpoint} holds NaN or infinity in {', '.join(bad[:3])}. Remove this "
            "checkpoint and those after it, lower trainer.optimizer_config.schedule.learning_rate, "
            "and train on."
        )
    size = runs.count_parameters(run.model)
    kind = run.params.task.model.type
    return Finding(OK, f"{run.checkpoint} has {size:,} finite weights of {kind}")


def _caption_of_run(run: Any) -> Finding:
    """Captions a drawn picture; a model of ready-made features gets features of zeros."""
    import tensorflow as tf

    from tfcap import runs
    from tfcap.runs.server import picture

    server = runs.server(run)
    inputs = {"image_bytes": tf.constant([picture()])}
    if server.backbone is None:
        features = tf.zeros([1, 2, run.model.feature_dim])
        inputs = {"features": features, "num_regions": tf.constant([2])}
    if server.search.samples:
        inputs["seed"] = tf.constant([1], tf.int64)
    return _caption(server.signatures()["serving_default"](**inputs))


def _caption(result: Any) -> Finding:
    import numpy as np

    caption, score = result["captions"].numpy()[0, 0].decode(), float(result["scores"][0, 0])
    if not np.isfinite(score):
        raise ValueError(f"the score of a drawn picture is {score}, so a layer divides by zero")
    if not caption:
        return Finding(
            WARNING,
            f"empty for a drawn picture (score {score:.3f}). Caption a photograph; if that is "
            "empty too, train longer or set min_length=3",
        )
    return Finding(OK, f"{caption!r} for a drawn picture, score {score:.3f}")


def _data_of_run(run: Any, data_dir: str | None) -> Finding:
    """Compares vocabulary and features with the data, `data_dir` or what the run names."""
    from tfcap import runs
    from tfcap.data.prepared import PreparedData

    folder = data_dir or run.data_dir
    if not files.is_directory(folder):
        return Finding(
            WARNING,
            f"{folder} does not exist. Captions can be made; for training and evaluation give "
            "--data_dir or task.data_dir",
        )
    runs.check_vocabulary(run, PreparedData.load(folder))
    return Finding(OK, f"{folder} has the vocabulary and the features of the run")


def _export(export_dir: str) -> Iterator[Finding]:
    loaded: list = []
    yield _checked("export", _load_export, export_dir, loaded)
    for model in loaded:
        yield _checked("caption of the export", _caption_of_export, model)


def _caption_of_export(loaded: Any) -> Finding:
    from tfcap.runs.server import call_signatures

    return _caption(call_signatures(loaded)["serving_default"])


def _load_export(export_dir: str, loaded: list) -> Finding:
    """Loads the version that TF Serving loads: the one with the highest number."""
    import tensorflow as tf

    again = f"Export again: python -m tfcap.export --model_dir RUN --export_dir {export_dir}"
    numbers = files.versions(export_dir) if os.path.isdir(export_dir) else []
    if not numbers:
        raise ValueError(f"{export_dir} has no version, a directory with a number. {again}")
    path = os.path.join(export_dir, str(numbers[-1]))
    try:
        loaded.append(tf.saved_model.load(path))
    except Exception as error:  # TensorFlow raises several unrelated types here
        raise ValueError(f"{path} cannot be loaded: {_one_line(error)} {again}") from error
    return Finding(OK, f"{path} can be loaded")


def _define_flags() -> None:
    flags.DEFINE_string("data_dir", None, "Prepared directory to check; reads every record.")
    flags.DEFINE_string("model_dir", None, "Directory of a training run to check.")
    flags.DEFINE_string("export_dir", None, "Export to check, the directory of all versions.")


def _run() -> None:
    given = flags.FLAGS
    found = []
    for finding in findings(given.data_dir, given.model_dir, given.export_dir):
        found.append(finding.status)
        print(finding, flush=True)
    warnings, problems = found.count(WARNING), found.count(PROBLEM)
    print(f"{len(found)} checks: {warnings} with a warning, {problems} with a problem")
    if problems:
        sys.exit(3)


def main() -> None:
    """Runs the command."""
    _define_flags()
    cli.run(_run)


if __name__ == "__main__":
    main()
