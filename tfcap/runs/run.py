"""A trained captioner: its model, configuration and vocabulary, loaded from a run directory."""

import dataclasses
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tfcap import configs, decoding, files, models, pretrained
from tfcap.backbones.backbone import Backbone
from tfcap.data.document_frequency import (
    DOCUMENT_FREQUENCY,
    DocumentFrequencies,
    load_document_frequencies,
)
from tfcap.data.prepared import (
    DEFAULT_DIRECTORY,
    FINGERPRINT,
    VOCABULARY,
    PreparedData,
    load_vocabulary,
)
from tfcap.data.tokens import FUNCTION_WORDS, Vocab, tokenize_all
from tfcap.decoding.search import Consensus, Search
from tfcap.files import arrays_sha256
from tfcap.ids import UNK
from tfcap.layers import precision
from tfcap.models.captioner import Captioner
from tfcap.models.end_to_end import EndToEnd
from tfcap.models.ensemble import Ensemble
from tfcap.objectives import ngrams
from tfcap.runs.checkpoints import (
    newest_checkpoint,
    restore_weights,
    step_of,
)
from tfcap.runs.directory import (
    PARAMS,
    best_directory,
    check_data,
    info_of,
    read_fingerprint,
    scores_in,
    signature_of,
    source_of_features,
    width_of,
    with_any_weights,
)


@dataclasses.dataclass(repr=False)
class Run:
    """A trained captioner with its configuration, vocabulary and data.

    Attributes:
      params: the configuration.
      model: the captioner with restored weights.
      vocab: the vocabulary of the captioner.
      fingerprint: the fingerprint of the data that it was trained on.
      directory: the `--model_dir`.
      checkpoint: the path that the weights were read from.
      signature: the objective that the weights were trained for, see `signature`.
      scores: the validation scores of the checkpoint; empty where they are not known.
      backbone: the backbone that was trained with the captioner; None if the captioner reads the
        features of the prepared data.
    """

    params: Any
    model: Captioner
    vocab: Vocab
    fingerprint: dict
    directory: str
    checkpoint: str
    signature: str
    scores: dict[str, float]
    backbone: Any = None

    def __repr__(self) -> str:
        return f"<Run {self.directory}: {self.params.task.model.type}, {self.checkpoint}>"

    @property
    def described(self) -> str:
        """The checkpoint and its step, as text."""
        return ", ".join(
            f"{path} (step {step})" if (step := step_of(path)) else path  # 0 without a training
            for path in self.checkpoint.split(", ")  # an ensemble has several
        )

    @property
    def whole(self) -> Captioner:
        """The model in a checkpoint: the captioner, with its backbone if that was trained."""
        return self.model if self.backbone is None else EndToEnd(self.model, self.backbone)

    @property
    def max_regions(self) -> int | None:
        """The largest number of regions of an image that the model reads; None for all."""
        return self.params.task.validation_data.region_limit

    @property
    def data_dir(self) -> str:
        """The prepared directory that the run was trained on."""
        return self.params.task.data_dir or DEFAULT_DIRECTORY

    def view(self, data: PreparedData) -> PreparedData:
        """Returns prepared data with the features of the run's backbone, if that was trained."""
        if self.backbone is None:
            return data
        networks = [part.model for part in getattr(self.backbone, "members", [self.backbone])]
        variables = [v for network in networks if network is not None for v in network.variables]
        weights = {str(number): variable.numpy() for number, variable in enumerate(variables)}
        return data.with_backbone(self.backbone, arrays_sha256(weights))

    def with_decoding(self, changes: str = "", beam: int = 0) -> "Run":
        """Returns the run with other decoding options; arguments as in `configs.decoding`.

        Other captions have other scores, so only those of the references stay.
        """
        options = configs.decoding(self.params.task, changes, beam)
        if options == self.params.task.decoding:
            return self
        params = self.params.replace(task={"decoding": options.as_dict()})
        scores = {n: value for n, value in self.scores.items() if n in ("loss", "perplexity")}
        return dataclasses.replace(self, params=params, scores=scores)

    def search(self, *, data_dir: str | None = None) -> Search:
        """Makes the `Search` of the run's decoding options.

        `data_dir` is prepared data whose document frequencies `order=consensus` uses; by default
        the run's own copy.
        """

        def frequencies():
            return load_document_frequencies(self.frequencies_folder(data_dir))

        return build_search(self.params.task, self.vocab, frequencies)

    def frequencies_folder(self, data_dir: str | None = None) -> str:
        """Finds the directory with document frequencies: `data_dir`, the run, or its data."""
        for folder in filter(None, (data_dir, self.directory, self.data_dir)):
            paths = [os.path.join(folder, name) for name in (DOCUMENT_FREQUENCY, VOCABULARY)]
            # The table counts ids: with another vocabulary it would be silently wrong.
            if all(map(files.exists, paths)):
                if Vocab.load(paths[1]).sha256 == self.vocab.sha256:
                    return folder
        raise ValueError(
            f"order=consensus needs the {DOCUMENT_FREQUENCY} of the run's vocabulary. Copy it from "
            f"the prepared data of the run into {self.directory}."
        )


