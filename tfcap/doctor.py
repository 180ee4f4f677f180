"""Checks the machine, prepared data, a run and an export, and says how to repair faults.

python -m tfcap.doctor
python -m tfcap.doctor --data_dir data/shapes --model_dir runs/xtransformer --export_dir served

Without flags it checks only the machine. Each line that it prints begins with `ok`, `warning` or
`problem`; a warning or a problem says what to do. The command changes nothing. The exit code is 3
if there is a problem, else 0.
"""

import io
import itertools
import os
import platform
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from importlib import metadata
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from packaging.requirements import Requirement

from tfcap import captioning, cli, errors, files, gpus, progress, segmentation
from tfcap.arguments import argument, arguments, takes

if TYPE_CHECKING:
    from tfcap.data.prepared import PreparedData
    from tfcap.runs import Run

OK = "ok"
WARNING = "warning"
PROBLEM = "problem"
_PAIRS = 10  # pictures that are named
_MANY = 0.1  # share of captions in another split of which the doctor warns
SHOWN = ("tfcap", "tensorflow", "keras", "tf-models-official", "tensorflow-text", "numpy")


class Finding(NamedTuple):
    """The result of one check. `str(finding)` is the line that the command prints.

    Attributes:
      status: "ok", "warning" or "problem".
      text: what the check saw and, for a warning or a problem, what to do.
      check: the name of the check, such as "Java".
    """

    status: str
    text: str
    check: str = ""

    def __str__(self) -> str:
        return f"{self.status:<9}{self.check}: {self.text}"


@arguments
class Doctor:
    """The arguments of the function `findings`, which are also the flags of the command."""

    data_dir: str | None = argument(
        "Prepared directory to check; reads every record, and compares the splits.",
        default=None,
        kw_only=False,
    )
    model_dir: str | None = argument(
        "Directory of a training run to check.", default=None, kw_only=False
    )
    export_dir: str | None = argument(
        "Export to check: the directory of all versions of a SavedModel, or a portable export.",
        default=None,
        kw_only=False,
    )


@takes(Doctor)
def findings(args: Doctor) -> Iterator[Finding]:
    """Checks the machine, and each of the directories that the caller names.

    A run is compared with the data in `data_dir`. If `data_dir` is not given, the run is compared
    with the data that it was trained on.

    Yields:
      A `Finding` for each result. A check that fails yields a problem, and the next check follows.
    """
    yield from _checked("versions", _versions)
    yield from _checked("GPU", _gpus)
    yield from _checked("Java", _java)
    if args.data_dir:
        yield from _checked("data", _data, args.data_dir)
    if args.model_dir:
        yield from _checked("run", _run_of, args.model_dir, args.data_dir)
        yield from _checked("latest checkpoint", _latest_weights, args.model_dir)
    if args.export_dir:
        yield from _checked("export", _export, os.path.normpath(args.export_dir))


def _checked(
    check: str, function: Callable[..., Iterable[Finding]], *args: Any
) -> Iterator[Finding]:
    """Yields the findings of `function(*args)`; an error is a finding, too."""
    try:
        for finding in function(*args):
            yield finding if finding.check else finding._replace(check=check)
    except Exception as error:  # a fault of the program, too: the other checks go on
        kind = "" if isinstance(error, ValueError | OSError) else f"{type(error).__name__}: "
        yield Finding(PROBLEM, kind + " ".join(str(error).split())[:400], check)


def _versions() -> Iterator[Finding]:
    text = f"Python {platform.python_version()} on {platform.system()} {platform.machine()}, "
    text += ", ".join(f"{name} {_version(name)}" for name in SHOWN)
    wrong = [
        f"'{needed.name}{needed.specifier}'"
        for needed in map(Requirement, metadata.requires("tfcap") or [])
        if (needed.marker is None or needed.marker.evaluate({"extra": ""}))
        and not needed.specifier.contains(_version(needed.name), prereleases=True)
    ]
    if wrong:
        yield Finding(PROBLEM, f"{text}. Other versions are needed: pip install {' '.join(wrong)}")
    else:
        yield Finding(OK, text)


