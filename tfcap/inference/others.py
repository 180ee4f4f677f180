"""Captions of the same images by other models, or from files, to compare them with a run."""

import contextlib
import logging
import os
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from tfcap import errors, pretrained, progress, runs
from tfcap.data.prepared import PreparedData
from tfcap.inference.decode import decode_split
from tfcap.inference.subject import Other, PictureCaptioner
from tfcap.metrics import results
from tfcap.runs import Run
from tfcap.visualize.attended import Kind
from tfcap.visualize.attention import attend_split

_log = logging.getLogger(__name__)


def load_others(
    paths: Mapping[str, str],
    references: Mapping[int, object],
    data: PreparedData | None,
    split: str,
    images: Sequence[int],
    *,
    captioner_of: Callable[[Run], PictureCaptioner],
    checkpoint: str = "best",
    dtype: str = "float32",
    decoding: str = "",
    beam: int = 0,
    directory: str | None = None,
) -> dict[str, Other]:
    """Prepares what is compared with an evaluated run: captions from files, and other models.

    Files are read and models are loaded, but `decode_others` makes the captions of the models. A
    model reads the images from the first of these sources that suits it:

    1. `data`, if it has the vocabulary and the features of the model;
    2. the data that the model was trained on, if it has the same images;
    3. the picture files of `data`.

    Args:
      paths: name -> a file of captions, a run directory or the name of a pretrained model.
      references: image id -> references. A file must have captions for all these images.
      data: the prepared data of the evaluated run. None if no run is evaluated; `paths` may then
        name only files.
      split: the split of `data`.
      images: ids of the images that the models will caption.
      captioner_of: a function that makes a captioner of picture files from a run.
      checkpoint: which weights of each run are loaded, `best` or `latest`. The path of a
        checkpoint, which can only be one of the evaluated run, counts as `best`.
      dtype: precision of the models, `float32` or `bfloat16`.
      decoding: changes to the decoding options of each run, as text in the form that
        `configs.decoding` reads.
      beam: beam width of all models; 0 takes the beam width of each run.
      directory: the directory of the picture files; None takes the one that `data` names.

    Returns:
      Each name -> its `Other`: the captions of a file, or a model without captions yet.

    Raises:
      UsageError: `paths` names a run, but `data` is None.
      ValueError: a model must read picture files, but one is missing.
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
                f"`beside`: {path} is a run, but only files of captions can be compared with "
                "`predictions`. Give a file, or evaluate a run with `model_dir`."
            )
        run = runs.load(path, checkpoint if checkpoint in ("best", "latest") else "best", dtype)
        run = run.with_decoding(decoding, beam)
        readable = _readable_data(run, data, split, images)
        if readable is not None:
            search = run.search(data_dir=readable.folder)
            others[name] = Other(run=run, data=readable, search=search)
        else:
            pictures = _pictures_of(name, run, data, split, images, directory)
            others[name] = Other(run=run, captioner=captioner_of(run), pictures=pictures)
    return others


def decode_others(
    others: Mapping[str, Other],
    split: str,
    images: Sequence[int],
    *,
    batch_size: int,
    seed: int,
    attention: Kind | None = "attention",
) -> None:
    """Captions images with the models of `load_others`, and stores the captions in each `Other`.

    Args:
      others: the result of `load_others`. The models get captions; the captions of files stay.
      split: the split of the images.
      images: ids of the images to caption.
      batch_size: number of images captioned together.
      seed: random seed of sampling.
      attention: what models that read picture files also compute and store. `attention` means the
        attention weights. `contribution` means how much each region contributed to each word, by
        gradients. None means neither. This argument has no effect on models that read prepared
        data; `attend_others` computes their attention weights.
    """
    for name, other in others.items():
        if other.captioner is not None:
            _caption_pictures(name, other, other.captioner, batch_size, seed, attention)
        elif other.run is not None and other.data is not None:
            _log.info(f"{name}: {other.run.described} on {other.data.folder}")
            last = np.flatnonzero(np.isin(other.data.index(split).id, images))[-1]
            captions = decode_split(
                other.run,
                other.data,
                split,
                batch_size,
                search=other.search,
                limit=int(last) + 1,
                seed=seed,
            ).best()
            other.captions = {image: captions[image] for image in images}


def attend_others(others: Mapping[str, Other], split: str, batch_size: int) -> None:
    """Computes the attention weights of models that read prepared data, and stores them in `Other`.

    `decode_others` computes those of models that read picture files. Captions that came from files
    have no attention weights.

    Args:
      others: the models with their captions, after `decode_others`.
      split: the split of the images.
      batch_size: number of images computed together.
    """
    for name, other in others.items():
        if other.run is None or other.data is None or other.attention:
            continue
        other.attention = attend_split(
            other.run.model,
            other.run.vocab,
            other.data,
            split,
            other.captions,
            batch_size=batch_size,
            max_regions=other.run.max_regions,
        )
        if not other.attention:
            _log.info(f"note: there is no attention of {name}, because the regions have no boxes")


def data_of_first(directories: Sequence[str]) -> PreparedData:
    """Returns the prepared data of the first run whose data can be read.

    Args:
      directories: run directories.

    Raises:
      ValueError: no run has data that can be read. The error is that of the first run.
    """
    reasons = []
    for directory in directories:
        run = runs.load(directory, "best")
        try:
            return _load_data(run, run.data_dir)
        except ValueError as error:
            reasons.append(error)
    raise reasons[0]


def _caption_pictures(
    name: str,
    other: Other,
    captioner: PictureCaptioner,
    batch_size: int,
    seed: int,
    attention: Kind | None,
) -> None:
    _log.info(f"{name}: {captioner.runtime}, {len(other.pictures)} pictures")
    images = list(other.pictures)
    starts = range(0, len(images), batch_size)
    for start in progress.progress(starts, len(starts), "captions"):
        batch = images[start : start + batch_size]
        paths = [other.pictures[image] for image in batch]
        captions = captioner(paths, attention=attention, seed=seed)
        for image, caption in zip(batch, captions, strict=True):
            other.captions[image] = caption.text
            if caption.attended is not None:
                other.attention[image] = caption.attended


def _pictures_of(
    name: str,
    run: Run,
    data: PreparedData,
    split: str,
    images: Sequence[int],
    directory: str | None,
) -> dict[int, str | list[str]]:
    """Returns the path of the picture of each image; of all pictures if the run reads several."""
    paths: dict[int, str | list[str]] = {**data.picture_paths(split, directory)}
    if run.fingerprint.get("views", 1) > 1:
        paths = {**data.view_paths(split, directory)}
    for image in images:
        if image not in paths:
            missing = data.file_names(split).get(image, f"image {image}")
            raise ValueError(
                f"{name} was trained on other words or features than those of {data.folder}, so it "
                f"must read the picture files. But {missing} is not in "
                f"{directory or data.images or 'a directory that the data names'}. Name the "
                "directory of the pictures with `images` of tfcap.evaluate."
            )
    return {image: paths[image] for image in images}


def _readable_data(
    run: Run, data: PreparedData, split: str, images: Sequence[int]
) -> PreparedData | None:
    """Returns `data` if the run can read it, else the data that it was trained on, or None.

    `data` may have the features of the backbone that the evaluated run trained. The result has the
    features of the backbone of `run`, or the stored features.
    """
    names = data.file_names(split)
    for directory in (data.folder, run.data_dir):
        with contextlib.suppress(ValueError):
            readable = _load_data(run, directory)
            others = readable.file_names(split)
            # Other data may have other directories.
            if all(
                os.path.basename(names[image]) == os.path.basename(others.get(image, ""))
                for image in images
            ):
                return readable
    return None


def _load_data(run: Run, directory: str) -> PreparedData:
    """Opens prepared data as the run reads it; raises ValueError if the run cannot read it."""
    data = PreparedData.load(directory)
    runs.check_vocabulary(run, data)
    return run.view(data)
