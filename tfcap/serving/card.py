"""Writes MODEL_CARD.md: training data, scores, latency and limits of a model."""

import dataclasses
import platform
from collections.abc import Mapping
from typing import Any

from tfcap import __version__
from tfcap.metrics import bootstrap, coco, results
from tfcap.metrics.results import KEYS
from tfcap.runs import Run, count_parameters
from tfcap.serving.timing import Batching

CARD = "MODEL_CARD.md"
_SCORES = ("BLEU", "ROUGE-L", "CIDEr")  # they need no Java
_UNKNOWN = "unknown: fill in"
# Licences of weights that this package names itself; those of other files are not known.
_LICENCES = {"efficientnet_lite2": "Apache-2.0", "pixels": "none: it has no weights"}


@dataclasses.dataclass(frozen=True)
class Facts:
    """What the bundle knows about its model, beside the run.

    Attributes:
      version: the number of the export.
      labels: label -> version.
      model_bytes: size of the SavedModel.
      search: how captions are found.
      max_pixels: limit of a picture.
      requests: number of warm-up requests.
      how: the measured times and the batches.
      intervals: score -> interval over the images, from `intervals`.
      images: number of images behind the intervals.
      changed: whether the export decodes in another way than validations did.
    """

    version: int
    labels: Mapping[str, int]
    model_bytes: int
    search: str
    max_pixels: int
    requests: int
    how: Batching
    intervals: Mapping[str, bootstrap.Interval]
    images: int
    changed: bool = False


def intervals(predictions: str, references: str) -> tuple[dict[str, bootstrap.Interval], int]:
    """Scores captions with 95 % intervals by bootstrap over the images.

    Args:
      predictions: captions in COCO's result format, as `tfcap.evaluate --output` writes them.
      references: reference captions in COCO's annotation format.

    Returns:
      Score -> interval; the number of images.

    Raises:
      ValueError: a file cannot be read, or the images differ.
    """
    wanted = results.load_references(references)
    captions = results.load_results(predictions)
    results.check_ids(wanted, captions)
    with coco.CocoScorer(list(_SCORES)) as scorer:
        compared = bootstrap.compare({"model": captions}, wanted, scorer)
    return compared.intervals["model"], len(wanted)


def text(run: Run, best: Mapping[str, Any], facts: Facts) -> str:
    """Returns the card in Markdown.

    Args:
      run: the exported run.
      best: the validation scores of its weights, see `runs.validated`.
      facts: what was measured and chosen.
    """
    parts = [
        f"# Model card: {run.model.name}\n",
        "This model describes a picture in one sentence. "
        f"tfcap {__version__} exported it as version {facts.version}. "
        "Each line with the words *fill in* is for the person who publishes the model.\n",
        _section("Model", _model(run, facts)),
        _section("Training data", _data(run.fingerprint)),
        "## Scores\n",
        _scores(run, best, facts),
        "## Latency\n",
        _latency(facts.how),
        "## Limits\n",
        _limits(run, facts),
        _section("Licences", _licences(run.fingerprint)),
    ]
    return "\n".join(parts)


def _cell(value: Any) -> str:
    """Returns a value as the content of a cell of a table, whatever characters it has."""
    words = " ".join(str(value).split())
    return words.replace("\\", "\\\\").replace("|", "\\|").replace("<", "&lt;").replace("`", "'")


def _table(head: list[str], rows: list[list[Any]]) -> str:
    lines = [head, ["---"] * len(head), *([_cell(value) for value in row] for row in rows)]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def _section(name: str, rows: dict[str, Any]) -> str:
    return f"## {name}\n\n{_table(['what', 'value'], [[k, v] for k, v in rows.items()])}"


def _model(run: Run, facts: Facts) -> dict[str, Any]:
    labels = ", ".join(f"{label} is version {n}" for label, n in facts.labels.items())
    return {
        "system": run.model.name,
        "trained with": run.signature,
        "parameters of the captioner": f"{count_parameters(run.model):,}",
        "size of the SavedModel": f"{facts.model_bytes / 1e6:.1f} MB",
        "decoding": facts.search,
        "longest caption": f"{run.model.max_length} words",
        "labels": labels,
        "warm-up requests": facts.requests,
        "intended use": f"captions of pictures like those of the training data; {_UNKNOWN}",
    }


