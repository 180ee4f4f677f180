"""Runs an experiment: its stages, data and checks, the loop, and the summary at the end."""

import contextlib
import logging
import os
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import keras
import tensorflow as tf

from tfcap import __version__, configs, errors, files, gpus, runs
from tfcap.configs.experiments import FINETUNE
from tfcap.data.notes import unknown_words_note, unread_notes
from tfcap.data.prepared import PreparedData
from tfcap.layers import precision
from tfcap.metrics import bootstrap
from tfcap.metrics.coco import leave_one_out_cider
from tfcap.metrics.results import LOWER
from tfcap.training import distribution
from tfcap.training.best import FEWEST
from tfcap.training.loop import Loop
from tfcap.training.self_critical import build_task
from tfcap.training.start import check_splits, data_directory, load_teacher
from tfcap.training.task import CaptionTask
from tfcap.training.workers import Workers

_log = logging.getLogger(__name__)
RISING = 0.01  # the share of the best score by which a score that still rises is better


def train(
    params: configs.Experiment,
    experiment: str,
    model_dir: str,
    mode: str = "train_and_eval",
    hook: Callable | None = None,
) -> CaptionTask:
    """Runs one experiment in a directory: trains, validates, or does both.

    Args:
      params: the configuration, a result of `configs.resolve`.
      experiment: the name of the experiment.
      model_dir: the directory of the run; a run that is already there is continued.
      mode: what to do, one of `training.MODES`.
      hook: a Python function whose result is added to the reward, see `rewards.Reward`; for
        self-critical training only.

    Returns:
      the task of the run. Its attributes `captions` and `scores` are those of the last validation.
    """
    _check_validation(params, mode)
    tpu = params.runtime.distribution_strategy == "tpu"  # its strategy finds it later
    policy = precision.scope(params.runtime.mixed_precision_dtype, accelerated=tpu)
    lock = contextlib.ExitStack()  # the chief enters it: no other process can train in `model_dir`

    def begin() -> int:
        if "train" in mode:
            files.make_directory(model_dir)
            lock.enter_context(files.lock(model_dir, "train", "choose another `model_dir`"))
        return runs.begin(model_dir, experiment, params, data, train="train" in mode)

    with policy, lock:
        strategy = _strategy(params)
        workers = Workers(strategy)
        with workers.readable_errors(), workers.quiet():
            data = _common_data(workers, params, experiment, mode)
            # Before the seed is set: the teacher's layers draw numbers as they are made.
            with strategy.scope():
                teacher = load_teacher(params, data) if "train" in mode else None
            step = workers.share(begin)
            keras.utils.set_random_seed(params.task.seed)
            with strategy.scope():
                task = build_task(
                    params,
                    data,
                    replicas=strategy.num_replicas_in_sync,
                    start_step=step,
                    hook=hook,
                    workers=workers,
                    teacher=teacher,
                )
            signature = runs.signature(params.task, hook is not None)
            loop = Loop(strategy, task, params, model_dir, mode, signature)
            # Another process may be saving while this one only validates.
            workers.compare(checkpoint=runs.newest_checkpoint(model_dir))
            with data.readable_errors():
                loop.restore()
                _say_start(loop, experiment)
                loop.run()
            if "train" in mode:
                _say_end(loop)
    return task


def _check_validation(params: configs.Experiment, mode: str) -> None:
    """Raises UsageError if the mode validates, and the configuration cannot."""
    if "eval" in mode and params.trainer.validation_steps == 0:
        raise errors.UsageError(
            "trainer.validation_steps=0 validates nothing. Set -1 for all images, or train without "
            "validation: `mode=train`."
        )
    if "eval" in mode and "CLIPScore" in params.task.metrics:
        raise errors.UsageError(
            "task.metrics has CLIPScore, which training cannot compute. Remove it there, and score "
            "the run with `clip=DIRECTORY` of tfcap.evaluate."
        )


