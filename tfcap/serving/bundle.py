"""Exports a captioner and writes all that a server needs beside it."""

import os
import pathlib
import re
import shutil
from typing import Any

import tensorflow as tf

from tfcap import unfinished
from tfcap.files import replacing, replacing_directory, sizes, versions
from tfcap.runs import CaptionServer, Run, best_directory, read_best
from tfcap.runs.savedmodel import export
from tfcap.serving import card, manifests, samples, server_files, timing, warmup

CLIENT = pathlib.Path(__file__).parent / "client"  # copied as it is
_PICTURES = 12  # of warm-up requests; more are repeated
_TEMPORARY = re.compile(r"\.(?:tmp|old)-\d+-[0-9a-f]{8}-(.+)")  # names of `tfcap.files`


def write_bundle(
    served: CaptionServer,
    run: Run,
    export_dir: str,
    warmup_images: str | None = None,
    results: str | None = None,
    references: str | None = None,
) -> str:
    """Writes the next version of a SavedModel with warm-up requests, and the files beside it.

    The version appears when its warm-up requests have been replayed. Then the other files are
    replaced one by one; each appears whole.

    Args:
      served: the functions to export.
      run: where they come from.
      export_dir: the directory of all versions and of the other files.
      warmup_images: a folder of pictures for the warm-up; None draws pictures.
      results: captions in COCO's result format, to be scored in the card; None scores none.
      references: the reference captions of `results`.

    Returns:
      The path `export_dir/<version>`.

    Raises:
      ValueError: a file of another origin cannot be read, or the SavedModel gives wrong results.
      OSError: a file cannot be written.
    """
    scores, images = card.intervals(results, references or "") if results else ({}, 0)
    pictures = samples.drawn_pictures(_PICTURES)
    if warmup_images:
        pictures = samples.pictures_of(warmup_images, _PICTURES)
    regions = _regions(served)
    measured: dict[str, Any] = {}

    def complete(version: str, signatures: dict[str, Any]) -> None:
        """Measures the loaded SavedModel, and writes and replays its warm-up requests."""
        how = timing.choose(timing.measure(_caller(signatures, pictures, regions)))
        warmup.write(version, server_files.NAME, signatures, how.sizes, pictures, regions)
        measured.update(how=how, requests=warmup.replay(version, signatures))

    if os.path.isdir(export_dir):  # an unreadable models.config is an error before any work
        server_files.labels(export_dir, 0)
    path = export(served, export_dir, complete)
    with unfinished.alone(export_dir):
        _write_files(served, run, export_dir, path, (scores, images), measured)
    return path


def _write_files(served, run, export_dir: str, path: str, scored, measured) -> None:
    """Writes all files beside the version `path`, and removes what killed exports left of them."""
    # Another export may have finished a higher version meanwhile.
    labels, how = server_files.labels(export_dir, versions(export_dir)[-1]), measured["how"]
    size = sum(sizes(path))
    intervals, images = scored
    facts = card.Facts(
        version=int(os.path.basename(path)),
        labels=labels,
        model_bytes=size,
        search=_described(served),
        max_pixels=served.max_pixels,
        requests=measured["requests"],
        how=how,
        intervals=intervals,
        images=images,
    )
    best = read_best(best_directory(run.directory, run.params))
    # models.config is last: a server that polls it finds all the rest.
    files = {
        card.CARD: card.text(run, best, facts),
        manifests.COMPOSE: manifests.compose(size),
        manifests.PROMETHEUS: manifests.prometheus(),
        manifests.KUBERNETES: manifests.kubernetes(size, how.threads),
        manifests.KSERVE: manifests.kserve(size, how.threads),
        server_files.BATCHING: server_files.batching(how),
        server_files.MONITORING: server_files.monitoring(),
        server_files.MODELS: server_files.models(labels),
    }
    _sweep(export_dir, {CLIENT.name, *files})
    _copy_client(export_dir)
    for name, content in files.items():
        with replacing(os.path.join(export_dir, name)) as temporary:
            pathlib.Path(temporary).write_text(content, encoding="utf-8")


def _sweep(export_dir: str, names: set[str]) -> None:
    """Removes temporary files of these names. Nobody is writing one: see `unfinished.alone`."""
    for left in pathlib.Path(export_dir).iterdir():
        found = _TEMPORARY.fullmatch(left.name)
        if found and found[1] in names:
            shutil.rmtree(left) if left.is_dir() and not left.is_symlink() else left.unlink()


def _caller(signatures: dict[str, Any], pictures: list[bytes], regions: int | None):
    """Returns the function that captions a batch of a size."""
    function = signatures["serving_default"]
    specs = function.structured_input_signature[1]

    def call(size: int) -> None:
        values = samples.inputs(specs, size, pictures, regions)
        results = function(**{key: tf.constant(value) for key, value in values.items()})
        results["captions"].numpy()

    return call


def _regions(served: CaptionServer) -> int | None:
    """Returns how many regions a request has; None if the model does not say."""
    of_backbone = served.backbone.num_regions if served.backbone is not None else None
    counts = [count for count in (of_backbone, served.max_regions) if count]
    return min(counts, default=None)


def _described(served: CaptionServer) -> str:
    options = served.search.options
    if options.search == "beam":
        return f"beam search of width {options.beam}"
    return f"{options.samples} samples"


def _copy_client(export_dir: str) -> None:
    if not CLIENT.is_dir():
        return
    with replacing_directory(os.path.join(export_dir, "client")) as temporary:
        ignored = shutil.ignore_patterns("__pycache__", "*.pyc")
        shutil.copytree(CLIENT, temporary, ignore=ignored, dirs_exist_ok=True)
