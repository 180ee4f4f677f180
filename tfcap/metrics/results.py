"""Names of the metrics, the scores of a set of captions, and the files of captions and scores.

Letters: B images, Q counts of an image.
"""

import dataclasses
import itertools
import json
import logging
import os
import re
import zipfile
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from tfcap import errors, segmentation
from tfcap.files import read_json, replacing, write_json
from tfcap.marks import UNUSABLE, left_out, mark_of

_log = logging.getLogger(__name__)

# Metrics that are computed only where they are named, and the keys of their scores.
ON_REQUEST = {
    "CHAIR": ("CHAIRi", "CHAIRs", "CHAIR-recall"),
    "CLIPScore": ("CLIPScore", "RefCLIPScore"),
}
DEFAULTS = ["BLEU", "METEOR", "ROUGE-L", "CIDEr", "SPICE"]
METRICS = [*DEFAULTS, *ON_REQUEST]
# The keys of their scores: BLEU has four.
KEYS = ["BLEU-1", "BLEU-2", "BLEU-3", "BLEU-4", "METEOR", "ROUGE-L", "CIDEr", "SPICE"]
KEYS += [key for keys in ON_REQUEST.values() for key in keys]
LOWER = ("loss", "perplexity", "CHAIRi", "CHAIRs")  # values of which a lower one is better

SUBMISSION_IMAGES = {"val2014": 40504, "test2014": 40775}  # of COCO's server
_REMEDY = "Give a complete file in COCO's format of results or of annotations."


class Unavailable(RuntimeError):
    """A metric cannot be computed because something is missing, such as a picture.

    The message is one line that says what is missing, and how to provide it.
    """


class Encoder(Protocol):
    """Protocol of the networks for CLIPScore, such as those of CLIP.

    One network computes vectors of pictures, the other vectors of texts. All vectors are in one
    space, where a text is near a picture that it describes.
    """

    def pictures(self, paths: Sequence[str]) -> np.ndarray:
        """Computes a vector for each picture.

        Args:
          paths: the picture files.

        Returns:
          float32 [number of pictures, D], where D is the size of a vector, the same for `texts`.

        Raises:
          ValueError: a file cannot be read as a picture.
        """

    def texts(self, texts: Sequence[str]) -> np.ndarray:
        """Computes a vector for each text, as `pictures` does for pictures.

        Args:
          texts: the texts.

        Returns:
          float32 [number of texts, D], where D is the size of a vector.
        """


@dataclasses.dataclass(frozen=True)
class Options:
    """What CHAIR and CLIPScore need besides captions and references.

    Attributes:
      labels: image id -> classes of its labelled objects, from `chair.read_labels`. None: CHAIR
        knows only the objects that the references mention.
      pictures: image id -> path of its picture, for CLIPScore.
      clip: the networks of CLIP. None: CLIPScore is not computed.
    """

    labels: Mapping[int, Collection[str]] | None = None
    pictures: Mapping[int, str] = dataclasses.field(default_factory=dict)
    clip: Encoder | None = None