# ---- load ----------------------------------------------------------------------------------------


def load(directory: str, checkpoint: str = "best", dtype: str = "float32") -> Run:
    """Loads the captioner of a run.

    Args:
      directory: the `--model_dir`, or the name of a pretrained model, see `pretrained.place`.
      checkpoint: `best`, `latest`, or the path of a checkpoint. `best` loads the latest checkpoint
        if there was no validation yet.
      dtype: `float32` or `bfloat16`, the precision as in `runtime.mixed_precision_dtype`.
    """
    directory = pretrained.place(directory)
    if not os.path.isdir(directory):
        raise ValueError(f"There is no run directory {directory}. {pretrained.hint()}")
    params = configs.load(os.path.join(directory, PARAMS))
    fingerprint = read_fingerprint(directory)
    remedy = f"Copy {VOCABULARY} from the prepared data that the run was trained on."
    vocab = load_vocabulary(directory, fingerprint, remedy)
    width = width_of(params.task, fingerprint["features"])
    with precision.scope(dtype):
        model = build_model(params.task, len(vocab), width)
    whole = with_backbone(model, params.task, fingerprint, directory)
    if checkpoint == "best":
        best = best_directory(directory, params)
        checkpoint = best if newest_checkpoint(best) else directory
    elif checkpoint == "latest":
        checkpoint = directory
    path = restore_weights(whole, checkpoint)
    return Run(
        params,
        model,
        vocab,
        fingerprint,
        directory,
        checkpoint=path,
        signature=signature_of(path, params.task),
        scores=scores_in(info_of(path)),
        backbone=whole.backbone,
    )


def load_together(
    directories: str | Sequence[str], checkpoint: str = "best", dtype: str = "float32"
) -> Run:
    """Loads a run, or an ensemble of runs with the decoding options of the first; see `load`."""
    folders = [directories] if isinstance(directories, str) else list(directories)
    if len(folders) > 1 and checkpoint not in ("best", "latest"):
        raise ValueError("The checkpoint of an ensemble must be best or latest, not a path.")
    members = [load(folder, checkpoint, dtype) for folder in folders]
    first, *others = members
    if not others:
        return first
    for other in others:
        known, new = map(with_any_weights, (first.fingerprint, other.fingerprint))
        for member in (first, other):  # their systems may read other features of the same data
            check_data(new, other.directory, known, first.directory, member.params.task)
        if other.max_regions != first.max_regions:
            raise ValueError(
                f"{other.directory} and {first.directory} differ in task.validation_data."
                f"max_regions ({other.max_regions} and {first.max_regions}). "
                "An ensemble needs the same value."
            )
    backbone = None
    sources = {source_of_features(member.fingerprint) for member in members}
    if len(sources) > 1 or any(member.backbone is not None for member in members):
        backbone = Backbones(
            [m.backbone or Backbone.from_fingerprint(m.fingerprint, m.directory) for m in members]
        )
    captioners = [member.model for member in members]
    model = Ensemble(captioners, side_by_side=backbone is not None, name="ensemble")
    return dataclasses.replace(
        first,
        model=model,
        backbone=backbone,
        checkpoint=", ".join(member.checkpoint for member in members),
        signature=" & ".join(dict.fromkeys(member.signature for member in members)),
        scores={},
    )


