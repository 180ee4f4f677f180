"""A trained captioner: its model, configuration and vocabulary, loaded from a run directory."""

import dataclasses
import os
from collections.abc import Sequence

from tfcap import configs, files, pretrained
from tfcap.backbones.backbone import Backbone
from tfcap.backbones.detector import Detector
from tfcap.backbones.side_by_side import Backbones
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
from tfcap.data.tokens import Vocab
from tfcap.decoding.confidence import Confidence
from tfcap.decoding.search import Search
from tfcap.files import arrays_sha256
from tfcap.layers import loops, precision
from tfcap.models.captioner import Captioner
from tfcap.models.end_to_end import EndToEnd
from tfcap.models.ensemble import Ensemble
from tfcap.runs.build import build_model, build_search, with_backbone
from tfcap.runs.checkpoints import find, newest_checkpoint, path_of, restore_weights, step_of
from tfcap.runs.confidence import read_confidence
from tfcap.runs.fingerprint import (
    check_data,
    read_fingerprint,
    source_of_features,
    with_any_weights,
)
from tfcap.runs.info import PARAMS, best_directory, info_of, scores_in, signature_of


@dataclasses.dataclass(repr=False)
class Run:
    """A trained captioner with its configuration and vocabulary, as `load` returns it.

    Attributes:
      params: the configuration.
      model: the captioner, with restored weights. It reads features.
      vocab: the vocabulary of the captioner.
      fingerprint: the content of dataset.json, which describes the data that the captioner was
        trained on.
      directory: directory of the run; for an ensemble that of the first run.
      checkpoint: path of the checkpoint that was read; for an ensemble the paths of all members,
        with ", " between them.
      signature: the objective that the weights were trained for, in one line.
      scores: validation scores of the checkpoint by name, and its step by the name
        `best_ckpt_global_step`; empty if they are not known, and for an ensemble.
      backbone: the backbone that was trained with the captioner, or the backbones of an ensemble;
        None if the captioner reads the features of the prepared data.
      confidence: estimates the probability that a caption is usable; None if the run is not
        calibrated (`tfcap.calibrate`), and for an ensemble.
    """

    params: configs.Experiment
    model: Captioner
    vocab: Vocab
    fingerprint: dict
    directory: str
    checkpoint: str
    signature: str
    scores: dict[str, float]
    backbone: Backbone | Backbones | None = None
    confidence: Confidence | None = None

    def __repr__(self) -> str:
        return f"<Run {self.directory}: {self.params.task.model.type}, {self.checkpoint}>"

    @property
    def described(self) -> str:
        """The path of the checkpoint and its training step, as a text for messages."""
        return ", ".join(
            f"{path} (step {step})" if (step := step_of(path)) else path  # 0 without a training
            for path in self.checkpoint.split(", ")
        )

    @property
    def whole(self) -> Captioner:
        """The model whose weights the checkpoint has.

        If a backbone was trained with the captioner, the result is a model of both. Otherwise it is
        the captioner.
        """
        return self.model if self.backbone is None else EndToEnd(self.model, self.backbone)

    @property
    def max_regions(self) -> int | None:
        """The largest number of regions of an image that the model reads; None if it reads all."""
        return self.params.task.validation_data.region_limit

    @property
    def data_dir(self) -> str:
        """The path of the prepared directory that the run was trained on."""
        return self.params.task.data_dir or DEFAULT_DIRECTORY

    def view(self, data: PreparedData) -> PreparedData:
        """Returns prepared data as the run's captioner reads it.

        If a backbone was trained with the captioner, this backbone computes the features of the
        result. Otherwise the result is `data`.

        Args:
          data: the prepared data.

        Raises:
          ValueError: a backbone was trained, but the data does not hold the pictures.
        """
        if self.backbone is None:
            return data
        backbones = (
            self.backbone.members if isinstance(self.backbone, Backbones) else [self.backbone]
        )
        networks = [backbone.model for backbone in backbones if backbone.model is not None]
        variables = [variable for network in networks for variable in network.variables]
        weights = {str(number): variable.numpy() for number, variable in enumerate(variables)}
        return data.with_backbone(self.backbone, arrays_sha256(weights))

    def with_decoding(self, changes: str = "", beam: int = 0) -> "Run":
        """Returns a copy of the run with other decoding options.

        The copy has no scores of captions, because other options give other captions. It keeps the
        loss and the perplexity, which do not depend on the decoding options.

        Args:
          changes: the changed options as text, for example "beam=3,max_length=20", see
            `configs.decoding`.
          beam: beam width, which takes precedence over that in `changes`; 0 changes nothing.
        """
        options = configs.decoding(self.params.task, changes, beam)
        if options == self.params.task.decoding:
            return self
        params = self.params.replace(task={"decoding": options.as_dict()})
        scores = {n: value for n, value in self.scores.items() if n in ("loss", "perplexity")}
        return dataclasses.replace(self, params=params, scores=scores)

    def search(self, *, data_dir: str | None = None) -> Search:
        """Builds the search for captions with the run's decoding options.

        Args:
          data_dir: prepared data whose document frequencies `order=consensus` uses, see
            `frequencies_directory`.

        Raises:
          ValueError: the options do not fit the vocabulary (see `build.build_search`), or they need
            document frequencies and there are none.
        """

        def frequencies() -> DocumentFrequencies:
            return load_document_frequencies(self.frequencies_directory(data_dir))

        return build_search(self.params.task, self.vocab, frequencies)

    def frequencies_directory(self, data_dir: str | None = None) -> str:
        """Returns the first directory that has document frequencies of the run's vocabulary.

        These directories are tried in order: `data_dir`, the directory of the run, and the prepared
        directory that the run was trained on.

        Args:
          data_dir: a prepared directory; None tries only the other two directories.

        Raises:
          ValueError: none of the directories has such document frequencies.
        """
        for directory in filter(None, (data_dir, self.directory, self.data_dir)):
            table = os.path.join(directory, DOCUMENT_FREQUENCY)
            words = os.path.join(directory, VOCABULARY)
            # The table counts ids: with another vocabulary it would be silently wrong.
            if files.exists(table) and files.exists(words):
                if Vocab.load(words).sha256 == self.vocab.sha256:
                    return directory
        raise ValueError(
            f"order=consensus needs the {DOCUMENT_FREQUENCY} of the run's vocabulary. Copy it from "
            f"the prepared data of the run into {self.directory}."
        )