@dataclasses.dataclass(frozen=True)
class Scores:
    """The scores of captions of B images, as `CocoScorer.score` returns them.

    Attributes:
      corpus: key of the score, one of `KEYS` -> score of all images together, times 100. Scores
        that were not computed have no entry.
      per_image: image id -> key of the score -> score of the image, times 100.
      unavailable: name of a requested metric that was not computed -> the reason and the remedy.
      notes: notes to show with the scores, one line each.
      domains: name of a domain, such as "out-domain" of nocaps -> key of the score -> score of its
        images, and "images", their number; see `domains.score_domains`. Empty if the images have
        no domains.
      statistics: name of a score that is not a mean over images -> counts of each of B images,
        float64 [B, number of counts], in the order of `per_image`. The score of all images is
        computed from the sums of these counts, see `bootstrap`. The names are "BLEU" (counts for
        BLEU-1 ... 4), "METEOR", "CHAIRi", "CHAIRs" and "CHAIR-recall".
    """

    corpus: dict[str, float]
    per_image: dict[int, dict[str, float]]
    unavailable: dict[str, str] = dataclasses.field(default_factory=dict)
    notes: list[str] = dataclasses.field(default_factory=list)
    domains: dict[str, dict[str, float]] = dataclasses.field(default_factory=dict)
    statistics: dict[str, np.ndarray] = dataclasses.field(
        default_factory=dict, repr=False, compare=False
    )

    def add(self, key: str, corpus: float, per_image: Sequence[float]) -> None:
        """Adds a score to `corpus` and `per_image`, times 100.

        Args:
          key: the key of the score, one of `KEYS`.
          corpus: the score of all images together, not times 100.
          per_image: the score of each image, not times 100, in the order of the attribute
            `per_image`.

        Example:
          >>> scores = Scores(corpus={}, per_image={7: {}, 8: {}})
          >>> scores.add("CIDEr", 0.5, [0.25, 0.75])
          >>> scores.corpus, scores.per_image
          ({'CIDEr': 50.0}, {7: {'CIDEr': 25.0}, 8: {'CIDEr': 75.0}})
        """
        self.corpus[key] = 100.0 * float(corpus)
        for values, score in zip(self.per_image.values(), per_image, strict=True):
            values[key] = 100.0 * float(score)

    def add_ratio(self, key: str, counts: np.ndarray) -> None:
        """Adds a score that is a ratio of two counts to `corpus` and `per_image`, times 100.

        The score of all images is the ratio of the sums of the counts. The counts are kept in
        `statistics`.

        Args:
          key: the key of the score, one of `KEYS`.
          counts: numerator and denominator for each of B images, float64 [B, 2], in the order of
            `per_image`. An image with the denominator 0 has the score 0.
        """
        parts, wholes = counts.T
        per_image = np.divide(parts, wholes, out=np.zeros(len(counts)), where=wholes > 0)
        self.add(key, parts.sum() / wholes.sum() if wholes.any() else 0.0, per_image.tolist())
        self.statistics[key] = counts


# Captions and references


@dataclasses.dataclass(frozen=True)
class Hypotheses:
    """One or more captions of each image.

    Attributes:
      captions: image id -> captions, best first.
      scores: image id -> score of each caption, such as its log-probability, in the same order.
        None if the captions have no scores.
      log_probs: image id -> summed log-probability of each caption, or None.
      confidences: image id -> confidence in each caption, 0 to 1. None if they have none.
    """

    captions: dict[int, list[str]]
    scores: dict[int, list[float]] | None = None
    log_probs: dict[int, list[float]] | None = None
    confidences: dict[int, list] | None = None

    def best(self) -> dict[int, str]:
        """Returns image id -> best caption of the image, which is its first one."""
        return {image: captions[0] for image, captions in self.captions.items()}

    def written(self, tokens: str) -> "Hypotheses":
        """Returns a copy with the captions as a file has them, see `segmentation.written`.

        Args:
          tokens: how the data of the model that made the captions cuts captions into words.
        """
        shown = {
            image: [segmentation.written(text, tokens) for text in texts]
            for image, texts in self.captions.items()
        }
        return Hypotheses(shown, self.scores)

    def of_images(self, images: Iterable[int]) -> "Hypotheses":
        """Returns a copy with the captions of some images only.

        Args:
          images: ids of these images; the copy has their order.
        """
        images = list(images)
        values = (self.captions, self.scores, self.log_probs, self.confidences)
        parts: Any = [one and {image: one[image] for image in images} for one in values]
        return Hypotheses(*parts)