class Backbones(tf.Module):
    """The backbones of several runs; the result is the concatenation of their features.

    The backbones are the same network with different weights.
    """

    def __init__(self, members: Sequence[Backbone]):
        super().__init__(name="backbones")
        self.members = list(members)
        first = self.members[0]
        self.decode, self.resize = first.decode, first.resize
        self.boxes, self.boxes_in = first.boxes, first.boxes_in
        self.decoded_shape, self.num_regions = first.decoded_shape, first.num_regions
        self.feature_dim = first.feature_dim * len(self.members)

    def extract(self, images: tf.Tensor) -> tf.Tensor:
        """Extracts the features float32 [B, R, M F] of decoded pictures, of M backbones."""
        return tf.concat([member.extract(images) for member in self.members], -1)


def load_data(run: Run, folder: str | None) -> PreparedData:
    """Loads the prepared data of `--data_dir`, or of the run if the flag is empty."""
    if not folder and not files.exists(os.path.join(run.data_dir, FINGERPRINT)):
        raise ValueError(
            f"The data of {run.directory} is not in {run.data_dir}. Give its directory as data_dir."
        )
    data = PreparedData.load(folder or run.data_dir)
    check_vocabulary(run, data)
    return run.view(data)


def check_vocabulary(run: Run, data: PreparedData) -> None:
    """Raises ValueError if the vocabulary or the features of the data differ from the run's."""
    check_data(data.fingerprint, data.folder, run.fingerprint, run.directory, run.params.task)


# ---- the model and its search --------------------------------------------------------------------


def build_model(task: configs.Task, vocab_size: int, feature_dim: int) -> Captioner:
    """Builds the captioner of a `configs.Task`, with new weights."""
    options = task.model.get().as_dict()
    return models.build(task.model.type or "", vocab_size, task.max_length, feature_dim, **options)


def with_backbone(
    captioner: Captioner, task: configs.Task, fingerprint: Mapping[str, Any], folder: str
) -> Captioner:
    """Returns the captioner, with the backbone of the data if a `configs.Task` trains both.

    The weights of the backbone are read from `folder`, the prepared data or the run; `fingerprint`
    is the fingerprint of the data.
    """
    if not task.backbone.trainable:
        return captioner
    backbone = Backbone.from_fingerprint(fingerprint, folder)
    if backbone.model is None:
        raise ValueError(
            f"task.backbone.trainable: {backbone.backbone_name} has no weights to train. Prepare "
            "the data with another --backbone and with --keep_pictures."
        )
    return EndToEnd(captioner, backbone, trainable=task.backbone.learning_rate_factor > 0)


def count_parameters(model: Captioner) -> int:
    return int(sum(np.prod(v.shape) for v in model.trainable_variables))


def build_search(
    task: configs.Task, vocab: Vocab, frequencies: Callable[[], DocumentFrequencies]
) -> Search:
    """Makes the `Search` of a `configs.Task`; looks up the ids of its words.

    `frequencies` returns the document frequencies, for `order: consensus` only.
    """
    params = task.decoding

    def ids_of(name: str, text: str) -> tuple[int, ...]:
        if name == "bad_endings" and text == "default":
            return tuple(word_id for w in FUNCTION_WORDS if (word_id := vocab.ids([w])[0]) != UNK)
        words = tokenize_all([text])[0]
        if unknown := [word for word in words if vocab.ids([word]) == [UNK]]:
            raise ValueError(
                f"task.decoding.{name}: {', '.join(unknown)} is not in the vocabulary."
            )
        return tuple(vocab.ids(words))

    options = decoding.Options(**params.as_dict()).with_ids(ids_of)
    longest = params.max_length or task.max_length
    if len(options.prefix) >= longest:
        raise ValueError(
            f"task.decoding.prefix must be shorter than the longest caption ({longest} words)."
        )
    consensus = None
    if params.search == "sample" and params.order == "consensus":
        consensus = Consensus(ngrams.CiderD(frequencies(), len(vocab)))
    return Search(options, task.max_length, consensus)
