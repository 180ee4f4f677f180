"""Captions a whole split, with the evaluated model and with the models or files of --beside.

Letters: B images, K captions of an image, R regions, F feature width.
"""

import contextlib
import dataclasses
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tfcap import errors, pretrained, progress, runs
from tfcap.data import pipeline
from tfcap.data.prepared import PreparedData
from tfcap.data.record import inputs_of
from tfcap.data.tokens import Vocab
from tfcap.decoding.sampling import image_seeds
from tfcap.decoding.search import Search
from tfcap.metrics import results
from tfcap.metrics.results import Hypotheses
from tfcap.models.captioner import Captioner


def decode_split(
    model: Captioner,
    vocab: Vocab,
    search: Search,
    data: PreparedData,
    split: str,
    batch_size: int,
    max_regions: int | None = None,
    limit: int = 0,
    seed: int = 1,
) -> Hypotheses:
    """Decodes the captions of every image of a split, best first.

    The captions do not depend on `batch_size`. Regions beyond `max_regions`, and images beyond
    `limit`, are left out; 0 and None mean no limit. For sampling the seed of an image is derived
    from `seed` and the image id.
    """
    options = pipeline.BatchOptions(
        split=split,
        batch_size=batch_size,
        captions_per_image=1,
        max_length=search.max_length,
        max_regions=max_regions,
    )
    batches = pipeline.decoding_batches(data, options, limit=limit or None)
    specs = [dict(data.input_specs), tf.TensorSpec([None], tf.int64)]

    @tf.function(input_signature=specs, autograph=False)
    def find(inputs, ids):
        tokens, scores = search(model, model.encode(inputs), image_seeds(seed, ids))
        return vocab.detokenize(tokens), scores

    captions: dict[int, list[str]] = {}
    scores: dict[int, list[float]] = {}
    images = data.split(split)["images"]
    total = -(-min(images, limit or images) // batch_size)
    with data.readable_errors():
        for batch in progress.progress(batches, total, f"decoding {split}"):
            texts, values = find(inputs_of(data.with_features(batch)), batch["id"])
            rows = zip(batch["id"].numpy().tolist(), texts.numpy(), values.numpy(), strict=True)
            for image, found, numbers in rows:
                captions[image] = [caption.decode() for caption in found]
                scores[image] = numbers.tolist()
    return Hypotheses(captions, scores)


@dataclasses.dataclass
class Other:
    """Captions of the same images by another model, or from a file.

    A model decodes `data`; if no prepared data fits the model, `captioner` captions `pictures`.
    """

    captions: dict[int, str] = dataclasses.field(default_factory=dict)  # by image id
    run: runs.Run | None = None  # None for a file
    data: PreparedData | None = None
    search: Search | None = None
    pictures: Mapping[int, str] = dataclasses.field(default_factory=dict)  # paths
    captioner: Any = None
    seen: dict[int, Any] = dataclasses.field(default_factory=dict)  # `Attended` of pictures


def load_others(
    paths: Mapping[str, str],
    references: Mapping[int, Any],
    data: PreparedData | None,
    split: str,
    images: Sequence[int],
    *,
    captioner_of: Callable[[runs.Run], Any],
    checkpoint: str = "best",
    dtype: str = "float32",
    changes: str = "",
    beam: int = 0,
    folder: str | None = None,
) -> dict[str, Other]:
    """Reads captions from files, and loads models of run directories; does not decode yet.

    A model reads `data` if its words and features fit, else the data that it was trained on if that
    has the same pictures, else the picture files of `data`.

    Args:
      paths: a result file, a run directory or a pretrained model by name.
      references: the images that files must have captions for.
      data, split: the prepared data of the evaluated run, and its split; None without a run.
      images: the images that models must have.
      captioner_of: makes an `ImageCaptioner` of a run.
      checkpoint: `best` or `latest`; a path belongs to the evaluated run, so `best` is used.
      dtype, changes, beam: the precision, and changes to the decoding options of each run.
      folder: the directory of the picture files, if they have moved.
    """
    paths = {name: pretrained.directory_of(path) for name, path in paths.items()}
    files = {name: path for name, path in paths.items() if not os.path.isdir(path)}
    captions = results.load_runs(files, references)
    others: dict[str, Other] = {}
    for name, path in paths.items():
        if name in files:
            others[name] = Other(captions[name])
            continue
        if data is None:
            raise errors.UsageError(
                f"{path} is a run, which needs --model_dir. Beside --predictions give result files."
            )
        run = runs.load(path, checkpoint if checkpoint in ("best", "latest") else "best", dtype)
        run = run.with_decoding(changes, beam)
        own = _data_of(run, data, split, images)
        if own is not None:
            others[name] = Other({}, run, own, run.search(data_dir=own.folder))
        else:
            pictures = _pictures_of(name, data, split, images, folder)
            others[name] = Other({}, run, pictures=pictures, captioner=captioner_of(run))
    return others


def decode_others(
    others: Mapping[str, Other],
    split: str,
    images: Sequence[int],
    batch_size: int,
    seed: int,
    attention: str | None = "attention",
) -> None:
    """Decodes the captions of the models of `load_others`, and stores them there.

    `images` are the first images of the split of the evaluated run. `attention` is the option of
    `ImageCaptioner.stream`, for models that caption picture files.
    """
    for name, other in others.items():
        if other.captioner is not None:
            _caption(name, other, batch_size, seed, attention)
        elif other.run and other.data and other.search:
            run, data = other.run, other.data
            print(f"{name}: {run.described} on {data.folder}", flush=True)
            last = 1 + np.flatnonzero(np.isin(data.index(split).id, images))[-1]
            model = run.model, run.vocab, other.search
            regions, limit = run.max_regions, int(last)
            found = decode_split(*model, data, split, batch_size, regions, limit, seed)
            best = found.best()
            other.captions = {image: best[image] for image in images}


def data_of_first(folders: Sequence[str]) -> PreparedData:
    """Returns the data of the first run whose data can be read."""
    reasons = []
    for folder in folders:
        run = runs.load(folder, "best")
        try:
            return _seen_by(run, run.data_dir)
        except ValueError as error:
            reasons.append(error)
    raise reasons[0]


def _caption(name: str, other: Other, batch_size: int, seed: int, attention: str | None) -> None:
    print(f"{name}: {other.captioner.runtime}, {len(other.pictures)} pictures", flush=True)
    images = list(other.pictures)
    starts = range(0, len(images), batch_size)
    for start in progress.progress(starts, len(starts), "captions"):
        part = images[start : start + batch_size]
        paths = [other.pictures[image] for image in part]
        found = other.captioner(paths, attention=attention, seed=seed)
        for image, caption in zip(part, found, strict=True):
            other.captions[image], other.seen[image] = caption.text, caption.attended


def _pictures_of(
    name: str, data: PreparedData, split: str, images: Iterable[int], folder: str | None
) -> dict[int, str]:
    paths, names = data.picture_paths(split, folder), data.file_names(split)
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
    """Returns `data` if the run can read it, else the data that it was trained on, or None.

    `data` may have the features of the backbone that the evaluated run trained. The result has the
    features of the backbone of `run`, or the stored features.
    """
    names = data.file_names(split)
    for folder in (data.folder, run.data_dir):
        with contextlib.suppress(ValueError):
            own = _seen_by(run, folder)
            others = own.file_names(split)
            # Other data may have other directories.
            if all(
                os.path.basename(names[image]) == os.path.basename(others.get(image, ""))
                for image in images
            ):
                return own
    return None


def _seen_by(run: runs.Run, folder: str) -> PreparedData:
    own = PreparedData.load(folder)
    runs.check_vocabulary(run, own)
    return run.view(own)