def load_hypotheses(path: str | os.PathLike) -> Hypotheses:
    """Reads captions from a JSON file in COCO's result format or that of `write_hypotheses`.

    Args:
      path: the file. COCO's format has one caption for each image, and the format of
        `write_hypotheses` has several.

    Returns:
      The captions of each image. They have scores only if every entry of the file has scores.

    Raises:
      ValueError: the file has another format, or two entries for an image.
    """
    captions: dict[int, list[str]] = {}
    scores: dict[int, list[float]] = {}
    for entry in _entries(read_json(path, _REMEDY)):
        image: Any = entry.get("image_id")
        texts = entry.get("captions", [entry.get("caption")])
        if not _is_id(image) or not texts or not all(isinstance(text, str) for text in texts):
            raise ValueError(
                f"{path} is not in COCO's result format: it has the entry {entry!r:.100}. Give a "
                'list of entries like {"image_id": 1, "caption": "a dog"}.'
            )
        if image in captions:
            raise ValueError(f"{path} has two entries for image {image}. Keep one of them.")
        captions[image] = list(texts)
        if "scores" in entry:
            scores[image] = [float(score) for score in entry["scores"]]
    return Hypotheses(captions, scores if scores.keys() == captions.keys() else None)


def load_results(path: str | os.PathLike) -> dict[int, str]:
    """Reads the first caption of each image from a JSON file of captions.

    Args:
      path: the file, in a format that `load_hypotheses` reads.

    Returns:
      Image id -> caption.
    """
    return load_hypotheses(path).best()


def load_runs(paths: Mapping[str, str], references: Mapping[int, Any]) -> dict[str, dict[int, str]]:
    """Reads the captions of several systems for the same images.

    Args:
      paths: name of the system -> its file, in a format that `load_hypotheses` reads.
      references: a dictionary whose keys are the ids of these images; its values are not used.

    Returns:
      Name of the system -> its captions, a dictionary with the first caption of each image id, in
      the order of `references`.

    Raises:
      ValueError: a file has no caption for one of the images.
    """
    runs = {}
    for name, path in paths.items():
        captions = load_results(path)
        if missing := [image for image in references if image not in captions]:
            raise ValueError(
                f"{path} has no caption for image {missing[0]} of the split. Give a result file "
                "of the same split, or score only the images that all files have, with `partial`."
            )
        runs[name] = {image: captions[image] for image in references}
    return runs


def load_references(path: str | os.PathLike, partial: bool = False) -> dict[int, list[str]]:
    """Reads references from a JSON file in COCO's annotation format.

    Captions that the file marks as unusable, with "is_rejected" or "is_precanned" as in
    VizWiz-Captions, are left out. An image that has only such captions is left out, too. A note in
    the log says how many captions and images are left out.

    Args:
      path: the file.
      partial: whether images that have no captions at all are left out, too. If False, they are an
        error.

    Returns:
      Image id -> references, in the order of the file.

    Raises:
      ValueError: the file has another format, all its captions are marked as unusable, or an image
        has no captions at all and `partial` is False.
    """
    content = read_json(path, _REMEDY)
    content = content if isinstance(content, dict) else {}
    images = _entries(content.get("images", []))
    references: dict[int, list[str]] = {entry["id"]: [] for entry in images if "id" in entry}
    marks: dict[int, list[str]] = {}  # of the captions that are left out
    for entry in _entries(content.get("annotations", [])) if references else ():
        image: Any = entry.get("image_id")
        caption: Any = entry.get("caption")
        try:
            mark = mark_of(entry)
        except ValueError as error:
            raise ValueError(
                f"{path} has the annotation {entry!r:.100}: {error}. Correct it."
            ) from None
        if image not in references or not (mark or isinstance(caption, str)):
            raise ValueError(
                f'{path} has the annotation {entry!r:.100}: its "image_id" must be the "id" of one '
                'of the "images", and its "caption" must be text. Correct or remove the annotation.'
            )
        if mark:
            marks.setdefault(image, []).append(mark)
        else:
            references[image].append(caption)
    if not references or not all(map(_is_id, references)):
        raise ValueError(
            f'{path} is not in COCO\'s annotation format. It must have "images", each with a '
            'whole number as "id", and "annotations", each with "image_id" and "caption". '
            f"{_REMEDY}"
        )
    references = _without_marked(path, references, marks)
    empty = [image for image, captions in references.items() if not captions]
    if empty and not partial:
        raise ValueError(
            f"{path} has no captions for {named(empty)}. Add captions, remove the images, or score "
            "only the images that have captions, with `partial`."
        )
    return {image: captions for image, captions in references.items() if captions}


