"""What is evaluated: a run on a split, or captions from a file; and what it is compared with.

TensorFlow is not imported here, because captions from files are scored without it.
"""

import dataclasses
import logging
import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Protocol

from tfcap import errors, files, segmentation
from tfcap.metrics import inputs, results
from tfcap.metrics.results import Hypotheses
from tfcap.visualize.attended import Attended, Kind

if TYPE_CHECKING:
    from tfcap.data.prepared import PreparedData
    from tfcap.data.tokens import Vocab
    from tfcap.decoding.search import Search
    from tfcap.runs import Run

_log = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True)
class Subject:
    """What is evaluated: a run on a split of prepared data, or captions from a file.

    Attributes:
      name: the name of the run or of the file.
      split: the split of the images in `data`.
      images: the ids of the images.
      references: image id -> references; only images that have references are in it.
      domains: image id -> domain, such as "out-domain" of nocaps; empty if the images have none.
      captions: the captions from the file; None for a run, which has yet to caption the images.
      run: the run; None for captions from a file.
      data: the prepared data of the images; None if captions from a file came without it.
      search: finds the captions of the run; None for captions from a file.
      tokens: how scores cut captions and references into words, one of `segmentation.WAYS`.
    """

    name: str
    split: str
    images: list[int]
    references: dict[int, list[str]]
    domains: dict[int, str] = dataclasses.field(default_factory=dict)
    captions: Hypotheses | None = None
    run: "Run | None" = None
    data: "PreparedData | None" = None
    search: "Search | None" = None
    tokens: str = segmentation.RAW

    @property
    def max_regions(self) -> int | None:
        """The largest number of regions of an image that the run reads; None reads all."""
        return self.run.max_regions if self.run else None


class PictureCaption(Protocol):
    """The protocol of what a `PictureCaptioner` returns for a picture file.

    Its attribute `text` is the caption. Its attribute `attended` has the attention weights for the
    words of the caption; None if they were not requested. `captioning.Caption` implements this
    protocol.
    """

    @property
    def text(self) -> str: ...
    @property
    def attended(self) -> Attended | None: ...


class PictureCaptioner(Protocol):
    """The protocol of a function that captions picture files.

    It is called with the paths of picture files (a list of those of an image with several), the
    kind of attention weights to compute (None computes none) and the random seed of sampling. It
    returns a `PictureCaption` for each image. The text `str(runtime)` names its model for the user.
    `captioning.ImageCaptioner` implements this protocol.
    """

    @property
    def runtime(self) -> object: ...

    def __call__(
        self, images: Sequence[str | list[str]], *, attention: Kind | None, seed: int
    ) -> Sequence[PictureCaption]: ...


@dataclasses.dataclass
class Other:
    """What an evaluated run is compared with: another model, or captions from a file.

    Attributes:
      captions: image id -> caption. For a model it is empty until `others.decode_others` fills it.
      run: the model; None for captions from a file.
      data: the prepared data from which the model reads the images. None for captions from a file,
        and for a model that reads picture files because no prepared data fits it.
      search: the search that finds the captions of the images in `data`; None without `data`.
      captioner: the captioner of picture files, for a model that reads them; otherwise None.
      pictures: image id -> path of the picture file, or those of several, for `captioner`.
      attention: image id -> the attention weights of the caption. `others.decode_others` computes
        them for picture files, `others.attend_others` for prepared data.
    """

    captions: dict[int, str] = dataclasses.field(default_factory=dict)
    run: "Run | None" = None
    data: "PreparedData | None" = None
    search: "Search | None" = None
    captioner: PictureCaptioner | None = None
    pictures: Mapping[int, str | list[str]] = dataclasses.field(default_factory=dict)
    attention: dict[int, Attended] = dataclasses.field(default_factory=dict)

    def written(self) -> dict[int, str]:
        """Returns the captions as a file of captions has them, see `segmentation.written`."""
        if self.run is None:
            return self.captions
        tokens = self.run.vocab.tokens
        return {i: segmentation.written(text, tokens) for i, text in self.captions.items()}