# ---- load ----------------------------------------------------------------------------------------


def load(name: str | os.PathLike, checkpoint: str = "best", dtype: str = "float32") -> Run:
    """Loads the captioner of a training run.

    Args:
      name: directory of the run, name of a pretrained model, or `hf://OWNER/NAME`, a run on the
        Hugging Face Hub.
      checkpoint: `best`, `latest`, or the path of a checkpoint. `best` takes the checkpoint with
        the best validation score, or the latest one if there was no validation yet.
      dtype: precision in which the model computes, `float32`, `bfloat16` or `float16`.

    Raises:
      ValueError: there is no such run or checkpoint, or a file of the run is missing or damaged.
    """
    directory = pretrained.directory_of(name)
    if not os.path.isdir(directory):
        raise ValueError(
            f"There is no run directory {directory}. Give the directory of a run, or the name of "
            f"a pretrained model. {pretrained.hint()}"
        )
    params = configs.load(os.path.join(directory, PARAMS))
    fingerprint = read_fingerprint(directory)
    remedy = f"Copy {VOCABULARY} from the prepared data that the run was trained on."
    vocab = load_vocabulary(directory, fingerprint, remedy)
    with precision.scope(dtype), loops.unset_weights():
        model = build_model(params.task, len(vocab), fingerprint["features"])
    whole = with_backbone(model, params.task, fingerprint, directory)
    assert whole.backbone is None or isinstance(whole.backbone, Backbone)
    path = restore_weights(whole, _checkpoint(directory, params, checkpoint))
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
        confidence=read_confidence(directory, path),
    )


def _checkpoint(directory: str, params: configs.Experiment, name: str) -> str:
    """Returns the path of the checkpoint `best`, `latest`, or of another name."""
    if name not in ("best", "latest"):
        return find(name)
    best = best_directory(directory, params)
    return path_of(best if name == "best" and newest_checkpoint(best) else directory)