def load_domains(path: str | os.PathLike) -> dict[int, str]:
    """Reads the domains of images, such as "out-domain", from the annotation file of nocaps.

    Args:
      path: a JSON file in COCO's annotation format, whose images may have the key "domain".

    Returns:
      Image id -> domain, for the images that have one.
    """
    content = read_json(path, _REMEDY)
    images = content.get("images", []) if isinstance(content, dict) else []
    return {
        entry["id"]: str(entry["domain"])
        for entry in _entries(images)
        if _is_id(entry.get("id")) and entry.get("domain")
    }


def _without_marked(
    path: str | os.PathLike, references: dict[int, list[str]], marks: Mapping[int, Sequence[str]]
) -> dict[int, list[str]]:
    """Leaves out images that have only marked captions, and says in a note what the file marks."""
    if not marks:
        return references
    note = left_out(itertools.chain.from_iterable(marks.values()))
    empty = [image for image in marks if not references[image]]
    more = f", and {named(empty)} without another caption" if empty else ""
    _log.info(f"note: {path}: {note}{more}")
    if len(empty) == len(references):
        raise ValueError(
            f"{path} marks all captions as unusable. Remove the marks ({', '.join(UNUSABLE)}) of "
            "those that are to be used."
        )
    return {
        image: captions for image, captions in references.items() if captions or image not in marks
    }


def _entries(content: object) -> list[dict]:
    """Returns a list of dictionaries; what is none becomes a dictionary that fails every check."""
    content = content if isinstance(content, list) else [content]
    return [entry if isinstance(entry, dict) else {"": entry} for entry in content]


def _is_id(image: object) -> bool:
    return type(image) is int  # and not bool, whose values are ints as well


def common(references: Mapping[int, Any], runs: Iterable[Mapping[int, Any]]) -> list[int]:
    """Returns the ids of the images that have references and, in every run, a caption.

    Args:
      references: a dictionary by image id; its values are not used.
      runs: for each run a dictionary by image id; the values are not used.

    Returns:
      The ids, in the order of `references`.

    Raises:
      ValueError: there is no such image.
    """
    runs = list(runs)
    images = [image for image in references if all(image in captions for captions in runs)]
    if not images:
        raise ValueError(
            "No image has both references and captions. Give files of the same data set, with the "
            "same image ids."
        )
    return images


def check_ids(references: Mapping[int, Any], predictions: Mapping[int, Any]) -> None:
    """Checks that references and predictions are of the same images.

    Args:
      references: a dictionary by image id; its values are not used.
      predictions: a dictionary by image id; its values are not used.

    Raises:
      ValueError: the two have different image ids, or both are empty.
    """
    remedy = (
        "Give files of the same split, such as references_val.json of the prepared data, or score "
        "only the images that both have, with `partial`."
    )
    if unknown := [image for image in predictions if image not in references]:
        raise ValueError(
            f"There are no references for {named(unknown)} of the {len(predictions)} predictions. "
            f"{remedy}"
        )
    if missing := [image for image in references if image not in predictions]:
        raise ValueError(
            f"There are no predictions for {named(missing)} of the {len(references)} images with "
            f"references. {remedy}"
        )
    if not references:
        raise ValueError(
            "There is nothing to score: no predictions and no references. Give at least one image."
        )