def subject_of_run(
    name: str,
    run: "Run",
    data: "PreparedData",
    search: "Search",
    split: str,
    limit: int = 0,
    tokens: str | None = None,
) -> Subject:
    """Makes the `Subject` of a run on a split of prepared data.

    A note goes to the log if images have no references, and a warning if nearly all words of the
    references are outside the vocabulary.

    Args:
      name: the name of the run.
      run: the trained captioner, or an ensemble.
      data: prepared data with the vocabulary and the features of the run.
      search: finds the captions, see `Run.search`.
      split: name of the split.
      limit: number of images to take, from the start of the split; 0 takes all.
      tokens: how scores cut captions into words; None cuts them as the data does.
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
        errors.escaped(name),
        split,
        images,
        references,
        data.domains(split),
        run=run,
        data=data,
        search=search,
        tokens=tokens or data.vocab.tokens,
    )


def subject_of_captions(
    predictions: inputs.Predictions,
    references: inputs.References | None,
    split: str,
    data: "PreparedData | None" = None,
    others: Sequence[str] | None = None,
    tokens: str | None = None,
) -> Subject:
    """Makes the `Subject` of captions that exist already, in a file or in memory.

    Args:
      predictions: the captions to evaluate: a file, a list or a dictionary, in the forms of
        `metrics.inputs.read_predictions`.
      references: the references, in the forms of `metrics.inputs.read_references`; None if the
        captions are not scored.
      split: the split of the images in `data`.
      data: prepared data with the pictures and the features of the images. Without it (None) no
        pictures are shown, and the captions cannot be reranked.
      others: further files of captions, to which the captions are compared. Then only the images
        are taken that have references and a caption in `predictions` and in all these files. None
        takes all images with references; scoring then fails if one of them has no caption.
      tokens: how scores cut captions into words. None cuts them as `data` does, or else as the
        prepared data does in whose directory the file of references is.
    """
    path = predictions if isinstance(predictions, str | os.PathLike) else ""
    name = errors.escaped(os.path.splitext(os.path.basename(path))[0] or "captions")
    captions = inputs.read_predictions(predictions)
    tokens = tokens or (data.vocab.tokens if data else tokens_of_directory(references))
    if not references:
        images = list(captions.captions)
        return Subject(name, split, images, {}, captions=captions, data=data)
    texts = inputs.read_references(references, partial=others is not None)
    if others is not None:
        loaded = [results.load_hypotheses(path).captions for path in others]
        images = results.common(texts, [captions.captions, *loaded])
        _log.info(f"note: {len(images)} of {len(texts)} images with references are scored")
        captions = captions.of_images(images)
        texts = {image: texts[image] for image in images}
    if data is not None and not set(texts) & set(data.index(split).id):
        _log.info(
            f"note: split {split} of {data.folder} has none of the images, so no picture is shown "
            "or scored. `split` names another split"
        )
    domains = {}
    if isinstance(references, str | os.PathLike):
        domains = results.load_domains(references)
    return Subject(
        name, split, list(texts), texts, domains, captions=captions, data=data, tokens=tokens
    )


def cut_references(
    references: Mapping[int, Sequence[str]], vocab: "Vocab", max_length: int
) -> dict[int, list[str]]:
    """Returns references as the words that training reads, with spaces between them.

    A longer reference is cut, and words outside of the vocabulary are `<unk>`.

    Args:
      references: image id -> references.
      vocab: the vocabulary of the run.
      max_length: largest number of words of a caption, the end mark included.
    """
    from tfcap.inference.likelihood import encode_captions

    flat = [text for texts in references.values() for text in texts]
    encoded = encode_captions(vocab, flat, max_length)
    cut = iter(vocab.detokenize(encoded.tokens, joined=False).numpy())
    return {image: [next(cut).decode() for _ in texts] for image, texts in references.items()}


def tokens_of_directory(references: object) -> str:
    """Returns how prepared data cuts captions, from the dataset.json beside a file of references.

    Args:
      references: the path of the file. For anything else, and for a file that is not in a prepared
        directory, the result is `raw`.
    """
    if not isinstance(references, str | os.PathLike):
        return segmentation.RAW
    folder = os.path.dirname(os.path.expanduser(references))
    fingerprint = os.path.join(folder, "dataset.json")
    if not files.exists(fingerprint):
        return segmentation.RAW
    content = files.read_json(fingerprint, "Give `tokens`, or run prepare again.")
    way = content.get("tokens", segmentation.RAW) if isinstance(content, dict) else ""
    return way if way in segmentation.WAYS else segmentation.RAW


def named_paths(items: Sequence[str], name: str = "") -> dict[str, str]:
    """Splits items of the form NAME=PATH, and returns a dictionary, name -> path.

    Args:
      items: the values of the argument `beside`, such as "lstm=runs/lstm".
      name: the name of the evaluated captions, which an item must not use again.

    Raises:
      UsageError: an item does not have the form NAME=PATH, or its name is already used.
    """
    paths: dict[str, str] = {}
    for item in items:
        other, equals, path = item.partition("=")
        if not equals or not other:
            raise errors.UsageError(
                f"`beside={item}` must be NAME=results.json or NAME=MODEL_DIR, where NAME is a "
                "name of your choice."
            )
        if other == name or other in paths:
            raise errors.UsageError(
                f"`beside={item}`: the name {other} is already used. Choose another name before "
                "the =."
            )
        paths[other] = path
    return paths