def _common_data(
    workers: Workers, params: configs.Experiment, experiment: str, mode: str
) -> PreparedData:
    """Loads the data, and checks that all workers have the same code, configuration and data."""
    if workers.count > 1 and mode == "continuous_eval":
        raise errors.UsageError(
            f"`mode=continuous_eval` runs in a single process, but this run has {workers.count} "
            "workers. Start it without TF_CONFIG and runtime.worker_hosts."
        )
    options = params.as_dict()
    options["runtime"].pop("task_index", None)
    workers.compare(version=__version__, experiment=experiment, mode=mode, configuration=options)
    directory = workers.share(lambda: data_directory(params.task.data_dir))

    def load():
        data = PreparedData.load(directory)
        check_splits(params.task, data, mode)
        return data

    data = workers.everywhere(load)
    workers.compare(data=data.fingerprint)
    return data


def _strategy(params: configs.Experiment) -> tf.distribute.Strategy:
    """Makes the distribution strategy; the batches must be divisible by its replicas."""
    strategy = distribution.strategy(params.runtime)
    replicas = strategy.num_replicas_in_sync
    for name in ("train_data", "validation_data"):
        size = getattr(params.task, name).global_batch_size
        parts = replicas * (params.task.micro_batches if name == "train_data" else 1)
        if size % parts:
            of = "replicas times task.micro_batches" if parts > replicas else "replicas"
            raise errors.UsageError(
                f"task.{name}.global_batch_size={size} is not a multiple of {parts}, the number of "
                f"{of}. Set it to a multiple, such as {size + parts - size % parts}."
            )
    return strategy


def _say_start(loop: Loop, experiment: str) -> None:
    """Logs what the run will do, or that it is finished, and warnings."""
    trainer = loop.params.trainer
    step = loop.done
    trains = "train" in loop.mode
    if step and trains and loop.over:
        key = "train_steps" if step >= trainer.train_steps else "patience"
        text = f"{loop.model_dir} is finished: {step} of {trainer.train_steps} steps. "
        text += f"A larger trainer.{key} trains on"
        warnings = []
    else:
        replicas = loop.strategy.num_replicas_in_sync
        text = (
            f"{'training' if trains else 'validation'} on "
            f"{distribution.describe_devices(loop.strategy)} in "
            f"{keras.mixed_precision.global_policy().name}, "
            f"{runs.count_parameters(loop.model):,} parameters, {replicas} "
            f"replica{'s' * (replicas > 1)}, "
            f"{f'goes on from step {step}' if step else 'from the beginning'}"
            f"{f' to step {trainer.train_steps}' * trains}, in {loop.model_dir}"
        )
        warnings = list(_warnings(loop)) if loop.workers.is_chief else []
    _log.info(f"{experiment}: {text}")
    if unused := gpus.unused_gpus(len(tf.config.list_physical_devices("GPU"))):
        warnings.append(f"{unused} To use them: {gpus.USE_GPUS}")
    for warning in filter(None, warnings):
        _log.warning(f"warning: {warning}")


def _say_end(loop: Loop) -> None:
    """Logs why training has ended early, or that more steps may help."""
    if loop.patience.over:
        _log.info(
            f"{loop.params.trainer.patience} validations without a better {loop.patience.metric}: "
            f"training ends at step {loop.done} (trainer.patience)"
        )
    elif loop.best and loop.best.gain > RISING:
        direction = "rising" if loop.best.higher else "falling"
        _log.info(
            f"at step {loop.done} {loop.best.metric} was still {direction}: a larger "
            "trainer.train_steps trains on"
        )


def _warnings(loop: Loop) -> Iterator[str]:
    """Yields warnings about unused data, and about a wrong `best_checkpoint_metric_comp`."""
    task = loop.params.task
    trainer = loop.params.trainer
    data = loop.task.data
    metric = trainer.best_checkpoint_eval_metric
    right = "lower" if metric in LOWER else "higher"
    if loop.mode != "eval" and trainer.best_checkpoint_metric_comp != right:
        yield (
            f"a {right} {metric} is better: set trainer.best_checkpoint_metric_comp={right}, or "
            "the worst checkpoint counts as the best one."
        )
    if task.objective == "scst" and not (loop.done or task.init_checkpoint):
        yield (
            "self-critical training starts from random weights. Set task.init_checkpoint to a run "
            "of cross-entropy."
        )
    if "train" in loop.mode:
        train = task.train_data
        yield from unread_notes(data, train.split, task.max_length, train.max_regions)
    if loop.best and (images := _validated(loop)) < FEWEST:
        yield (
            f"{images} validation images are too few to choose the best checkpoint: their score is "
            f"mostly chance. Use at least {FEWEST}: `splits` of tfcap.prepare, or a larger "
            "task.validation_data.limit."
        )
    if "eval" in loop.mode:
        yield unknown_words_note(data, task.validation_data.split)


