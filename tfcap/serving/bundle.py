"""Exports a captioner and writes all that a server needs beside it."""

import os
import pathlib
import re
import shutil
from typing import Any

import tensorflow as tf

from tfcap.files import sizes, versions
from tfcap.runs import CaptionServer, Run, validated
from tfcap.runs.server import export
from tfcap.serving import card, kept_files, manifests, samples, server_files, timing, warmup

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
    changed: bool = False,
) -> str:
    """Writes the next version of a SavedModel with warm-up requests, and the files beside it.

    The version appears when its warm-up requests have been replayed. Then the other files are
    replaced one by one; each appears whole. Files that somebody has changed stay, see `kept_files`.

    Args:
      served: the functions to export.
      run: where they come from.
      export_dir: the directory of all versions and of the other files.
      warmup_images: a folder of pictures for the warm-up; None draws pictures.
      results: captions in COCO's result format, to be scored in the card; None scores none.
      references: the reference captions of `results`.
      changed: whether the captions are decoded in another way than at the validations.

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

    if warmup_images and served.backbone is None:
        raise ValueError(
            "warmup_images needs a model that reads pictures. Received: one that reads ready-made "
            "features. Leave it out."
        )
    if os.path.isdir(export_dir):  # an unreadable models.config is an error before any work
        server_files.labels(export_dir, 0)
    path = export(served, export_dir, complete)
    _write_files(served, run, export_dir, path, (scores, images), measured, changed)
    return path


def _write_files(
    served, run, export_dir: str, path: str, scored, measured, changed: bool = False
) -> None:
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
        changed=changed,
    )
    needs = manifests.Needs(manifests.memory(size, how.threads, served.max_pixels), how.threads)
    texts = {
        card.CARD: card.text(run, validated(run), facts),
        manifests.COMPOSE: manifests.compose(needs),
        manifests.PROMETHEUS: manifests.prometheus(),
        manifests.KUBERNETES: manifests.kubernetes(size, needs),
        manifests.KSERVE: manifests.kserve(size, needs),
        server_files.BATCHING: server_files.batching(how),
        server_files.MONITORING: server_files.monitoring(),
    }
    files = _client() | {name: text.encode() for name, text in texts.items()}
    names = {os.path.basename(name) for name in (*files, server_files.MODELS)}
    names |= {name + kept_files.NEW for name in names}
    # Earlier versions replaced the directory of the client as a whole.
    for folder in (export_dir, os.path.join(export_dir, CLIENT.name)):
        _sweep(folder, names | {CLIENT.name, kept_files.RECORD})
    programs = [name for name in files if os.access(CLIENT.parent / name, os.X_OK)]
    for name in kept_files.write(export_dir, files, programs):
        print(
            f"note: {name} is not as tfcap wrote it, and stays. The new one is "
            f"{name}{kept_files.NEW}; delete {name} to get it from the next export"
        )
    # It is last: a server that polls it finds all the rest.
    server_files.write_models(export_dir, labels)


def _sweep(export_dir: str, names: set[str]) -> None:
    """Removes temporary files of these names, which a killed export has left."""
    for left in pathlib.Path(export_dir).glob(".*"):
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


def _client() -> dict[str, bytes]:
    """Returns the files of the client by path relative to the bundle."""
    return {
        f"{CLIENT.name}/{path.relative_to(CLIENT).as_posix()}": path.read_bytes()
        for path in sorted(CLIENT.rglob("*"))
        if path.is_file() and "__pycache__" not in path.parts
    }
