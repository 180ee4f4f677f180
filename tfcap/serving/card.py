"""Writes MODEL_CARD.md: training data, scores, latency and limits of a model."""

import os
import pathlib
import platform
import re
from collections.abc import Iterable, Mapping
from typing import Any

import yaml

from tfcap import __version__, pretrained
from tfcap.files import file_sha256
from tfcap.metrics.results import KEYS
from tfcap.runs import Run, count_parameters

CARD = "MODEL_CARD.md"
_UNKNOWN = "unknown: fill in"
_BELOW = "see the card of the run, below"
_ABOUT = (
    f"This model describes a picture in one sentence. tfcap {__version__} exported it. Each line "
    "with the words *fill in* is for the person who publishes the model"
)
# Licences of weights that this package names itself; those of other files are not known.
_LICENCES = {
    "efficientnet": "Apache-2.0",
    "pixels": "none: it has no weights",
    "swin": "MIT",
    # The detector's card.json says which of the two it is.
    "bottom": "MIT from the .caffemodel, Apache-2.0 from MILVLG's .pth",
    "expansionnet_v2": "MIT",  # of a converted captioner
}


def text(run: Run, max_pixels: int, seconds: Mapping[int, float], largest: int) -> str:
    """Returns the model card of an export in Markdown: data, scores, latency, limits and licences.

    Args:
      run: the run that is exported.
      max_pixels: largest number of pixels of a picture.
      seconds: number of pictures of a batch -> seconds that it takes.
      largest: number of pictures of the largest batch that the server makes.
    """
    latency = [
        [size, f"{1000 * taken:.0f}", f"{size / taken:.1f}"] for size, taken in seconds.items()
    ]
    machine = f"{platform.machine()}, {os.cpu_count()} cores"
    limits = ["A row with a `status` other than `ok` has an empty caption."]
    if run.fingerprint["backbone"]:
        reads = "It reads JPEG, PNG, BMP, GIF and WebP files of at most"
        limits.insert(0, f"{reads} {max_pixels:,} pixels; the frames of a GIF are not counted.")
    parts = [
        f"# Model card: {run.model.name}",
        f"{_ABOUT}.",
        *_facts(run),
        "## Latency",
        f"Measured through the SavedModel, without a server, on the exporting machine ({machine}): "
        f"the fastest of three calls. The server makes batches of at most {largest}.",
        _table(["pictures", "milliseconds", "pictures per second"], latency),
        *_limits_and_licences(run, limits),
        *_card_of(run),
    ]
    return "\n\n".join(parts) + "\n"


def hub_text(run: Run, directory: str) -> str:
    """Returns the README.md for a run on the Hugging Face Hub, in Markdown.

    It begins with the metadata that the Hub reads.

    Args:
      run: the run.
      directory: the copy of the run that goes to the Hub; its files are listed with their SHA-256.
    """
    metrics = [
        {"type": key.lower(), "name": key, "value": round(run.scores[key], 2)}
        for key in KEYS
        if key in run.scores
    ]
    name = run.model.name
    data = run.fingerprint
    task = {"type": "image-to-text", "name": "Image captioning"}
    dataset = {"type": data.get("name", "unknown"), "name": data.get("name", "unknown")}
    results = [{"task": task, "dataset": dataset, "metrics": metrics}] if metrics else []
    metadata = {
        "library_name": "tfcap",
        "pipeline_tag": "image-to-text",
        "license": "unknown",
        "tags": ["image-captioning", "keras", "tensorflow", name],
        **({"model-index": [{"name": name, "results": results}]} if results else {}),
    }
    digests = [
        (os.path.relpath(path, directory), file_sha256(path))
        for path in sorted(
            str(path) for path in pathlib.Path(directory).rglob("*") if path.is_file()
        )
    ]
    parts = [
        f"---\n{yaml.safe_dump(metadata, sort_keys=False)}---",
        f"# {name}",
        f"{_ABOUT}, and so is the licence in the first lines.",
        "```bash\ntfcap caption --model_dir hf://OWNER/NAME photo.jpg\n```",
        *_facts(run),
        *_limits_and_licences(run, []),
        "## Files",
        _table(["file", "SHA-256"], digests),
        *_card_of(run),
    ]
    return "\n\n".join(parts) + "\n"


def portable_text(run: Run, entries: Mapping[str, Any], size: int, is_page: bool) -> str:
    """Returns the README.md of a portable export, in Markdown.

    Args:
      run: the run that is exported.
      entries: the content of captioner.json.
      size: size of the file with the model, in bytes.
      is_page: whether the directory has a page for browsers.
    """
    script = "python caption.py " + ("features.npy" if "regions" in entries else "photo.jpg")
    page = []
    if is_page:
        page = [
            "index.html is a page that captions pictures in a browser: copy this directory to a "
            "host of static files. The licence of its engine, LiteRT.js, is engine/LICENSE.txt.",
        ]
    runtime = "onnxruntime" if entries["file"].endswith(".onnx") else "ai-edge-litert"
    file_rows = {
        "file": entries["file"],
        "size": f"{size / 1e6:.1f} MB",
        "made from": entries["made_from"],
        "SHA-256": entries["sha256"],
        "weights": entries["weights"],
        "longest caption": f"{entries['length']} words",
        "best captions equal to those of the run": _measured(entries.get("measured")),
    }
    parts = [
        f"# {run.model.name}, without TensorFlow",
        f"{_ABOUT}.",
        f"```bash\npip install {runtime} numpy pillow\n{script}\n```",
        *page,
        "## The file",
        _table(["what", "value"], file_rows.items()),
        *_facts(run),
        *_limits_and_licences(run, []),
        *_card_of(run),
    ]
    return "\n\n".join(parts) + "\n"