def _version(name: str) -> str:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return "0"


def _gpus() -> Iterator[Finding]:
    import tensorflow as tf

    used = tf.config.list_physical_devices("GPU")
    wheels = gpus.wheel_libraries()
    for directory in gpus.other_cuda(os.environ.get("LD_LIBRARY_PATH", ""), wheels):
        yield Finding(
            WARNING,
            f"LD_LIBRARY_PATH names {directory}, whose CUDA libraries win over those that pip "
            "installed. If TensorFlow fails, remove this directory from LD_LIBRARY_PATH.",
        )
    unused = gpus.unused_gpus(len(used))
    if unused or (wheels and not used):
        missing = gpus.missing_libraries(gpus.start_log())
        what = gpus.explain_missing(missing, wheels) or f"To use them: {gpus.USE_GPUS}"
        yield Finding(PROBLEM if unused else WARNING, f"{unused} {what}".strip())
    elif not used:
        yield Finding(OK, "none; TensorFlow computes on the processor")
    built = tf.sysconfig.get_build_info().get("cuda_compute_capabilities", [])
    for number, gpu in enumerate(used):
        details = tf.config.experimental.get_device_details(gpu)
        name = details.get("device_name", "GPU")
        capability = details.get("compute_capability", (0, 0))
        failed = gpus.compute(number)
        if not failed:
            yield Finding(OK, f"{name} computes, in every precision and with XLA")
        elif gpus.has_kernels(capability, built):
            yield Finding(PROBLEM, f"{name}: {failed}.")
        else:
            yield Finding(
                PROBLEM,
                f"{name}: {failed}. TensorFlow {tf.__version__} has no kernels for compute "
                f"capability {'.'.join(map(str, capability))} ({', '.join(built)}). Use another "
                "card, with CUDA_VISIBLE_DEVICES, or CUDA_VISIBLE_DEVICES= for the processor.",
            )


def _java() -> Iterator[Finding]:
    from tfcap.metrics import java

    missing = "METEOR and SPICE are"
    try:
        runtime = java.find_java()
        missing = "SPICE is"
        java.check_spice(runtime, java.spice_directory())
    except java.JavaError as error:
        yield Finding(WARNING, f"{missing} left out. {error}")
    else:
        text = f"Java {runtime.version} from {runtime.source}: {runtime.path}"
        yield Finding(OK, f"{text}; it computes METEOR and SPICE")


def _data(directory: str) -> Iterator[Finding]:
    from tfcap.data.prepared import PreparedData

    data = PreparedData.load(directory)
    splits = data.fingerprint["splits"]
    for split in splits:
        data.check_split(split)
    if data.has_document_frequencies:
        data.document_frequencies()
    images = ", ".join(f"{name} {split['images']}" for name, split in splits.items())
    yield Finding(
        OK,
        f"{directory} has {images} images, at most {data.max_regions} regions of "
        f"{data.feature_dim} features, {len(data.vocab)} words",
    )
    if note := segmentation.other_version(data.fingerprint):
        yield Finding(WARNING, note)
    described: dict[str, np.ndarray] = {}
    for split in splits:
        yield from _checked(f"records of {split}", _records, data, split, described)
    yield from _checked("backbone of the data", _backbone, data.fingerprint, directory)
    yield from _checked("same pictures", _same_pictures, data, described)
    yield from _checked("same captions", _same_captions, data)


