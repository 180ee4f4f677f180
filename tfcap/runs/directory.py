"""The directory of a training run (`--model_dir`): begin, create, load, search.

It holds everything that resuming, evaluation and serving need:

params.yaml            the resolved configuration and the experiment's name
params_until_step_N.yaml    the configuration of the steps before N, if it was changed there
vocab.txt              the vocabulary of the data it was trained on
dataset.json           the fingerprint of that data
backbone.weights.h5    the backbone of that data, if it has weights; a trained one is in ckpt-N
backbone.preset/       the backbone of that data, if it is a preset of keras-hub
document_frequency.npz the document frequencies of that data, for decoding by consensus
ckpt-N.*, checkpoint   the state of training after step N, and the name of the newest checkpoint
best_ckpt/             the best checkpoint by the validation metric, and info.json
train/, validation/    curves for TensorBoard
"""

import os
import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import tensorflow as tf

from tfcap import __version__, configs, files, models
from tfcap.backbones import saved
from tfcap.data.document_frequency import DOCUMENT_FREQUENCY
from tfcap.data.prepared import FINGERPRINT, VOCABULARY, PreparedData
from tfcap.data.tokens import Vocab
from tfcap.files import read_json, write_json
from tfcap.models.captioner import Captioner
from tfcap.objectives import rewards
from tfcap.runs.checkpoints import (
    converted,
    has_half_weights,
    newest_checkpoint,
    saved_steps,
    step_of,
)

PARAMS = "params.yaml"
INFO = "info.json"  # beside the best checkpoint: its scores, step and signature
CROSS_ENTROPY = "cross-entropy"
UNKNOWN = "unknown (converted or averaged)"  # the signature of weights that were not trained here


# ---- begin and go on -----------------------------------------------------------------------------


# What must stay when a run goes on, and why: keys of params.yaml, or groups of them.
_SCORE = "by it the best checkpoint was chosen"
MUST_STAY = {
    "task.model": "the saved weights belong to it",
    "task.backbone.trainable": "it decides which weights are saved",
    "task.max_length": "the model was built for this length",
    "task.seed": "the order of the batches follows from it",
    "task.train_data.global_batch_size": "steps are counted in such batches",
    "trainer.best_checkpoint_eval_metric": _SCORE,
    "trainer.best_checkpoint_metric_comp": _SCORE,
    "trainer.optimizer_config.name": "its state is saved (task.init_checkpoint takes weights only)",
    "runtime.mixed_precision_dtype": "float16 saves a loss scale (task.init_checkpoint takes "
    "weights only)",
}
# Of these keys one value does not go with the saved state of the others: Adam and RAdam have the
# same state, and SGD has none.
_APART = {"trainer.optimizer_config.name": "sgd", "runtime.mixed_precision_dtype": "float16"}
# Keys that say where something is, and change no number.
_OF_PLACE = ("task.data_dir", "task.init_checkpoint", "task.remap_vocab", "runtime.task_index")


def begin(
    directory: str, experiment: str, params: configs.Experiment, data: PreparedData, train=True
) -> int:
    """Starts a run in `directory`, or resumes it; returns the number of steps that are done.

    `params` and `data` are the configuration and data for the next steps; `experiment` is the name
    of the experiment. If `train` is False, no file changes, because another process may be training
    in the directory.
    """
    _check_local(directory)
    path = os.path.join(directory, PARAMS)
    if train:
        files.make_directory(directory)
    if not train or any(name.startswith("ckpt-") for name in os.listdir(directory)):
        _check_same(directory, experiment, params, data, train)
    newest = newest_checkpoint(directory)
    step = step_of(newest)
    if newest and has_half_weights(newest):
        raise ValueError(
            f"Training cannot continue from {newest}: its weights are float16. Start a new run "
            f"from them: --params_override=task.init_checkpoint={newest}"
        )
    if not train:
        if not newest:
            raise ValueError(f"{directory} has no checkpoint yet: wait until training saves one.")
        return step
    best = best_directory(directory, params)
    if newest:  # also the first weights of an averaged or converted run, at step 0
        old = configs.load(path)
        if step:
            _note_changes(directory, old, params, step)
        # `init_checkpoint` is read at the first start alone: another one would be a false origin.
        origin = {key: getattr(old.task, key) for key in ("init_checkpoint", "remap_vocab")}
        params = params.replace(task=origin)
    elif read_best(best).get("best_ckpt_global_step"):
        raise ValueError(
            f"{best} is left from a training whose checkpoints were deleted. Move it away, or "
            "choose another --model_dir."
        )
    elif os.path.exists(best):  # self-critical training keeps one before its first step
        shutil.rmtree(best)
    for name in (VOCABULARY, FINGERPRINT, *saved.SAVED, DOCUMENT_FREQUENCY):
        source, target = os.path.join(data.folder, name), os.path.join(directory, name)
        if files.exists(source):
            saved.copy(source, target)
        else:  # it may be left by an earlier start that never saved a checkpoint
            files.remove(target)
    if params.task.data_dir:  # a relative path would be lost in another directory
        params = params.replace(task={"data_dir": files.absolute(data.folder)})
    configs.save(params, experiment, path)
    return step


