"""Builds what a configuration describes: the captioner, its backbone and the search."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from tfcap import configs, decoding, models, segmentation
from tfcap.backbones.backbone import Backbone
from tfcap.data.document_frequency import DocumentFrequencies
from tfcap.data.tokens import FUNCTION_WORDS, Vocab
from tfcap.decoding.search import Consensus, Search
from tfcap.ids import UNK
from tfcap.models.captioner import Captioner
from tfcap.models.end_to_end import EndToEnd
from tfcap.objectives import ngrams


def build_model(task: configs.Task, vocab_size: int, features: Mapping[str, Any]) -> Captioner:
    """Builds the captioner of a configuration, with random weights.

    Args:
      task: the configuration.
      vocab_size: number of words of the vocabulary, V.
      features: the entry `features` of dataset.json, which has the widths of the features.

    Raises:
      ValueError: the option `set_widths` of the captioner has other widths than the data.
    """
    system = task.model.type or ""
    options = task.model.get().as_dict()
    if "set_widths" in options and "set_widths" in features:
        widths = " ".join(map(str, features["set_widths"]))
        given = str(options["set_widths"]) or widths
        if given.split() != widths.split():
            raise ValueError(
                f"task.model.{system}.set_widths is {given!r}, but the feature sets of the data "
                f"have the widths {widths!r}. Leave the key out: the widths of the data are used."
            )
        options["set_widths"] = widths
    width = width_of(task, features)
    return models.build(system, vocab_size, task.max_length, width, **options)


def width_of(task: configs.Task, features: Mapping[str, Any]) -> int:
    """Returns the width F of the features that the captioner of a configuration reads.

    Most captioners read one vector of each region. Some read one vector of the whole image instead,
    if the data has such a vector. The two kinds of vectors can have different widths.

    Args:
      task: the configuration.
      features: the entry `features` of dataset.json, which has the widths.
    """
    reads_image = models.MODELS[task.model.type or ""].reads_image
    return features["image_dim" if reads_image and "image_dim" in features else "dim"]


def with_backbone(
    captioner: Captioner, task: configs.Task, fingerprint: Mapping[str, Any], directory: str
) -> Captioner:
    """Joins a captioner and its backbone into one model, if the configuration trains both.

    Args:
      captioner: the captioner, which reads features.
      task: the configuration; `task.backbone.trainable` decides.
      fingerprint: the content of dataset.json, which names the backbone.
      directory: the directory with the weights of the backbone: prepared data or a training run.

    Returns:
      An `EndToEnd` model, which reads pictures; `captioner` itself if the backbone is not trained.

    Raises:
      ValueError: the backbone is to be trained, but has no weights.
    """
    if not task.backbone.trainable:
        return captioner
    backbone = Backbone.from_fingerprint(fingerprint, directory)
    if backbone.model is None:
        raise ValueError(
            f"task.backbone.trainable is true, but the backbone {backbone.backbone_name} has no "
            "weights to train. Set the key to false, or prepare the data with another `backbone` "
            "of tfcap.prepare, and with `keep_pictures` of tfcap.prepare."
        )
    return EndToEnd(captioner, backbone, trainable=task.backbone.learning_rate_factor > 0)


def count_parameters(model: Captioner) -> int:
    """Returns the number of trainable parameters of a model."""
    return int(sum(np.prod(v.shape) for v in model.trainable_variables))


def build_search(
    task: configs.Task, vocab: Vocab, frequencies: Callable[[], DocumentFrequencies]
) -> Search:
    """Builds the search for captions that the decoding options of a configuration describe.

    Args:
      task: the configuration.
      vocab: the vocabulary, which gives the ids of the words that the options name.
      frequencies: a function that reads the document frequencies. It is called only if the options
        need them, that is, with `search=sample` and `order=consensus`.

    Raises:
      ValueError: an option names a word that is not in the vocabulary, or the option `prefix` is
        not shorter than the longest caption.
    """
    params = task.decoding
    options = decoding.Options(**params.as_dict()).with_ids(
        lambda name, text: _ids_of_option(vocab, name, text)
    )
    longest = params.max_length or task.max_length
    if len(options.prefix) >= longest:
        raise ValueError(
            f"task.decoding.prefix has {len(options.prefix)} words, but must be shorter than the "
            f"longest caption, {longest} words. Shorten it, or raise task.decoding.max_length."
        )
    consensus = None
    if params.search == "sample" and params.order == "consensus":
        consensus = Consensus(ngrams.CiderD(frequencies(), len(vocab)))
    return Search(options, task.max_length, consensus)


def _ids_of_option(vocab: Vocab, name: str, text: str) -> tuple[int, ...]:
    """Returns the ids of the words in the text of a decoding option, such as `suppress`."""
    if name == "bad_endings" and text == "default":
        return tuple(index for word in FUNCTION_WORDS if (index := vocab.ids([word])[0]) != UNK)
    # The text is no whole report, behind which `split` would put a full stop.
    is_report = vocab.tokens in segmentation.REPORTS
    words = text.lower().split() if is_report else vocab.split([text])[0]
    if unknown := [word for word in words if vocab.ids([word]) == [UNK]]:
        raise ValueError(
            f"task.decoding.{name}: the vocabulary does not have {', '.join(unknown)}. Use words "
            "of the run's vocab.txt."
        )
    return tuple(vocab.ids(words))