def _validated(loop: Loop) -> int:
    """Returns the number of validation images that have captions."""
    config = loop.params.task.validation_data
    references = list(loop.task.data.references(config.split).values())
    return sum(map(bool, references[: config.limit or None]))


# ---- stages -------------------------------------------------------------------------------------


class Stage(NamedTuple):
    """One stage of training: a run with its own configuration and directory.

    Attributes:
      params: the configuration.
      experiment: the name of the experiment.
      model_dir: the directory of the run.
    """

    params: configs.Experiment
    experiment: str
    model_dir: str


def resolve_stages(
    mode: str,
    first: tuple[str, str, Sequence[str], str],
    then: str | Sequence[str] = (),
    config_files: Sequence[str] = (),
    override: str = "",
) -> list[Stage]:
    """Makes the configurations of all stages, so that errors appear before the first one runs.

    A later stage starts from the best checkpoint of the stage before it, and has the same data and
    model as that stage.

    Args:
      mode: the mode of training; later stages need `train_and_eval`.
      first: the first stage: its experiment, directory, YAML files and override. If the experiment
        is "", the run in the directory is continued; if the directory is "", it is
        `runs/EXPERIMENT`.
      then: the later stages, each as text: `EXPERIMENT` or `EXPERIMENT:FILE,FILE`.
      config_files: YAML files for every later stage, applied after its files in `then`.
      override: changes to the configuration of every later stage, applied last.

    Returns:
      the stages, in the order in which they run.

    Raises:
      UsageError: the configuration of a stage is not valid, there is neither an experiment nor a
        run to continue, or `then` is given with another mode than `train_and_eval`.
    """
    experiment, model_dir, first_files, first_override = first
    saved = os.path.join(model_dir, runs.PARAMS) if model_dir else ""
    if not experiment and not os.path.exists(saved):
        raise errors.UsageError(
            "`experiment` is missing, and `model_dir` holds no run to continue. For example: "
            "`experiment=xtransformer`."
        )
    then = list(filter(None, [then] if isinstance(then, str) else then))
    if then and mode != "train_and_eval":
        raise errors.UsageError(
            f"`then` needs `mode=train_and_eval`, not `mode={mode}`: a later stage starts from the "
            "best checkpoint of the stage before it."
        )
    try:
        if experiment:
            params = configs.resolve(experiment, first_files, first_override)
            if experiment in (FINETUNE, f"{FINETUNE}_scst") and not params.task.data_dir:
                raise errors.UsageError(
                    f"`experiment={experiment}` needs photographs of your own. Prepare them with "
                    "`backbone=efficientnet_lite2` of tfcap.prepare, and name the directory of the "
                    "prepared data: `params_override=task.data_dir=DIRECTORY`."
                )
        else:  # continue the run in the directory: a converted model has no other description
            experiment, params = configs.resume(saved, first_files, first_override)
        stages = [Stage(params, experiment, model_dir or os.path.join("runs", experiment))]
        for text in then:
            before = stages[-1]
            experiment, _, names = text.partition(":")
            paths = [name.strip() for name in names.split(",") if name.strip()]
            params = _after(before, experiment, [*paths, *config_files], override)
            directory = os.path.join(before.model_dir, experiment)
            stages.append(Stage(params, experiment, directory))
    except ValueError as error:
        raise errors.UsageError(str(error)) from error
    return stages