def _records(
    data: "PreparedData", split: str, described: dict[str, np.ndarray]
) -> Iterator[Finding]:
    """Reads every record of a split, and describes its images in `described` for `data.leaks`."""
    import tensorflow as tf

    from tfcap.data import leaks
    from tfcap.data.record import FRAMING, parse_pictures

    index = data.index(split)
    references = data.references(split)
    rows: list[np.ndarray] = []
    parts: list[np.ndarray] = []

    @tf.autograph.experimental.do_not_convert
    def read(batch: tf.Tensor) -> tuple[tf.Tensor, ...]:
        images = data.parse(batch)
        sizes = tf.cast(tf.strings.length(batch), tf.int64)
        numbers = tf.stack([images["id"], images["captions"].row_lengths(), sizes], axis=1)
        if data.has_pictures:
            return numbers, parse_pictures(batch, data.max_regions)["picture"]
        return numbers, images["features"], images["mask"]

    with data.readable_errors():
        batches = data.all_examples(split).batch(64).map(read)
        total = -(-len(index.id) // 64)
        for batch in progress.progress(batches, total, f"batches of {split}"):
            numbers, *contents = (values.numpy() for values in batch)
            rows.append(numbers)
            if data.has_pictures:
                parts += leaks.describe_pictures(map(io.BytesIO, contents[0]))
            else:
                parts.append(leaks.describe_features(*contents))
    ids, captions, sizes = np.vstack(rows).T
    ends = np.cumsum(sizes + FRAMING)
    starts = np.concatenate([[0], ends[:-1]])
    starts -= starts[np.searchsorted(index.shard, index.shard)]  # in the file of the record
    expected = [len(references.get(image, ())) for image in index.id.tolist()]
    wrong = (ids != index.id) | (captions != expected) | (starts != index.offset)
    if wrong.any():
        raise ValueError(
            f"In {data.folder} the record of image {ids[wrong][0]} does not agree with "
            f"{split}.index.npz or references_{split}.json. Prepare the data again, into a new "
            "directory."
        )
    described[split] = np.vstack(parts)[np.isin(index.id, _originals(data, split))]
    text = f"{len(ids)} images with {captions.sum()} captions can be read, all numbers finite"
    yield Finding(OK, text)


def _same_pictures(data: "PreparedData", described: Mapping[str, np.ndarray]) -> Iterator[Finding]:
    """Names images of different splits that are nearly the same.

    Args:
      data: the prepared data.
      described: name of the split -> descriptions of its pictures if the records have them, else of
        its features. A split whose records cannot be read is missing.
    """
    from tfcap.data import leaks

    if len(described) < 2:
        return
    what = "pictures"
    if not data.has_pictures:
        paths = {split: data.picture_paths(split) for split in described}
        number = sum(map(len, paths.values()))
        if number and not data.frames:
            missing = sum(map(len, described.values())) - number
            what += f"; {missing} of them are missing in {data.images}" if missing else ""
            described = {split: _described(data, split, own) for split, own in paths.items()}
        else:
            what = "features"
            what += " of clips" if data.frames else ", because no picture file is there"
            described = leaks.centred(described)
    names = {}
    for split in described:
        by_image = data.file_names(split)
        names[split] = [errors.escaped(by_image[image]) for image in _originals(data, split)]
    found = False
    for first, second in itertools.combinations(described, 2):
        place, alike = leaks.most_alike(described[second], described[first])
        same = [i for i in np.argsort(-alike, kind="stable") if alike[i] >= leaks.SAME]
        if same:
            found = True
            pairs = [f"{names[second][i]} and {names[first][place[i]]}" for i in same[:_PAIRS]]
            yield Finding(
                WARNING,
                f"{len(same)} of {len(alike)} images of {second} are nearly the same as images of "
                f"{first} (compared by their {what}): {', '.join(pairs)}. Leave them out of "
                f"{first}, and prepare the data again; otherwise the scores of {second} are too "
                "high.",
            )
    if not found:
        yield Finding(OK, f"none in two splits (compared by their {what})")


def _originals(data: "PreparedData", split: str) -> list[int]:
    """Returns the ids of the images of a split in order, without mirrored copies of others."""
    mirrored = data.mirrored(split)
    return [image for image in data.index(split).id.tolist() if image not in mirrored]


def _described(data: "PreparedData", split: str, paths: Mapping[int, str]) -> np.ndarray:
    """Describes the picture files of a split; a missing file resembles no other."""
    from tfcap.data import leaks

    files_of_split = [paths.get(image, "") for image in _originals(data, split)]
    descriptions = leaks.describe_pictures(files_of_split)
    bar = progress.progress(descriptions, len(files_of_split), f"pictures of {split}", "picture")
    return np.stack(list(bar))


def _same_captions(data: "PreparedData") -> Iterator[Finding]:
    """Counts captions that stand in two splits, and sentences of reports that are equal."""
    from tfcap.data import leaks

    splits = data.fingerprint["splits"]
    way = data.vocab.tokens

    def references(split: str) -> dict[int, list[str]]:
        mirrored = data.mirrored(split)
        captions = data.references(split)
        return {image: texts for image, texts in captions.items() if image not in mirrored}

    pairs = leaks.shared_captions(references, list(splits), way)
    for (first, second), shared in pairs.items():
        text = f"{shared.repeated} of {shared.total} captions of {second} stand in {first} as well"
        if shared.repeated:
            text += f", {_percent(shared.repeated, shared.total)}: {_quoted(shared.examples)}"
        if shared.repeated > _MANY * shared.total:
            text += f". A model that has learnt {first} by heart scores well on {second}"
        yield Finding(WARNING if shared.repeated > _MANY * shared.total else OK, text)
    if any(split["captions"] > split["images"] for split in splits.values()):
        return
    texts = itertools.chain.from_iterable(references(split).values() for split in splits)
    sentences = leaks.repeated_sentences(itertools.chain.from_iterable(texts), way)
    if sentences.repeated:
        examples = ", ".join(f"{text!r} in {number}" for text, number in sentences.examples)
        yield Finding(
            OK,
            f"{sentences.repeated} of {sentences.total} sentences stand in several captions, "
            f"{_percent(sentences.repeated, sentences.total)}: {examples}",
        )


def _percent(part: int, whole: int) -> str:
    return f"{100 * part / whole:.1f} %"


def _quoted(texts: Iterable[str]) -> str:
    return ", ".join(map(repr, texts))


def _backbone(fingerprint: Mapping[str, Any], directory: str) -> Iterator[Finding]:
    from tfcap.backbones.saved import checked_weights

    made_by = fingerprint.get("backbone")
    if made_by is None:
        yield Finding(OK, "none: the features came ready-made, so no picture can be captioned")
    else:
        path = checked_weights(made_by, directory)
        yield Finding(OK, f"{made_by['name']}, weights {path or 'none'}")


def _run_of(directory: str, data_dir: str | None) -> Iterator[Finding]:
    from tfcap import runs
    from tfcap.serving import saved_model

    run = runs.load(directory)
    yield from _weights(run)
    yield from _checked("backbone of the run", _backbone, run.fingerprint, run.directory)
    yield from _checked("caption", lambda: [_caption(saved_model.server(run).signatures())])
    yield from _checked("data of the run", _data_of_run, run, data_dir)


def _latest_weights(directory: str) -> Iterator[Finding]:
    from tfcap import runs

    yield from _weights(runs.load(directory, "latest"))


def _weights(run: "Run") -> Iterator[Finding]:
    """Reads every tensor of a checkpoint, and checks that the weights are finite."""
    import numpy as np
    import tensorflow as tf

    from tfcap import runs
    from tfcap.runs import checkpoints

    bad = []
    with checkpoints.damage_named(run.checkpoint):
        reader = tf.train.load_checkpoint(run.checkpoint)
        for name in reader.get_variable_to_shape_map():
            value = reader.get_tensor(name)
            weight = checkpoints.is_weight(name)
            if weight and not np.isfinite(np.asarray(value, np.float32)).all():
                bad.append(checkpoints.readable_name(name))
    if bad:
        yield Finding(
            PROBLEM,
            f"{run.checkpoint} holds NaN or infinity in {', '.join(bad[:3])}. Remove this "
            "checkpoint and those after it, lower trainer.optimizer_config.schedule.learning_rate, "
            "and train on.",
        )
    else:
        size = runs.count_parameters(run.model)
        system = run.params.task.model.type
        yield Finding(OK, f"{run.checkpoint} has {size:,} finite weights of {system}")


def _caption(signatures: Mapping[str, Any]) -> Finding:
    """Captions a drawn test picture; a model of ready-made features gets zeros instead."""
    from tfcap.serving.saved_model import call_signatures

    result = call_signatures(signatures)["serving_default"]
    caption = result["captions"].numpy()[0, 0].decode()
    score = float(result["scores"][0, 0])
    if not caption:
        return Finding(
            WARNING,
            f"empty for a drawn picture (score {score:.3f}). Caption a photograph; if that is "
            "empty too, train longer or set min_length=3",
        )
    return Finding(OK, f"{caption!r} for a drawn picture, score {score:.3f}")


def _data_of_run(run: "Run", data_dir: str | None) -> Iterator[Finding]:
    from tfcap import runs
    from tfcap.data.prepared import PreparedData

    directory = data_dir or run.data_dir
    if files.is_directory(directory):
        runs.check_vocabulary(run, PreparedData.load(directory))
        yield Finding(OK, f"{directory} has the vocabulary and the features of the run")
    else:
        yield Finding(
            WARNING,
            f"{directory} does not exist. Captions can be made; for training and evaluation give "
            "`data_dir` or task.data_dir",
        )


def _export(export_dir: str) -> Iterator[Finding]:
    from tfcap.serving.standalone.caption import Captioner, resized

    again = f"Export again: python -m tfcap.export --model_dir RUN --export_dir {export_dir}"
    if portable := captioning.portable_directory(export_dir):
        try:
            captioner = Captioner(portable)
        except Exception as error:  # a damaged file raises errors of all kinds
            reason = " ".join(str(error).split()).rstrip(".")
            raise ValueError(f"{export_dir} cannot be loaded: {reason}. {again}") from error
        if "regions" in captioner.card:
            shape = 1, captioner.card["regions"], captioner.card["width"]
            [result] = captioner.caption(np.zeros(shape, np.float32), [1])
        else:
            black = resized(np.zeros([64, 64, 3], np.uint8), captioner.card)
            [result] = captioner.caption(black[None])
        yield Finding(OK, f"the export {export_dir} captions zeros: {result['captions'][0]}")
        return
    import tensorflow as tf

    numbers = files.versions(export_dir) if os.path.isdir(export_dir) else []
    if not numbers:
        raise ValueError(
            f"{export_dir} has no version, a subdirectory whose name is a number. {again}"
        )
    path = os.path.join(export_dir, str(numbers[-1]))
    try:
        loaded = tf.saved_model.load(path)
    except Exception as error:  # TensorFlow raises several unrelated types here
        reason = " ".join(str(error).split()).rstrip(".")
        raise ValueError(f"The SavedModel {path} cannot be loaded: {reason}. {again}") from error
    yield Finding(OK, f"{path} can be loaded")
    yield from _checked("caption of the export", lambda: [_caption(loaded.signatures)])


def _define_flags() -> None:
    cli.define(Doctor)


def _run() -> None:
    statuses = []
    for finding in findings(**cli.values(Doctor)):
        statuses.append(finding.status)
        print(cli.with_flags(str(finding)), flush=True)
    warnings = statuses.count(WARNING)
    problems = statuses.count(PROBLEM)
    print(f"{len(statuses)} checks: {warnings} with a warning, {problems} with a problem")
    if problems:
        sys.exit(3)


def main() -> None:
    _define_flags()
    cli.run(_run)


if __name__ == "__main__":
    main()
