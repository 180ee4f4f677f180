"""Captions of other models or files, to be shown beside those of the evaluated run."""

import contextlib
import dataclasses
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from tfcap import cli, decoding, pretrained, runs
from tfcap.data.prepared import PreparedData, stored_captions
from tfcap.metrics import comparison
from tfcap.scoring.begun import first_words
from tfcap.scoring.decode import decode_split


@dataclasses.dataclass
class Beside:
    """Captions of the same images by another model, or from a file.

    Attributes:
      captions: caption by image id.
      run: the model; None for a file.
      data: the prepared data that the model read; None for a file.
      search: how the model decodes; None for a file.
      pictures: the paths of the pictures by image id, where no prepared data fits the model; then
        it captions these, and `data` and `search` are None.
      captioner: what captions the pictures.
      seen: `visualize.Attended` by image id, for captions of pictures.
    """

    captions: dict[int, str] = dataclasses.field(default_factory=dict)
    run: runs.Run | None = None
    data: PreparedData | None = None
    search: decoding.Search | None = None
    pictures: Mapping[int, str] = dataclasses.field(default_factory=dict)
    captioner: Any = None
    seen: dict[int, Any] = dataclasses.field(default_factory=dict)


def parse(items: Iterable[str], own: str) -> dict[str, str]:
    """Returns the path of each item of `--beside` by name.

    The path of a pretrained model is its directory.

    Args:
      items: each `NAME=PATH`.
      own: the name of the evaluated run.

    Raises:
      UsageError: an item has another form, or a name occurs twice.
    """
    paths: dict[str, str] = {}
    for item in items:
        name, equals, path = item.partition("=")
        if not equals or not name or name == own or name in paths:
            raise cli.UsageError(
                "--beside must be NAME=results.json or NAME=MODEL_DIR with a new name. Received: "
                f"{item!r}"
            )
        paths[name] = pretrained.place(path)
    return paths


def load(
    paths: Mapping[str, str],
    references: Mapping[int, Any],
    checkpoint: str,
    data: PreparedData | None,
    split: str,
    images: Sequence[int],
    dtype: str = "float32",
    changes: str = "",
    beam: int = 0,
    *,
    captioner_of: Callable[[runs.Run], Any],
    folder: str | None = None,
    prefix_words: int = 0,
) -> dict[str, Beside]:
    """Reads the captions of files, and loads the models of run directories without running them.

    A model reads `data` if it was trained with its words and features, else its own prepared data
    if that has the same pictures, else the picture files of `data`.

    Args:
      paths: a result file or a run directory by name.
      references: the images that files must have captions for.
      checkpoint: `best` or `latest`; a path, which belongs to one run, counts as `best`.
      data: the prepared data of the evaluated run; None without a run.
      split: its split.
      images: the images that models must have.
      dtype: the precision of the models.
      changes, beam: changes to the decoding that each run is configured with.
      captioner_of: makes what captions pictures with a run.
      folder: a further directory with the picture files.
      prefix_words: as for `decode`.

    Raises:
      UsageError: a run directory without an evaluated run.
      ValueError: a file or a run cannot be read, or an image is missing in it.
    """
    if data is None and (folders := [path for path in paths.values() if os.path.isdir(path)]):
        raise cli.UsageError(
            f"--beside NAME=MODEL_DIR needs --model_dir. Received: {folders[0]} beside "
            "--predictions. Give result files."
        )
    files = {name: path for name, path in paths.items() if not os.path.isdir(path)}
    captions = comparison.load_runs(files, references)
    by_name: dict[str, Beside] = {}
    for name, path in paths.items():
        if name in captions:
            by_name[name] = Beside(captions[name])
            continue
        run = runs.load(path, checkpoint if checkpoint in ("best", "latest") else "best", dtype)
        assert data is not None  # directories without it are refused above
        own = _data_of(run, data, split, images)
        if own is not None:
            search = run.search(changes, beam, own.folder)
            by_name[name] = Beside({}, run, own, search)
            continue
        if prefix_words:
            raise ValueError(
                f"--prefix_words needs the words and features of {name} in {data.folder}, which "
                "has others. Leave it out."
            )
        captioner = captioner_of(run)
        pictures = _pictures_of(name, data, split, images, folder)
        by_name[name] = Beside({}, run, pictures=pictures, captioner=captioner)
    return by_name


def data_of_first(folders: Sequence[str]) -> PreparedData:
    """Returns the data of the first run whose data is there and can be read.

    Raises:
      ValueError: there is none; the reason of the first run.
    """
    reasons = []
    for folder in folders:
        run = runs.load(folder, "best")
        try:
            return _seen_by(run, run.data_dir)
        except ValueError as error:
            reasons.append(error)
    raise reasons[0]


