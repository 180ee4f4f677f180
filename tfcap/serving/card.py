"""Writes MODEL_CARD.md: training data, scores, latency and limits of a model."""

import os
import pathlib
import platform
from collections.abc import Mapping
from typing import Any

import yaml

from tfcap import __version__
from tfcap.decoding import Options
from tfcap.files import file_sha256
from tfcap.metrics import bootstrap, coco, results
from tfcap.metrics.results import KEYS
from tfcap.runs import CaptionServer, Run, count_parameters, validated

CARD = "MODEL_CARD.md"
_SCORES = ["BLEU", "ROUGE-L", "CIDEr"]  # they need no Java
_UNKNOWN = "unknown: fill in"
# Licences of weights that this package names itself; those of other files are not known.
_LICENCES = {
    "efficientnet": "Apache-2.0",
    "pixels": "none: it has no weights",
    "swin": "MIT",
    # The detector's card.json says which of the two it is.
    "bottom": "MIT from the .caffemodel, Apache-2.0 from MILVLG's .pth",
    "expansionnet_v2": "MIT",  # of a converted captioner
}


def intervals(predictions: str, references: str) -> tuple[dict[str, bootstrap.Interval], int]:
    """Scores captions with 95 % intervals by bootstrap over the images.

    Args:
      predictions: captions in COCO's result format, as `tfcap.evaluate --output` writes them.
      references: reference captions in COCO's annotation format.

    Returns:
      Score -> interval; the number of images.
    """
    wanted = results.load_references(references)
    captions = results.load_results(predictions)
    results.check_ids(wanted, captions)
    with coco.CocoScorer(_SCORES) as scorer:
        compared = bootstrap.compare({"model": captions}, wanted, scorer)
    return compared.intervals["model"], len(wanted)


def text(
    run: Run,
    served: CaptionServer,
    seconds: Mapping[int, float],
    largest: int,
    scored: tuple[Mapping[str, bootstrap.Interval], int],
    changed: bool = False,
) -> str:
    """Returns the card in Markdown.

    Args:
      run: the exported run.
      served: its functions.
      seconds: of a batch by its size.
      largest: the largest batch that is served.
      scored: the result of `intervals`; ({}, 0) shows the scores of the validation.
      changed: whether the decoding options differ from those of the validations.
    """
    data = run.fingerprint
    made_by = data["backbone"]
    latency = [
        [size, f"{1000 * taken:.0f}", f"{size / taken:.1f}"] for size, taken in seconds.items()
    ]
    machine = f"{platform.machine()}, {os.cpu_count()} cores"
    reads = (
        "It reads JPEG, PNG, BMP, GIF and WebP files of at most "
        f"{served.max_pixels:,} pixels; all frames of a GIF file count."
    )
    limits = [
        *_limits(data),
        *([reads] if made_by else []),
        "A row with a `status` other than `ok` has an empty caption.",
    ]
    parts = [
        f"# Model card: {run.model.name}",
        f"This model describes a picture in one sentence. tfcap {__version__} exported it. Each "
        "line with the words *fill in* is for the person who publishes the model.",
        "## Model",
        _model(run, served.search.options),
        "## Training data",
        _training_data(data),
        "## Scores",
        _scores(validated(run), *scored, changed),
        "## Latency",
        f"Measured through the SavedModel, without a server, on the exporting machine ({machine}): "
        f"the fastest of three calls. The server makes batches of at most {largest}.",
        _table(["pictures", "milliseconds", "pictures per second"], latency),
        "## Limits",
        "\n".join(f"- {line}" for line in limits),
        "## Licences",
        _licences(data),
    ]
    return "\n\n".join(parts) + "\n"


