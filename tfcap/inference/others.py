"""Captions of the same images by other models, or from files, to compare them with a run."""

import contextlib
import dataclasses
import logging
import os
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, Protocol

import numpy as np

from tfcap import decoding, errors, pretrained, progress, runs
from tfcap.data.prepared import PreparedData
from tfcap.inference.decode import decode_split
from tfcap.metrics import results
from tfcap.runs import Run

if TYPE_CHECKING:
    from tfcap.visualize import Attended

Kind = Literal["attention", "contribution"]  # of attention, see `visualize.KINDS`
_log = logging.getLogger(__name__)


class PictureCaption(Protocol):
    """The caption of a picture file, and the attention to its regions if that was asked for."""

    @property
    def text(self) -> str: ...
    @property
    def seen(self) -> "Attended | None": ...


class PictureCaptioner(Protocol):
    """Captions picture files, as `captioning.ImageCaptioner` does; `engine` describes it."""

    engine: Any

    def __call__(
        self, images: Sequence[str], *, attention: Kind | None, seed: int
    ) -> Sequence[PictureCaption]: ...


@dataclasses.dataclass
class Other:
    """Captions of the same images by another model, or from a file.

    Attributes:
      captions: the caption of each image, by image id. A model fills it in `decode_others`.
      run: the model; None for a file.
      data: the prepared data that the model decodes; None if no prepared data fits the model.
      search: finds the captions of `data`.
      captioner: captions the files of `pictures` if there is no `data`.
      pictures: paths of picture files, by image id.
      attention: the attention of the captions of `pictures`, by image id.
    """

    captions: dict[int, str] = dataclasses.field(default_factory=dict)
    run: Run | None = None
    data: PreparedData | None = None
    search: decoding.Search | None = None
    captioner: PictureCaptioner | None = None
    pictures: Mapping[int, str] = dataclasses.field(default_factory=dict)
    attention: dict[int, "Attended"] = dataclasses.field(default_factory=dict)


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
    """Reads captions from files, and loads models of run directories; does not decode yet.

    A model decodes `data` if the words and features of `data` are those of the model. Otherwise it
    decodes the data that it was trained on if that has the same pictures. Otherwise it captions the
    picture files of `data`.

    Args:
      paths: name -> a result file, a run directory or the name of a pretrained model.
      references: image id -> references, of the images that files must have captions for.
      data: the prepared data of the evaluated run; None without a run, and then only files can be
        read.
      split: the split of `data`.
      images: ids of the images that models caption.
      captioner_of: makes a captioner of picture files from a run.
      checkpoint: `best` or `latest`; the path of a checkpoint belongs to the evaluated run only, so
        other runs take `best`.
      dtype: precision of the models.
      decoding: changes to the decoding options of each run, see `configs.decoding`.
      beam: beam width; 0 for that of each run.
      directory: the directory of the picture files; None for that of `data`.
    """
    paths = {name: pretrained.place(path) for name, path in paths.items()}
    files = {name: path for name, path in paths.items() if not os.path.isdir(path)}
    captions = results.load_runs(files, references)
    others: dict[str, Other] = {}
    for name, path in paths.items():
        if name in files:
            others[name] = Other(captions[name])
            continue
        if data is None:
            raise errors.UsageError(
                f"{path} is a run, which needs `model_dir`. With `predictions`, `beside` takes "
                "result files only."
            )
        run = runs.load(path, checkpoint if checkpoint in ("best", "latest") else "best", dtype)
        run = run.with_decoding(decoding, beam)
        readable = _readable_data(run, data, split, images)
        if readable is not None:
            search = run.search(data_dir=readable.folder)
            others[name] = Other(run=run, data=readable, search=search)
        else:
            pictures = _pictures_of(name, data, split, images, directory)
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
    """Captions the images with the models of `load_others`, and stores the captions in them.

    Args:
      others: the results of `load_others`.
      split: the split of the images.
      images: ids of the first images of the split of the evaluated run.
      batch_size: number of images decoded together.
      seed: random seed of sampling.
      attention: the kind of attention that a captioner of picture files computes: `attention`,
        `contribution` or None.
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


def data_of_first(directories: Sequence[str]) -> PreparedData:
    """Returns the data of the first run directory whose data can be read."""
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
    _log.info(f"{name}: {captioner.engine}, {len(other.pictures)} pictures")
    images = list(other.pictures)
    starts = range(0, len(images), batch_size)
    for start in progress.progress(starts, len(starts), "captions"):
        batch = images[start : start + batch_size]
        paths = [other.pictures[image] for image in batch]
        captions = captioner(paths, attention=attention, seed=seed)
        for image, caption in zip(batch, captions, strict=True):
            other.captions[image] = caption.text
            if caption.seen is not None:
                other.attention[image] = caption.seen


def _pictures_of(
    name: str, data: PreparedData, split: str, images: Sequence[int], directory: str | None
) -> dict[int, str]:
    """Returns the paths of the picture files of the images."""
    paths = data.picture_paths(split, directory)
    for image in images:
        if image not in paths:
            missing = data.file_names(split).get(image, f"image {image}")
            raise ValueError(
                f"{name} was trained on other words or features than those of {data.folder}, so it "
                f"captions the pictures. {missing} is not in "
                f"{directory or data.images or 'a directory that the data names'}. Name the "
                "directory of the pictures with `images`."
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