def write_results(
    path: str | os.PathLike, predictions: Mapping[int, str], names: Mapping[int, str] | None = None
) -> None:
    """Writes captions to a JSON file in COCO's result format.

    Args:
      path: the file.
      predictions: image id -> caption.
      names: image id -> name of the picture file, which is written as "file_name". None leaves this
        entry out.
    """
    entries: list[dict[str, Any]] = []
    for image, caption in predictions.items():
        name = {"file_name": names[image]} if names else {}
        entries.append({"image_id": int(image), **name, "caption": caption})
    write_json(path, entries, indent=None)


def write_hypotheses(
    path: str | os.PathLike,
    captions: Mapping[int, Sequence[str]],
    scores: Mapping[int, Sequence[float]] | None = None,
) -> None:
    """Writes several captions of each image: `[{"image_id": 1, "captions": ["a dog", …]}, …]`.

    Args:
      path: the file, in JSON.
      captions: image id -> captions, best first.
      scores: image id -> score of each caption, which is written as "scores". None leaves this
        entry out.
    """
    entries = []
    for image, texts in captions.items():
        entries.append({"image_id": int(image), "captions": list(texts)})
        if scores is not None:
            entries[-1]["scores"] = [float(score) for score in scores[image]]
    write_json(path, entries, indent=None)


# The archive that COCO's caption server takes: a result file for each of two splits.


def check_submission(split: str, images: int) -> str:
    """Checks that a split can be submitted to COCO's caption server.

    Args:
      split: name of the split: `val2014` or `test2014`, the two that the server takes, or `val` or
        `test` for short.
      images: number of images that have captions; the server takes whole splits only.

    Returns:
      The name of the split at the server: `val2014` or `test2014`.

    Raises:
      UsageError: `split` is another split, or images are missing.
    """
    name = f"{split.removesuffix('2014')}2014"
    if name not in SUBMISSION_IMAGES:
        raise errors.UsageError(
            f"`submission` is for the splits val2014 and test2014 of COCO, not for {split}. "
            "Give one of them as `split`."
        )
    if images != SUBMISSION_IMAGES[name]:
        raise errors.UsageError(
            f"`submission` needs all {SUBMISSION_IMAGES[name]} images of {name}, but the split has "
            f"{images}. Give data with the whole split."
        )
    return name


def add_submission(path: str, split: str, captions: Mapping[int, str]) -> str:
    """Adds the captions of a split to the ZIP archive that COCO's caption server takes.

    Args:
      path: the archive, NAME.zip or captions_NAME_results.zip; it is made if it does not exist.
        The captions become the file captions_SPLIT_NAME_results.json inside it, as the server
        demands.
      split: `val2014` or `test2014`, or `val` or `test` for short.
      captions: image id -> caption, for all images of the split.

    Returns:
      A line for the user that says which split was added and which one is still missing.

    Raises:
      UsageError: `split` is another split, or images are missing.
    """
    split = check_submission(split, len(captions))
    stem = os.path.splitext(os.path.basename(path))[0]
    name = re.sub(r"^captions_|_results$", "", stem)
    members = {}
    if os.path.exists(path):
        with zipfile.ZipFile(path) as archive:
            members = {member: archive.read(member) for member in archive.namelist()}
    entries = [{"image_id": int(i), "caption": captions[i]} for i in sorted(captions)]
    members[f"captions_{split}_{name}_results.json"] = json.dumps(entries).encode()
    with replacing(path) as temporary, zipfile.ZipFile(temporary, "w") as archive:
        for member in sorted(members):
            archive.writestr(member, members[member], zipfile.ZIP_DEFLATED)
    lacking = [o for o in SUBMISSION_IMAGES if not any(o in member for member in members)]
    rest = f"; give the same `submission` with the split {lacking[0]}" if lacking else ""
    return f"{path}: captions of all images of {split}{rest}"


# Scores