def hub_text(run: Run, folder: str, changed: bool = False) -> str:
    """Returns the README.md of a run directory, with the metadata that the Hugging Face Hub reads.

    Args:
      run: the run.
      folder: its directory, whose files are listed with their digests.
      changed: as for `text`.
    """
    scores = validated(run)
    metrics = [
        {"type": key.lower(), "name": key, "value": round(scores[key], 2)}
        for key in KEYS
        if key in scores and not changed
    ]
    name, data = run.model.name, run.fingerprint
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
        (os.path.relpath(path, folder), file_sha256(path))
        for path in sorted(str(path) for path in pathlib.Path(folder).rglob("*") if path.is_file())
    ]
    parts = [
        f"---\n{yaml.safe_dump(metadata, sort_keys=False)}---",
        f"# {name}",
        f"This model describes a picture in one sentence. tfcap {__version__} exported it. Each "
        "line with the words *fill in* is for the person who publishes the model, and so is the "
        "licence in the first lines.",
        "```bash\ntfcap caption --model_dir hf://OWNER/NAME photo.jpg\n```",
        "## Model",
        _model(run, run.search().options),
        "## Training data",
        _training_data(data),
        "## Scores",
        _scores(scores, {}, 0, changed),
        "## Limits",
        "\n".join(f"- {line}" for line in _limits(data)),
        "## Licences",
        _licences(data),
        "## Files",
        _table(["file", "SHA-256"], digests),
    ]
    return "\n\n".join(parts) + "\n"


def _model(run: Run, options: Options) -> str:
    beam = options.search == "beam"
    rows = {
        "system": run.model.name,
        "trained with": run.signature,
        "parameters of the captioner": f"{count_parameters(run.model):,}",
        "decoding": f"beam search of width {options.beam}"
        if beam
        else f"{options.samples} samples",
        "longest caption": f"{run.model.max_length} words",
        "intended use": f"captions of pictures like those of the training data; {_UNKNOWN}",
    }
    return _table(["what", "value"], rows.items())


def _training_data(data: Mapping[str, Any]) -> str:
    made_by = data["backbone"]
    splits = {
        f"split {split}": f"{counts['images']:,} images, {counts['captions']:,} captions"
        for split, counts in data.get("splits", {}).items()
    }
    rows = {
        "name": data.get("name", _UNKNOWN),
        **splits,
        "words": f"{data['vocab_size']:,}",
        "SHA-256 of the vocabulary": data["vocab_sha256"],
        "features": "ready-made" if made_by is None else made_by["name"],
        "SHA-256 of the backbone's weights": (made_by or {}).get("weights_sha256") or "none",
    }
    return _table(["what", "value"], rows.items())


def _limits(data: Mapping[str, Any]) -> list[str]:
    return [
        f"It knows {data['vocab_size']:,} words and can use no others.",
        "It repeats what is frequent in its training data, also where that is wrong or unfair to "
        f"people. Tests for groups of people: {_UNKNOWN}.",
        "A caption can be wrong. The score orders captions; it does not tell how probable it is "
        "that one is true.",
    ]


def _licences(data: Mapping[str, Any]) -> str:
    name = (data["backbone"] or {}).get("name", "")
    released = data.get("converted", {}).get("from", "")
    rows = {
        "weights of the captioner": _LICENCES.get(released, _UNKNOWN),
        "weights of the backbone": _LICENCES.get(name.partition("_")[0], _UNKNOWN),
        "training data": _UNKNOWN,
        "tfcap": "Apache-2.0",
    }
    return _table(["what", "value"], rows.items())


def _scores(
    best: Mapping[str, Any],
    found: Mapping[str, bootstrap.Interval],
    images: int,
    changed: bool,
) -> str:
    if images:
        rows = [
            [name, f"{one.value:.2f}", f"{one.low:.2f} to {one.high:.2f}"]
            for name, one in found.items()
        ]
        about = f"The scores of {images:,} images, with bootstrap over the images."
        return f"{about}\n\n{_table(['score', 'value', '95 % interval'], rows)}"
    rows = [[key, f"{best[key]:.2f}"] for key in (*KEYS, "perplexity") if key in best]
    how = (
        "For intervals, write the captions of a split with `python -m tfcap.evaluate --output "
        "results.json`, and export with `--results` and `--references`."
    )
    if not rows:
        return f"There are no validation scores of these weights. {how}"
    about = "The validation scores of these weights, as training measured them. "
    if changed:
        about += "The export decodes in another way, so its scores differ. "
    return f"{about}{how}\n\n{_table(['score', 'value'], rows)}"


def _table(head: list[str], rows: Any) -> str:
    lines = [head, ["---"] * len(head), *([_cell(value) for value in row] for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _cell(value: Any) -> str:
    """Escapes a value for a cell of a Markdown table."""
    words = " ".join(str(value).split())
    return words.replace("\\", "\\\\").replace("|", "\\|").replace("<", "&lt;").replace("`", "'")