def _confidence(run: Run) -> dict[str, str]:
    """Returns a row that says what the confidence in captions means; none without one."""
    if run.confidence is None:
        return {}
    fitted = run.confidence.calibration
    return {
        "confidence": f"the probability of a {fitted['usable']}; fitted on "
        f"{len(fitted['images'])} images of {fitted['data']}, split {fitted['split']}"
    }


def _measured(measured: Mapping[str, Any] | None) -> str:
    """Returns in words how many captions a file changes."""
    if measured is None:
        return "not measured: `--pictures` of tfcap.export measures it"
    text = (
        f"{measured['equal']} of {measured['pictures']}; their scores differ by at most "
        f"{measured['score']:.2g}"
    )
    if (most := measured.get("confidence")) is not None:
        text += f", their confidences by {most:.2g}"
    return f"{text}; {measured['unread']} more could not be read" if measured["unread"] else text


def _card_of(run: Run) -> list[str]:
    """Returns the card that the directory of the run has, with its headings two levels deeper."""
    path = os.path.join(run.directory, pretrained.CARD)
    if not os.path.isfile(path):
        return []
    content = pathlib.Path(path).read_text(encoding="utf-8")
    return ["## The card of the run", re.sub(r"^(#+ )", r"##\1", content, flags=re.M).strip()]


def _unknown(run: Run) -> str:
    """Returns what stands where this package cannot know a fact."""
    return _BELOW if _card_of(run) else _UNKNOWN


def _facts(run: Run) -> list[str]:
    """Returns the sections on the model, its training data and its scores."""
    options = run.params.task.decoding
    beam = f"beam search of width {options.beam}"
    rows = {
        "system": run.model.name,
        "trained with": run.signature,
        "parameters of the captioner": f"{count_parameters(run.model):,}",
        "decoding": beam if options.search == "beam" else f"{options.samples} samples",
        "longest caption": f"{run.model.max_length} words",
        **_confidence(run),
        "intended use": f"captions of pictures like those of the training data; {_unknown(run)}",
    }
    data = run.fingerprint
    made_by = data["backbone"]
    data_rows = {
        "name": data.get("name", _UNKNOWN),
        **{
            f"split {split}": f"{counts['images']:,} images, {counts['captions']:,} captions"
            + (", mirrored copies included" if data.get("flip") and split == "train" else "")
            for split, counts in data.get("splits", {}).items()
        },
        "words": f"{data['vocab_size']:,}",
        "SHA-256 of the vocabulary": data["vocab_sha256"],
        "features": "ready-made" if made_by is None else made_by["name"],
        "SHA-256 of the backbone's weights": (made_by or {}).get("weights_sha256") or "none",
    }
    return [
        *("## Model", _table(["what", "value"], rows.items())),
        *("## Training data", _table(["what", "value"], data_rows.items())),
        *("## Scores", _scores(run.scores)),
    ]


def _limits_and_licences(run: Run, limits: list[str]) -> list[str]:
    """Returns the sections on limits and licences; `limits` are further sentences."""
    data = run.fingerprint
    unknown = _unknown(run)
    usable = "; the confidence tells how probable it is that one is usable"
    limits = [
        f"It knows {data['vocab_size']:,} words and can use no others.",
        "It repeats what is frequent in its training data, also where that is wrong or unfair to "
        f"people. Tests for groups of people: {unknown}.",
        "A caption can be wrong. The score orders captions; it does not tell how probable it is "
        f"that one is true{usable if run.confidence is not None else ''}.",
        *limits,
    ]
    captioner, backbone = _licences(run)
    rows = {
        "weights of the captioner": captioner or unknown,
        "weights of the backbone": backbone or unknown,
        "training data": unknown,
        "tfcap": "Apache-2.0",
    }
    listed = "\n".join(f"- {line}" for line in limits)
    return ["## Limits", listed, "## Licences", _table(["what", "value"], rows.items())]


def _licences(run: Run) -> tuple[str, str]:
    """Returns the licences of the weights of captioner and backbone; "" if one is not known."""
    if pretrained.is_packaged(run.directory):
        return "for research only", _LICENCES["efficientnet"]
    name = (run.fingerprint["backbone"] or {}).get("name", "")
    released = run.fingerprint.get("converted", {}).get("from", "")
    return _LICENCES.get(released, ""), _LICENCES.get(name.partition("_")[0], "")


def licences(run: Run) -> str:
    """Returns the licences of the weights in one line."""
    captioner, backbone = (licence or "not known" for licence in _licences(run))
    text = f"licence of the captioner: {captioner}"
    return f"{text}; of the backbone: {backbone}" if run.fingerprint["backbone"] else text


def _scores(best: Mapping[str, float]) -> str:
    """Returns a table of the validation scores."""
    rows = [[key, f"{best[key]:.2f}"] for key in (*KEYS, "perplexity") if key in best]
    if not rows:
        return "There are no validation scores of these weights and of this decoding."
    about = "The validation scores of these weights, as training measured them."
    return f"{about}\n\n{_table(['score', 'value'], rows)}"


def _table(head: list[str], rows: Iterable[Iterable[object]]) -> str:
    """Returns a table in Markdown."""
    lines = [head, ["---"] * len(head), *([_cell(value) for value in row] for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _cell(value: object) -> str:
    """Escapes a value for a cell of a Markdown table."""
    words = " ".join(str(value).split())
    return words.replace("\\", "\\\\").replace("|", "\\|").replace("<", "&lt;").replace("`", "'")
