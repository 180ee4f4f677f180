"""What is evaluated: a run on a split, or captions from a file; and what it is compared with.

TensorFlow is not imported here, because captions from files are scored without it.
"""

import dataclasses
import logging
import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Protocol

from tfcap import errors
from tfcap.metrics import inputs, results
from tfcap.metrics.results import Hypotheses
from tfcap.visualize.attended import Attended, Kind

if TYPE_CHECKING:
    from tfcap.data.prepared import PreparedData
    from tfcap.decoding.search import Search
    from tfcap.runs import Run

_log = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True)
class Subject:
    """A run on a split, or captions from a file.

    Attributes:
      name: the name of the run or of the file.
      split: the split of the images in `data`.
      images: the ids of the images.
      references: image id -> references; images without references are left out.
      captions: the captions from a file; None for a run.
      run: the run; None for captions from a file.
      data: the prepared data of the images; None for captions from a file without prepared data.
      search: finds the captions of the run; None for captions from a file.
    """

    name: str
    split: str
    images: list[int]
    references: dict[int, list[str]]
    captions: Hypotheses | None = None
    run: "Run | None" = None
    data: "PreparedData | None" = None
    search: "Search | None" = None

    @property
    def max_regions(self) -> int | None:
        """The largest number of regions of an image that the run reads; None for all."""
        return self.run.max_regions if self.run else None


class PictureCaption(Protocol):
    """The caption of a picture file, and the attention to its regions if that was asked for."""

    @property
    def text(self) -> str: ...
    @property
    def attended(self) -> Attended | None: ...


class PictureCaptioner(Protocol):
    """Captions picture files, as `captioning.ImageCaptioner` does; `runtime` describes it."""

    @property
    def runtime(self) -> object: ...

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
      attention: the attention of the captions, by image id. `decode_others` fills it if there are
        `pictures`, and else `attend_others`.
    """

    captions: dict[int, str] = dataclasses.field(default_factory=dict)
    run: "Run | None" = None
    data: "PreparedData | None" = None
    search: "Search | None" = None
    captioner: PictureCaptioner | None = None
    pictures: Mapping[int, str] = dataclasses.field(default_factory=dict)
    attention: dict[int, Attended] = dataclasses.field(default_factory=dict)


def subject_of_run(
    name: str,
    run: "Run",
    data: "PreparedData",
    search: "Search",
    split: str,
    limit: int = 0,
) -> Subject:
    """Returns a run on a split. Notes name what the references lack.

    Args:
      name: the name of the run.
      run: the trained captioner, or an ensemble.
      data: prepared data that the captioner can read.
      search: finds the captions, see `Run.search`.
      split: name of the split.
      limit: number of images, from the start of the split; 0 for all.
    """
    from tfcap.data.notes import unknown_words_note

    images = data.index(split).id[: limit or None].tolist()
    captions = data.references(split)
    references = {image: captions[image] for image in images if captions[image]}
    if 0 < len(references) < len(images):
        missing = len(images) - len(references)
        _log.info(f"note: {missing} images have no captions and are not scored")
    if warning := unknown_words_note(data, split):
        _log.warning(f"warning: {warning}")
    return Subject(
        errors.escaped(name), split, images, references, run=run, data=data, search=search
    )


def subject_of_captions(
    predictions: inputs.Predictions,
    references: inputs.References | None,
    split: str,
    data: "PreparedData | None" = None,
    others: Sequence[str] | None = None,
) -> Subject:
    """Returns captions of a file, or of a list or dictionary.

    Args:
      predictions: the captions, see `inputs.read_predictions`.
      references: the references, see `inputs.read_references`; None if nothing is scored.
      split: the split of the images in `data`.
      data: prepared data with the pictures and the features of the images.
      others: files of captions that are compared. Then only the images that have references and
        captions everywhere are taken. None to take all images.
    """
    path = predictions if isinstance(predictions, str | os.PathLike) else ""
    name = errors.escaped(os.path.splitext(os.path.basename(path))[0] or "captions")
    captions = inputs.read_predictions(predictions)
    if not references:
        images = list(captions.captions)
        return Subject(name, split, images, {}, captions=captions, data=data)
    texts = inputs.read_references(references, partial=others is not None)
    if others is not None:
        files = [results.load_hypotheses(path).captions for path in others]
        images = results.common(texts, [captions.captions, *files])
        _log.info(f"note: {len(images)} of {len(texts)} images with references are scored")
        captions = captions.of_images(images)
        texts = {image: texts[image] for image in images}
    if data is not None and not set(texts) & set(data.index(split).id):
        _log.info(
            f"note: split {split} of {data.folder} has none of the images, so no picture is shown "
            "or scored. `split` names another split"
        )
    return Subject(name, split, list(texts), texts, captions=captions, data=data)


def named_paths(items: Sequence[str], name: str = "") -> dict[str, str]:
    """Returns name -> path of NAME=PATH items.

    Args:
      items: the values of the argument `beside`.
      name: a name that is taken, that of the evaluated captions.
    """
    paths: dict[str, str] = {}
    for item in items:
        other, equals, path = item.partition("=")
        if not equals or not other:
            raise errors.UsageError(f"`beside={item}` must be NAME=results.json or NAME=MODEL_DIR.")
        if other == name or other in paths:
            raise errors.UsageError(
                f"`beside={item}`: the name {other} is taken. Give it a new name."
            )
        paths[other] = path
    return paths
