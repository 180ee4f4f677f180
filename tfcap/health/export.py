"""Checks of an export: the layout of its versions, its files, and a caption of each signature."""

import os
from collections.abc import Iterator

import tensorflow as tf

from tfcap.files import sizes
from tfcap.health.finding import Finding, examine, ok, problem, some, warning
from tfcap.runs.savedmodel import SIGNATURES, call_signatures, versions

GRAPH = "saved_model.pb"
VARIABLES = os.path.join("variables", "variables.index")
_EXPORT = "Export again: python -m tfcap.export --model_dir RUN --export_dir {}"


def findings(export_dir: str) -> Iterator[Finding]:
    """Checks an export.

    Args:
      export_dir: the directory of all versions, or one version.

    Yields:
      One finding per check.
    """
    export_dir = os.path.normpath(export_dir)  # a slash at the end would be inside remedies
    results: dict = {}
    again = _EXPORT.format(export_dir)
    yield examine("export", "versions", _versions, export_dir, results)
    if "path" not in results:
        return
    path = results["path"]
    yield examine("export", "files", _files, path, again)
    yield examine("export", "load", _load, path, results, remedy=again)
    if "loaded" not in results:
        return
    yield examine("export", "signatures", _signatures, results["loaded"], again)
    yield examine("export", "caption", _caption, results["loaded"], remedy=again)


def _versions(export_dir: str, results: dict) -> Finding:
    """Finds the version that TF Serving loads: the one with the highest number."""
    remedy = _EXPORT.format(export_dir)
    if not os.path.isdir(export_dir):
        return problem(f"{export_dir} is not a directory.", remedy)
    names = os.listdir(export_dir)
    if GRAPH in names:
        results["path"] = export_dir
        if os.path.basename(os.path.abspath(export_dir)).isdecimal():
            return ok(f"{export_dir} is one version")
        return warning(
            f"{export_dir} is a SavedModel, but its name is not a number: TF Serving looks for "
            "numbered directories.",
            f"mkdir {export_dir}.served && mv {export_dir} {export_dir}.served/1, and serve "
            f"{export_dir}.served.",
        )
    numbers = versions(export_dir)
    if not numbers:
        return problem(f"{export_dir} has no version: no directory with a number as name.", remedy)
    results["path"] = os.path.join(export_dir, str(numbers[-1]))
    if left := [name for name in names if name.startswith(".tmp-")]:
        return warning(
            f"{export_dir} holds what running or interrupted exports have written: {some(left)}.",
            "Remove it if no export is running.",
        )
    return ok(f"{some(numbers)} in {export_dir}; TF Serving loads {numbers[-1]}")


def _files(path: str, again: str) -> Finding:
    missing = [name for name in (GRAPH, VARIABLES) if not os.path.isfile(os.path.join(path, name))]
    if missing:
        return problem(f"{path} lacks {', '.join(missing)}.", again)
    each = sizes(path)
    return ok(f"{path} has {len(each)} files of {sum(each) / 1e6:.1f} MB in all")


def _load(path: str, results: dict) -> Finding:
    results["loaded"] = tf.saved_model.load(path)
    return ok(f"{path} can be loaded with its weights")


def _signatures(loaded, again: str) -> Finding:
    """Lists the signatures with their inputs."""
    shown = {
        name: ", ".join(sorted(function.structured_input_signature[1]))
        for name, function in sorted(loaded.signatures.items())
    }
    text = "; ".join(f"{name} takes {inputs}" for name, inputs in shown.items()) or "none"
    if lost := [name for name in SIGNATURES if name not in shown]:
        return problem(f"The signature {', '.join(lost)} is missing. Received: {text}.", again)
    return ok(text)


def _caption(loaded) -> Finding:
    """Calls all signatures with one image, and shows the caption of `serving_default`.

    The image is a drawn picture. A model of ready-made features gets features of zeros.
    """
    result = call_signatures(loaded)["serving_default"]
    caption, score = result["captions"].numpy()[0, 0].decode(), float(result["scores"][0, 0])
    drawn = "image_bytes" in loaded.signatures["serving_default"].structured_input_signature[1]
    what = "a drawn red disc" if drawn else "features of zeros"
    if not caption:
        return warning(
            f"The caption of {what} is empty (score {score:.3f}).",
            "Caption a photograph; if that is empty too, train longer or set min_length=3.",
        )
    return ok(f"{what}: {caption!r}, score {score:.3f}")