def _check_same(
    directory: str, experiment: str, params: configs.Experiment, data: PreparedData, train: bool
) -> None:
    """Raises ValueError unless a run can be continued with a configuration and data."""
    trained_as, old = configs.resume(os.path.join(directory, PARAMS))
    if trained_as != experiment:
        raise ValueError(
            f"{directory} is a run of the experiment {trained_as}: choose another --model_dir."
        )
    trained = train and max(saved_steps(directory), default=0) > 0
    scored = train and bool(read_info(best_directory(directory, params)))
    for key, (before, now) in differing(old, params, MUST_STAY).items():
        why = next(why for group, why in MUST_STAY.items() if key.startswith(group))
        if why == _SCORE and not scored:
            continue
        if key in _APART and not (trained and _APART[key] in (before, now)):
            continue
        raise ValueError(
            f"{key} must stay {before!r} in {directory}, not {now!r}: {why}. Keep the value, or "
            "choose another --model_dir."
        )
    known = read_fingerprint(directory)
    check_data(data.fingerprint, data.folder, known, directory, params.task)


def differing(
    old: configs.Experiment, new: configs.Experiment, groups: Iterable[str] = ("",)
) -> dict[str, tuple[Any, Any]]:
    """Returns key -> (old, new) for each key that differs and begins with one of `groups`."""
    before, groups = configs.values(old), tuple(groups)
    return {
        key: (before[key], value)
        for key, value in configs.values(new).items()
        if key.startswith(groups) and before.get(key, value) != value
    }


def _note_changes(
    directory: str, old: configs.Experiment, params: configs.Experiment, step: int
) -> None:
    """Prints the changed keys of a resumed run, and saves a copy of the old configuration."""
    changed = {k: v for k, v in differing(old, params).items() if k not in _OF_PLACE}
    for key, (before, now) in changed.items():
        print(f"note: {key} {before} -> {now} from step {step}", flush=True)
    source = params.task.init_checkpoint
    if source not in ("", old.task.init_checkpoint):
        print(f"note: the run goes on, so task.init_checkpoint={source} is not read", flush=True)
    copy = os.path.join(directory, f"params_until_step_{step}.yaml")
    if changed and not os.path.exists(copy):
        shutil.copyfile(os.path.join(directory, PARAMS), copy)
        print(f"note: {copy} keeps the old values", flush=True)


def create(
    directory: str,
    experiment: str,
    params: configs.Experiment,
    vocab: Vocab,
    fingerprint: dict,
    model: Captioner,
    files: Sequence[str] = (),
    dtype: str = "",
) -> str:
    """Writes a new run directory; returns the path of its checkpoint, which is written last.

    Args:
      directory: path of the new directory; it may exist if it is empty.
      experiment, params: the name of the experiment, and the configuration of `model`.
      vocab: the vocabulary of `model`.
      fingerprint: the fingerprint of the data, as `prepare` writes it.
      model: the captioner, whose weights become the checkpoint of step 0.
      files: other files and directories to copy into it.
      dtype: the dtype of the stored weights; "" does not convert them.
    """
    _check_local(directory)
    os.makedirs(directory, exist_ok=True)
    if os.listdir(directory):
        raise ValueError(f"{directory} is not empty: name a new directory, or remove this one.")
    weights = converted(model.checkpoint_items["weights"], dtype)
    configs.save(params, experiment, os.path.join(directory, PARAMS))
    vocab.save(os.path.join(directory, VOCABULARY))
    write_json(os.path.join(directory, FINGERPRINT), fingerprint)
    for path in files:
        saved.copy(path, os.path.join(directory, os.path.basename(path)))
    step = tf.Variable(0, dtype=tf.int64, trainable=False)
    path = os.path.join(directory, "ckpt-0")
    tf.train.Checkpoint(global_step=step, weights=weights).write(path)
    with open(os.path.join(directory, "checkpoint"), "w", encoding="utf-8") as file:
        file.write('model_checkpoint_path: "ckpt-0"\nall_model_checkpoint_paths: "ckpt-0"\n')
    return path


def _check_local(directory: str) -> None:
    if files.is_remote(directory):
        raise ValueError(f"{directory} is not on a disk. Write the run to a disk and copy it.")


# ---- the data that fits a run --------------------------------------------------------------------


def width_of(task: configs.Task, features: Mapping[str, Any]) -> int:
    """Returns F, the width of the features that the system reads, from an entry of dataset.json.

    Some systems read the vector of the whole image, where the data has one.
    """
    reads_image = models.MODELS[task.model.type or ""].reads_image
    return features["image_dim" if reads_image and "image_dim" in features else "dim"]