def decode(
    beside: Mapping[str, Beside],
    split: str,
    images: Sequence[int],
    batch_size: int,
    seed: int,
    prefix_words: int = 0,
    attention: str | None = "attention",
) -> None:
    """Decodes the captions of all models, in place.

    Args:
      beside: the result of `load`.
      split: the split.
      images: the images to caption, the first ones of the split of the evaluated run.
      batch_size, seed: as for `decode_split`.
      prefix_words: how many words of the first reference begin the caption of an image.
      attention: what models that caption picture files also compute, as a captioner does.
    """
    for name, one in beside.items():
        if one.captioner is not None:
            _caption(name, one, batch_size, seed, attention)
        if one.run is None or one.data is None or one.search is None:
            continue
        print(f"{name}: {one.run.described} on {one.data.folder}", flush=True)
        order = one.data.index(split).id.tolist()
        last = _last(order, images)
        model, vocab, regions = one.run.model, one.run.vocab, one.run.max_regions
        begun = None
        if prefix_words:
            stored = stored_captions(one.data, split)
            begun = first_words({image: stored[image] for image in images}, vocab, prefix_words)
        best = decode_split(
            model, vocab, one.search, one.data, split, batch_size, regions, last, seed, begun
        ).best()
        one.captions = {image: best[image] for image in images}


def same_weights(one: runs.Run, other: runs.Run) -> bool:
    """Whether two runs have equal weights, as where the best checkpoint is the start of the run."""
    mine, theirs = (
        {name: variable.numpy() for name, variable in run.whole.checkpoint_items["weights"].items()}
        for run in (one, other)
    )
    return mine.keys() == theirs.keys() and all(np.array_equal(mine[k], theirs[k]) for k in mine)


def _caption(name: str, one: Beside, batch_size: int, seed: int, attention: str | None) -> None:
    """Captions the pictures of a model, in place. Raises ValueError for one that is not read."""
    print(f"{name}: {one.captioner.engine}, {len(one.pictures)} pictures", flush=True)
    images = list(one.pictures)
    starts = range(0, len(images), batch_size)
    for start in cli.progress(starts, len(starts), "captions"):
        part = images[start : start + batch_size]
        paths = [one.pictures[image] for image in part]
        found = one.captioner(paths, attention=attention, seed=seed)
        one.captions |= {image: caption.text for image, caption in zip(part, found, strict=True)}
        one.seen |= {image: caption.seen for image, caption in zip(part, found, strict=True)}


def _pictures_of(
    name: str, data: PreparedData, split: str, images: Iterable[int], folder: str | None
) -> dict[int, str]:
    """Returns the path of each picture. Raises ValueError if one is missing."""
    paths = data.picture_paths(split, folder)
    names = data.file_names(split)
    for image in images:
        if image not in paths:
            raise ValueError(
                f"{name} was trained on other words or features than {data.folder} has, so it "
                f"captions the pictures, and {names.get(image, f'image {image}')} is not in "
                f"{folder or data.images or 'any directory that the data names'}. Name their "
                "directory with --images."
            )
    return {image: paths[image] for image in images}


def _data_of(
    run: runs.Run, data: PreparedData, split: str, images: Sequence[int]
) -> PreparedData | None:
    """Returns `data` if the run can read it, else the data that it was trained on.

    `data` may have the features of the backbone that the evaluated run trained. The run beside it
    reads those of its own backbone, or the stored ones.

    Returns:
      Prepared data with the images, or None: other words or features, or other pictures.
    """
    names = data.file_names(split)
    for folder in (data.folder, run.data_dir):
        with contextlib.suppress(ValueError):
            own = _seen_by(run, folder)
            others = own.file_names(split)
            if all(_same(names[image], others.get(image)) for image in images):
                return own
    return None


def _same(name: str, other: str | None) -> bool:
    """Whether two names are of one picture file: other data may have other directories."""
    return other is not None and os.path.basename(name) == os.path.basename(other)


def _seen_by(run: runs.Run, folder: str) -> PreparedData:
    """Returns a prepared directory as the run reads it. Raises ValueError if it cannot."""
    own = PreparedData.load(folder)
    runs.check_vocabulary(run, own)
    return run.view(own)


def _last(order: Sequence[int], images: Iterable[int]) -> int:
    """Returns how many images of `order` must be decoded until all of `images` are."""
    wanted = set(images)
    return max(place for place, image in enumerate(order) if image in wanted) + 1