def _after(
    before: Stage, experiment: str, config_files: Sequence[str], override: str
) -> configs.Experiment:
    """Resolves a later stage with the data, model, decoding and validation of the one before it.

    Args:
      before: the stage before it.
      experiment: the experiment of the later stage.
      config_files: YAML files of the later stage.
      override: the override of the later stage, applied last.
    """
    task = configs.parse_override(override, "`then_override`").get("task")
    for key in ("data_dir", "init_checkpoint"):
        if isinstance(task, dict) and key in task:
            raise errors.UsageError(
                f"`then_override` cannot set task.{key}: a stage of `then` reads the data of the "
                "stage before it and starts from its best checkpoint. Leave this key out."
            )
    keys = ("model", "backbone", "max_length", "data_dir", "validation_data", "metrics", "decoding")
    options = before.params.task.as_dict()
    task = {key: options[key] for key in keys}
    # The batches are those of the stage, but not which images and regions they hold.
    of_data = ("split", "max_regions")
    task["train_data"] = {key: options["train_data"][key] for key in of_data}
    same = {"task": task, "runtime": before.params.runtime.as_dict()}
    try:
        params = configs.resolve(experiment, config_files, override, same)
    except ValueError as error:
        raise errors.UsageError(f"`then={experiment}`: {error}") from error
    # A recipe of a later stage names the run to start from. Here that run is the stage before.
    best = runs.best_directory(before.model_dir, before.params)
    data_dir = before.params.task.data_dir
    return params.replace(task={"data_dir": data_dir, "init_checkpoint": best})


# ---- the end ------------------------------------------------------------------------------------


def summarize(
    task: CaptionTask, params: configs.Experiment, model_dir: str, experiment: str
) -> None:
    """Logs what a finished run has reached, and the next commands.

    It logs the scores of the best checkpoint, the CIDEr that the references of an image reach
    against each other, and three captions.

    Args:
      task: the task, after the last validation.
      params: the configuration of the run.
      model_dir: the directory of the run.
      experiment: the name of the experiment.
    """
    split = params.task.validation_data.split
    best = runs.best_directory(model_dir, params)
    texts = task.data.references(split)
    images = task.captions or texts  # a limit leaves some out
    references = {image: texts[image] for image in images if texts[image]}
    lines = [*_best_scores(best, params, model_dir), *_ceiling(best, task, references)]
    if task.captions:
        lines.append("\ncaptions of the last validation:")
    for image in sorted(task.captions)[:3]:
        name = errors.escaped(task.data.file_names(split)[image])
        first, *_ = references.get(image) or ["none"]
        caption = task.data.vocab.shown(task.captions[image])
        lines.append(f"  {name}: {caption}   (a reference: {first})")
    path = tf.train.latest_checkpoint(best)  # its number is that of the export
    step = int(runs.read_best(best).get("best_ckpt_global_step", 0))
    lines.append(
        f"\nbest checkpoint: {f'{path} (step {step})' if path else 'none yet'}\n"
        f"curves:   tensorboard --logdir {model_dir}\n"
        f"scores:   python -m tfcap.evaluate --model_dir {model_dir} "
        f"--data_dir {task.data.folder} --split {split}\n"
        f"caption:  python -m tfcap.caption --model_dir {model_dir} IMAGE...\n"
        f"export:   python -m tfcap.export --model_dir {model_dir} --export_dir served/{experiment}"
    )
    _log.info("\n".join(lines))


def _best_scores(best: str, params: configs.Experiment, model_dir: str) -> Iterator[str]:
    """Yields lines with the scores of the best checkpoint, whose directory is `best`."""
    scores = runs.read_best(best)
    info = runs.read_info(best)
    step = int(scores.pop("best_ckpt_global_step", 0))
    if scores:
        count = f", {info['images']} images" if info.get("images") else ""
        yield f"\nbest validation: step {step}, {info.get('signature', runs.UNKNOWN)}{count}"
        if not step and runs.step_of(runs.newest_checkpoint(model_dir)):
            second = params.task.objective == "scst"
            what = "the second stage did not help" if second else "nothing was learnt"
            yield f"  {what}: no validation was better than that of the start, which is kept"
    for name, value in scores.items():
        interval = info.get("intervals", {}).get(name)
        yield f"  {name:18} {value:.2f}{bootstrap.interval_text(*interval) if interval else ''}"


def _ceiling(best: str, task: CaptionTask, references: dict[int, list[str]]) -> Iterator[str]:
    """Yields a line with the CIDEr of the references, which a model of these words can reach."""
    if not any(len(captions) > 1 for captions in references.values()):
        return
    ceiling = leave_one_out_cider(references, task.scorer)
    scores = runs.read_best(best)
    reached = ""
    same_images = runs.read_info(best).get("images") == len(references)
    if "CIDEr" in scores and ceiling >= 0.01 and same_images:
        reached = f", the model reaches {100 * scores['CIDEr'] / ceiling:.0f} %"
    yield f"  references against each other: CIDEr {ceiling:.2f}{reached}"