# What must agree in the fingerprints of a run and of the data that it reads.
_SAME_DATA: dict[str, Callable[[Mapping[str, Any], configs.Task], Any]] = {
    "vocabulary": lambda fingerprint, task: fingerprint["vocab_sha256"][:12],
    "feature width": lambda fingerprint, task: width_of(task, fingerprint["features"]),
    "backbone": lambda fingerprint, task: source_of_features(fingerprint),
    "number of frames": lambda fingerprint, task: fingerprint.get("frames") or "none",
}


def check_data(
    data: Mapping[str, Any],
    folder: str,
    known: Mapping[str, Any],
    directory: str,
    task: configs.Task,
) -> None:
    """Raises ValueError if the data in `folder` does not fit the run in `directory`."""
    for name, value in _SAME_DATA.items():
        if (got := value(data, task)) != (wanted := value(known, task)):
            words = os.path.join(directory, VOCABULARY)
            again = f", or prepare with its words: --vocab {words}" * (name == "vocabulary")
            raise ValueError(
                f"{folder} has another {name} ({got}) than {directory} ({wanted}). Use the data "
                f"that {directory} was trained on{again}."
            )


def with_any_weights(fingerprint: Mapping[str, Any]) -> Mapping[str, Any]:
    """Returns a fingerprint of pictures as if its backbone had no weights."""
    made_by = fingerprint["backbone"]
    if made_by is None or fingerprint.get("frames"):
        return fingerprint
    return {**fingerprint, "backbone": {**made_by, "weights_sha256": None}}


def read_fingerprint(directory: str) -> dict:
    """Reads the fingerprint of the data that a run was trained on."""
    return read_json(os.path.join(directory, FINGERPRINT), "Give the directory of a training run.")


def source_of_features(fingerprint: Mapping[str, Any]) -> str:
    """Describes in words the network that made the features, with grid and weights."""
    made_by = fingerprint["backbone"]
    if made_by is None:
        return "ready features"
    weights = (made_by["weights_sha256"] or "none")[:12]
    size = f"grid {made_by['grid']} of" if made_by["grid"] else "regions,"
    size += f" {made_by['image_size']} pixels"
    size += ", 10 crops" if made_by.get("crops", 1) > 1 else ""
    size += ", one vector" if made_by.get("vector") else ""
    size += f", scaled as in {made_by['scaling']}" if made_by.get("scaling") else ""
    return f"{made_by['name']}, {size}, weights {weights}"


# ---- the best checkpoint -------------------------------------------------------------------------


def best_directory(directory: str, params: configs.Experiment) -> str:
    """Returns the folder of the best checkpoint of a run."""
    return os.path.join(directory, params.trainer.best_checkpoint_export_subdir or "best_ckpt")


def read_info(best: str) -> dict[str, Any]:
    """Reads the file beside the best checkpoint; empty if there is none yet.

    The file has the scores by name, `best_ckpt_global_step`, `signature`, `images` (the number of
    validated images) and `intervals` (low and high of each score, 95 %).
    """
    path = os.path.join(best, INFO)
    remedy = "Remove it: the scores beside the checkpoint are then unknown."
    return read_json(path, remedy) if os.path.exists(path) else {}


def read_best(best: str) -> dict[str, float]:
    """Reads the scores of the best checkpoint; empty if there is none yet."""
    return scores_in(read_info(best))


def scores_in(info: Mapping[str, Any]) -> dict[str, float]:
    return {name: value for name, value in info.items() if isinstance(value, float)}


def info_of(path: str) -> dict[str, Any]:
    """Reads the file that describes the checkpoint `path`; empty if there is none."""
    folder = os.path.dirname(path)
    # The file in a small run describes its own checkpoint, and not those that training adds.
    added = os.path.exists(os.path.join(folder, PARAMS)) and step_of(path)
    return {} if added else read_info(folder)


def signature_of(path: str, task: configs.Task | None) -> str:
    """Returns what the checkpoint `path` was trained for; `task` is that of its run, if known."""
    signed = info_of(path).get("signature")
    if not signed:
        signed = signature(task) if task and step_of(path) else UNKNOWN
    return CROSS_ENTROPY if signed == "XE" else signed  # so written by earlier versions


def signature(task: configs.Task, hook: bool = False) -> str:
    """Returns the objective as text, for self-critical training as SacreEOS (Hu et al. 2023) does.

    The text says whether the end mark counts, and gives the reward, the baseline with the samples
    per image, and the version. `hook` says whether a user-defined reward is added.
    """
    if task.objective == "xe":
        return CROSS_ENTROPY
    options = task.self_critical
    baseline = {"greedy": "greedy", "others": "average"}[options.baseline]
    weights = options.reward.as_dict() | ({"hook": 1.0} if hook else {})
    reward = rewards.signature(**weights)
    return f"{reward}+{baseline}[nspi{options.samples}]+tfcap-{__version__}"