def _data(fingerprint: Mapping[str, Any]) -> dict[str, Any]:
    rows: dict[str, Any] = {"name": fingerprint.get("name", _UNKNOWN)}
    for split, counts in fingerprint.get("splits", {}).items():
        rows[f"split {split}"] = f"{counts['images']:,} images, {counts['captions']:,} captions"
    made_by = fingerprint["backbone"]
    rows["words"] = f"{fingerprint['vocab_size']:,}"
    rows["SHA-256 of the vocabulary"] = fingerprint["vocab_sha256"]
    rows["features"] = "ready-made" if made_by is None else made_by["name"]
    rows["width of the features"] = fingerprint["features"]["dim"]
    if made_by is not None and made_by.get("weights_sha256"):
        rows["SHA-256 of the backbone's weights"] = made_by["weights_sha256"]
    return rows


def _scores(run: Run, best: Mapping[str, Any], facts: Facts) -> str:
    if facts.images:
        if not facts.intervals:
            return "The given captions are of one image, whose scores say nothing.\n"
        rows = [
            [name, f"{one.value:.2f}", f"{one.low:.2f} to {one.high:.2f}"]
            for name, one in facts.intervals.items()
        ]
        about = (
            f"The scores of {facts.images:,} images. The interval holds 95 % of 1,000 bootstrap "
            "resamples of the images.\n"
        )
        return f"{about}\n{_table(['score', 'value', '95 % interval'], rows)}"
    rows = [[key, f"{best[key]:.2f}"] for key in (*KEYS, "perplexity") if key in best]
    how = (
        "For intervals, write the captions of a split with `python -m tfcap.evaluate --output "
        "results.json`, and export with `--results` and `--references`.\n"
    )
    if not rows:
        return f"There are no validation scores of these weights. {how}"
    about = "The validation scores of these weights, as training measured them. "
    if facts.changed:
        about += "The export decodes in another way, so its scores differ. "
    return f"{about}{how}\n{_table(['score', 'value'], rows)}"


def _latency(how: Batching) -> str:
    rows = [
        [size, f"{1000 * taken:.0f}", f"{size / taken:.1f}"] for size, taken in how.seconds.items()
    ]
    machine = f"{platform.machine()}, {how.threads} cores"
    about = (
        f"Measured through the SavedModel, without a server, on the exporting machine ({machine}): "
        f"the fastest of three calls. The server makes batches of at most {how.largest}.\n"
    )
    return f"{about}\n{_table(['pictures', 'milliseconds', 'pictures per second'], rows)}"


def _limits(run: Run, facts: Facts) -> str:
    ready_made = run.fingerprint["backbone"] is None
    lines = [
        f"It knows {run.fingerprint['vocab_size']:,} words and can use no others.",
        "It repeats what is frequent in its training data, also where that is wrong or unfair to "
        f"people. Tests for groups of people: {_UNKNOWN}.",
        "A caption can be wrong. The score orders captions; it does not tell how probable it is "
        "that one is true.",
        "It must not decide anything about a person."
        if ready_made
        else "It reads JPEG, PNG, BMP, GIF and WebP files of at most "
        f"{facts.max_pixels:,} pixels; all frames of a GIF file count.",
        "A row with a `status` other than `ok` has an empty caption.",
    ]
    return "".join(f"- {line}\n" for line in lines)


def _licences(fingerprint: Mapping[str, Any]) -> dict[str, Any]:
    made_by = fingerprint["backbone"]
    known = _LICENCES.get(made_by["name"], _UNKNOWN) if made_by else _UNKNOWN
    return {
        "weights of the captioner": _UNKNOWN,
        "weights of the backbone": known,
        "training data": _UNKNOWN,
        "tfcap": "Apache-2.0",
    }