def load_together(
    names: str | os.PathLike | Sequence[str | os.PathLike],
    checkpoint: str = "best",
    dtype: str = "float32",
) -> Run:
    """Loads one run, or several runs as an ensemble.

    An ensemble predicts the mean of its runs' probabilities of the next word. It has the decoding
    options of the first run.

    Args:
      names: one run or several, each as in `load`.
      checkpoint: as in `load`; for an ensemble only `best` or `latest`.
      dtype: as in `load`.

    Raises:
      ValueError: a run cannot be loaded, or the runs of an ensemble differ in the vocabulary, the
        width of features, the network of the backbone, the number of frames or the largest number
        of regions.
    """
    listed = [names] if isinstance(names, str | os.PathLike) else list(names)
    if len(listed) > 1 and checkpoint not in ("best", "latest"):
        raise ValueError(
            f"`checkpoint={checkpoint}` names a checkpoint of one run, but there are several runs. "
            "Choose best or latest."
        )
    members = [load(name, checkpoint, dtype) for name in listed]
    first, *others = members
    if not others:
        return first
    for other in others:
        check_fits(first, other)
    backbone = None
    sources = {source_of_features(member.fingerprint) for member in members}
    if len(sources) > 1 or any(member.backbone is not None for member in members):
        backbone = Backbones([_backbone_of(member) for member in members])
    captioners = [member.model for member in members]
    policy = first.model.dtype_policy
    model = Ensemble(captioners, side_by_side=backbone is not None, name="ensemble", dtype=policy)
    return dataclasses.replace(
        first,
        model=model,
        backbone=backbone,
        checkpoint=", ".join(member.checkpoint for member in members),
        signature=" & ".join(dict.fromkeys(member.signature for member in members)),
        scores={},
        confidence=None,
    )


def _backbone_of(run: Run) -> Backbone:
    """Returns the backbone of one run: that trained with its captioner, or that of its data."""
    backbone = run.backbone
    if backbone is None:
        with precision.using(precision.of_frozen(run.model.dtype_policy)):
            backbone = Backbone.from_fingerprint(run.fingerprint, run.directory)
    assert not isinstance(backbone, Backbones)  # which an ensemble has
    if isinstance(backbone, Detector):
        raise ValueError(
            f"The runs of an ensemble need the same detector, but that of {run.directory} differs. "
            "Leave one run out."
        )
    return backbone


def check_fits(first: Run, other: Run) -> None:
    """Raises ValueError if two runs cannot be used together, because their data differs."""
    for member in (first, other):  # their systems may read other features of the same data
        check_data(
            with_any_weights(other.fingerprint),
            other.directory,
            of_run=with_any_weights(first.fingerprint),
            directory=first.directory,
            task=member.params.task,
        )
    if other.max_regions != first.max_regions:
        raise ValueError(
            f"{other.directory} and {first.directory} differ in task.validation_data."
            f"max_regions ({other.max_regions} and {first.max_regions}). "
            "Runs that are used together need the same value. Leave one run out."
        )


def load_data(run: Run, data_dir: str | None) -> PreparedData:
    """Loads prepared data for a run.

    If a backbone was trained with the captioner, this backbone computes the features of the data.

    Args:
      run: the run.
      data_dir: directory of the data; None or "" takes the data that the run was trained on.

    Raises:
      ValueError: the data is missing, or does not fit the run (see `fingerprint.check_data`).
    """
    if not data_dir and not files.exists(os.path.join(run.data_dir, FINGERPRINT)):
        raise ValueError(
            f"The data that {run.directory} was trained on is not in {run.data_dir}. Give the "
            "directory of the data as `data_dir`."
        )
    data = PreparedData.load(data_dir or run.data_dir)
    check_vocabulary(run, data)
    return run.view(data)


def check_vocabulary(run: Run, data: PreparedData) -> None:
    """Raises ValueError if data does not fit a run, see `fingerprint.check_data`.

    Args:
      run: the run.
      data: the prepared data.
    """
    check_data(
        data.fingerprint,
        data.folder,
        of_run=run.fingerprint,
        directory=run.directory,
        task=run.params.task,
    )