def write_metrics(
    path: str | os.PathLike,
    scores: Scores,
    signature: str = "",
    others: Mapping[str, Any] | None = None,
) -> None:
    """Writes the scores of a set of images as a JSON object.

    Each score of `scores.corpus` becomes an entry under its own key, such as "CIDEr".
    "domains", "unavailable" and "notes" are entries if they are not empty, so that a reader of the
    scores also sees their limits.

    Args:
      path: the file.
      scores: the scores, of which `corpus`, `domains`, `unavailable` and `notes` are written.
      signature: the settings of the reward with which the model was trained, as text from
        `objectives.rewards.signature`. If it is empty, the entry "signature" is left out.
      others: further entries of the object: key -> value.
    """
    content: dict[str, Any] = {key: scores.corpus[key] for key in KEYS if key in scores.corpus}
    further = {
        "signature": signature,
        "domains": scores.domains,
        "unavailable": scores.unavailable,
        "notes": scores.notes,
    }
    content |= {key: value for key, value in further.items() if value} | dict(others or {})
    write_json(path, content, indent=2)


def write_per_image(
    path: str | os.PathLike,
    scores: Scores,
    perplexities: Mapping[int, Sequence[float]] | None = None,
) -> None:
    """Writes the scores of each image as a JSON object.

    Its form is `{image id: {key of the score: score, "perplexities": [one for each reference]}}`.

    Args:
      path: the file.
      scores: the scores, of which `per_image` is written.
      perplexities: image id -> perplexity of each reference. None leaves "perplexities" out.
    """
    content: dict[str, Any] = {str(i): dict(values) for i, values in scores.per_image.items()}
    for image, values in (perplexities or {}).items():
        content[str(image)]["perplexities"] = [float(value) for value in values]
    write_json(path, content, indent=None)


def format_table(scores: Scores, intervals: Mapping[str, str] | None = None) -> str:
    """Formats the scores of a set of images as a table with a line for each score.

    Args:
      scores: the scores. A requested metric that was not computed has "-" in the table. The reasons
        and the notes stand below the table.
      intervals: key of the score -> its interval as text, from `bootstrap.interval_text`. None
        prints no intervals.
    """
    intervals = intervals or {}
    shown = [key for key in KEYS if key in scores.corpus or key in scores.unavailable]
    width = max([8, *map(len, shown)])
    lines = [f"{'metric':<{width}} {'score':>7}", f"{'-' * width} {'-' * 7}"]
    for key in shown:
        value = f"{scores.corpus[key]:7.2f}" if key in scores.corpus else f"{'-':>7}"
        lines.append(f"{key:<{width}} {value}{intervals.get(key, '')}")
    if intervals:
        lines.append(f"{len(scores.per_image)} images; in brackets 95 % intervals (bootstrap)")
    lines += [f"{key} is not computed: {why}" for key, why in scores.unavailable.items()]
    lines += [f"note: {note}" for note in scores.notes]
    return "\n".join(lines)


def format_domains(scores: Scores) -> str:
    """Formats the scores of the domains as a table with a column for each domain and one for all.

    Args:
      scores: the scores, of which `domains` has at least one domain.
    """
    columns = {**scores.domains, "all": {"images": len(scores.per_image), **scores.corpus}}
    widths = {name: max(11, len(name)) for name in columns}
    lines = [" ".join([f"{'':<12}", *(f"{name:>{widths[name]}}" for name in columns)])]
    for key in ["images", *(key for key in KEYS if key in scores.corpus)]:
        digits = 0 if key == "images" else 2
        cells = (f"{values[key]:{widths[name]}.{digits}f}" for name, values in columns.items())
        lines.append(" ".join([f"{key:<12}", *cells]))
    return "\n".join(lines)


def named(images: Iterable[int]) -> str:
    """Returns image ids as text for a message, for example "images 1, 2".

    If there are more than three ids, the text has the first three and the number of all ids.

    Args:
      images: the image ids.
    """
    images = list(images)
    shown = ", ".join(map(str, images[:3]))
    more = f", … ({len(images)} images)" if len(images) > 3 else ""
    return f"image {shown}" if len(images) == 1 else f"images {shown}{more}"
