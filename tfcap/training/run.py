"""Runs one experiment: its stages, its data and checks, the loop, and what it prints at the end."""

import contextlib
import os
import statistics
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import keras
import tensorflow as tf

from tfcap import __version__, cli, configs, runs
from tfcap.configs.experiments import FINETUNE
from tfcap.data.prepared import PreparedData, losses, unlike_references
from tfcap.layers import precision
from tfcap.metrics import bootstrap
from tfcap.metrics.coco import leave_one_out_cider
from tfcap.runs.checkpoints import check_weights, find
from tfcap.training import keras3
from tfcap.training.loop import Loop
from tfcap.training.self_critical import build_task
from tfcap.training.start import begin, check_splits, data_directory, unused_options
from tfcap.training.task import CaptionTask
from tfcap.training.workers import Workers, digest

_EVAL_METRIC = "trainer.best_checkpoint_eval_metric"


def train(
    params: configs.Experiment,
    experiment: str,
    model_dir: str,
    mode: str = "train_and_eval",
    hook: Callable | None = None,
) -> CaptionTask:
    """Runs one experiment in `model_dir`.

    Args:
      params: the result of `configs.resolve`.
      experiment: its registered name.
      model_dir: the directory of the run; an existing run is continued.
      mode: one of `training.MODES`.
      hook: a reward in Python, see `rewards.Reward`; for self-critical training only.

    Returns:
      The task, with the captions of the last validation.

    Raises:
      ValueError: the configuration or the data is bad, or `model_dir` holds another run.
    """
    _check_validation(params, mode)
    tpu = params.runtime.distribution_strategy == "tpu"  # its strategy finds it later
    policy = precision.scope(params.runtime.mixed_precision_dtype, accelerated=tpu)
    lock = contextlib.ExitStack()  # the chief enters it
    with policy, lock:
        strategy = _strategy(params)
        workers = Workers(strategy)
        with workers.readable_errors(), workers.quiet():
            data = _common_data(workers, params, experiment, mode)
            step = workers.share(lambda: begin(lock, model_dir, experiment, params, data, mode))
            keras.utils.set_random_seed(params.task.seed)
            replicas = strategy.num_replicas_in_sync
            with strategy.scope():
                task = build_task(params, data, replicas, step, hook, workers)
            about = runs.signature(params.task, hook is not None)
            loop = Loop(strategy, task, params, model_dir, mode, about)
            if step:
                check_weights(loop.model, find(model_dir))
            # Another process may be saving while this one only validates.
            newest = tf.train.latest_checkpoint(model_dir) or ""
            workers.compare({"checkpoint": newest})
            with data.readable_errors():
                _begin(loop, experiment)
                loop.run()
            if "train" in mode and loop.patience.over:
                print(
                    f"{params.trainer.patience} validations without a better "
                    f"{loop.patience.metric}: training ends at step {int(loop.step.numpy())} "
                    "(trainer.patience)",
                    flush=True,
                )
    return task


def _common_data(workers, params, experiment: str, mode: str) -> PreparedData:
    """Loads the data, and checks that all workers have the same code, configuration and data."""
    options = params.as_dict()
    options["runtime"].pop("task_index", None)
    same = {"experiment": experiment, "mode": mode, "configuration": digest(options)}
    workers.compare({"version": __version__, **same})
    folder = workers.share(lambda: data_directory(params.task.data_dir))

    def load():
        if workers.count > 1 and mode == "continuous_eval":
            raise cli.UsageError("--mode=continuous_eval needs a single worker.")
        data = PreparedData.load(folder)
        check_splits(params.task, data, mode)
        return data

    data = workers.everywhere(load)
    workers.compare({"data": digest(data.fingerprint)})
    return data


def _check_validation(params, mode: str) -> None:
    """Checks that a validation reads images and can compute the scores, which need no CLIP.

    It is no rule of configurations: a run of an earlier version that never validated can be loaded.
    """
    if "eval" in mode and params.trainer.validation_steps == 0:
        raise cli.UsageError(
            "trainer.validation_steps=0 validates nothing. Set -1 for all images, or train without "
            "validation: --mode=train."
        )
    if "eval" in mode and "CLIPScore" in params.task.metrics:
        raise cli.UsageError(
            "Training cannot compute CLIPScore of task.metrics. Leave it out, and score the run "
            "with python -m tfcap.evaluate --scores CLIPScore --clip DIRECTORY."
        )


def _strategy(params: configs.Experiment) -> tf.distribute.Strategy:
    """Makes the distribution strategy and checks that it divides the batches."""
    try:
        strategy = keras3.strategy(params.runtime)
    except ValueError as error:
        raise cli.UsageError(str(error)) from error
    replicas = strategy.num_replicas_in_sync
    for name in ("train_data", "validation_data"):
        size = getattr(params.task, name).global_batch_size
        parts = replicas * (params.task.micro_batches if name == "train_data" else 1)
        if size % parts:
            raise cli.UsageError(
                f"task.{name}.global_batch_size={size} is not a multiple of {parts}, the number of "
                "replicas times micro-batches."
            )
    return strategy


def _begin(loop: Loop, experiment: str) -> None:
    """Restores the run and prints what begins, or how far a finished run went."""
    loop.restore()
    step, steps = int(loop.step.numpy()), loop.params.trainer.train_steps
    finished = ""
    if step and "train" in loop.mode and loop.over:
        key = "train_steps" if step >= steps else "patience"
        finished = f"{step} of {steps} steps. A larger trainer.{key} trains on"
    started = f"{loop.model_dir} is finished: {finished}" if finished else _start_line(loop)
    print(f"{experiment}: {started}", flush=True)
    doubts = []
    if loop.workers.is_chief and not finished:
        doubts = _doubts(loop.params, loop.task.data, loop.mode)
    if unused := cli.unused_gpus(len(tf.config.list_physical_devices("GPU"))):
        doubts.append(f"{unused} To use them: {cli.USE_GPUS}")
    print(*(f"warning: {doubt}\n" for doubt in doubts), sep="", end="", file=sys.stderr, flush=True)


def _doubts(params, data: PreparedData, mode: str) -> list[str]:
    """Returns what the training does not do as it seems to: options, captions and references."""
    task, found = params.task, unused_options(params, mode)
    if "train" in mode:
        limits = task.train_data.split, task.max_length, task.train_data.max_regions
        found += losses(data, *limits)
    unlike = unlike_references(data, task.validation_data.split) if "eval" in mode else ""
    return found + [unlike] * bool(unlike)


def _start_line(loop: Loop) -> str:
    """Describes what begins: devices, precision, size and steps."""
    replicas, step = loop.strategy.num_replicas_in_sync, int(loop.step.numpy())
    steps = f"goes on from step {step}" if step else "from the beginning"
    if "train" in loop.mode:
        steps += f" to step {loop.params.trainer.train_steps}"
    return (
        f"{'training' if 'train' in loop.mode else 'validation'} on "
        f"{keras3.describe_devices(loop.strategy)} in "
        f"{keras.mixed_precision.global_policy().name}, "
        f"{runs.count_parameters(loop.model):,} parameters, {replicas} "
        f"replica{'s' * (replicas > 1)}, {steps}, in {loop.model_dir}"
    )


# ---- stages -------------------------------------------------------------------------------------


def later_stages(
    then: str | Sequence[str], config_files: Sequence[str], override: str
) -> list[tuple[str, list[str], str]]:
    """Reads the flags of later stages: experiment, YAML files and override of each.

    `then` has the values of `--then`, each `EXPERIMENT` or `EXPERIMENT:FILE,FILE`; the files and
    the override of every later stage come after those of one.
    """
    stages = []
    for text in filter(None, [then] if isinstance(then, str) else then):
        experiment, _, own = text.partition(":")
        files = [name.strip() for name in own.split(",") if name.strip()]
        stages.append((experiment, [*files, *config_files], override))
    return stages


def resolve_stages(mode: str, first: tuple, later: Sequence[tuple]) -> list[tuple[Any, str, str]]:
    """Resolves all stages before the first one runs.

    Args:
      mode: the mode of training; later stages need `train_and_eval`.
      first: experiment, directory, YAML files and override of the first stage.
      later: what `later_stages` returns.

    Returns:
      Configuration, experiment and directory of each stage.
    """
    experiment, model_dir, *changes = first
    begun = os.path.join(model_dir, runs.PARAMS) if model_dir else ""
    if not experiment and not os.path.exists(begun):
        raise cli.UsageError(
            "--experiment is missing, and --model_dir holds no run to continue. For example: "
            "--experiment=xtransformer."
        )
    try:
        if experiment:
            params = configs.resolve(experiment, *changes)
            if experiment == FINETUNE and not params.task.data_dir:
                raise cli.UsageError(
                    f"--experiment={experiment} needs photographs of your own, prepared with the "
                    "backbone of the packaged captioner: --params_override=task.data_dir=data/mine"
                )
        else:  # continue the run in the directory: a converted model has no other description
            experiment, params = configs.resume(begun, *changes)
        stages = [(params, experiment, model_dir or os.path.join("runs", experiment))]
        for stage in later:
            before, _, folder = stages[-1]
            stages.append(_after(before, folder, mode, *stage))
    except ValueError as error:
        raise cli.UsageError(str(error)) from error
    return stages


def _after(before, model_dir, mode, experiment, config_files, override):
    """Resolves a stage of `--then` after the stage `before`, which runs in `model_dir`."""
    if mode != "train_and_eval":
        raise cli.UsageError("--then needs --mode=train_and_eval.")
    _refuse_fixed(override)
    keys = ("model", "backbone", "max_length", "data_dir", "validation_data", "metrics", "decoding")
    known = before.task.as_dict()
    task = {key: known[key] for key in keys}
    # The batches are those of the stage, but not which images and regions they hold.
    of_data = ("split", "max_regions", "pad_to_max")
    task["train_data"] = {key: known["train_data"][key] for key in of_data}
    same = {"task": task, "runtime": before.runtime.as_dict()}
    try:
        params = configs.resolve(experiment, config_files, override, same)
    except ValueError as error:
        remedy = ""
        if str(error).startswith(_EVAL_METRIC):  # it may stand in --params_override alone
            remedy = (
                ". A stage of --then has the task.metrics of the stage before it, but keys of "
                f"trainer of its own: set {_EVAL_METRIC} in --then_override"
            )
        raise cli.UsageError(f"--then={experiment}: {error}{remedy}") from error
    # A recipe of a later stage names the run to start from. Here that run is the stage before.
    best = runs.best_directory(model_dir, before)
    params = params.replace(task={"data_dir": before.task.data_dir, "init_checkpoint": best})
    return params, experiment, os.path.join(model_dir, experiment)


def _refuse_fixed(override):
    """Raises UsageError for keys that a later stage takes from the stage before it."""
    task = configs.given(override).get("task")
    for key in ("data_dir", "init_checkpoint"):
        if isinstance(task, dict) and key in task:
            raise cli.UsageError(
                f"--then_override cannot set task.{key}: a stage of --then reads the data of the "
                "stage before it and starts from its best checkpoint."
            )


# ---- the end ------------------------------------------------------------------------------------


def summarize(
    task: CaptionTask, params: configs.Experiment, model_dir: str, experiment: str
) -> None:
    """Prints the scores, the CIDEr of the references, three captions, and the next commands."""
    split = params.task.validation_data.split
    best = runs.best_directory(model_dir, params)
    scores = runs.read_best(best)
    info = runs.read_info(best)
    how, now = info.get("measured", {}), runs.measured(params)
    same = all(how.get(key, value) == value for key, value in now.items())
    step = int(scores.pop("best_ckpt_global_step", 0))
    number, intervals = info.get("images", 0), info.get("intervals", {})
    if scores:
        other = "" if same else "; this start validates with other options"
        shown = f"{_shown(now | how)}, step {step}, {runs.signature(params.task)}"
        print(f"\nbest validation: {shown}{f', {number} images' * bool(number)}{other}")
    for name, value in scores.items():
        ends = bootstrap.shown(*intervals[name]) if name in intervals else ""
        print(f"  {name:18} {value:.2f}{ends}")
    every = task.data.references(split)
    images = task.captions or every  # a limit leaves some out
    references = {image: every[image] for image in images if every[image]}
    if any(len(texts) > 1 for texts in references.values()):
        ceiling = leave_one_out_cider(references, task.scorer)
        reached = ""
        if "CIDEr" in scores and same and ceiling >= 0.01:
            reached = f", the model reaches {100 * scores['CIDEr'] / ceiling:.0f} %"
        print(f"  references against each other: CIDEr {ceiling:.2f}{reached}")
    if task.captions:
        print("\ncaptions of the last validation:")
    for image in sorted(task.captions)[:3]:
        name = cli.escaped(task.data.file_names(split)[image])
        first, *_ = references.get(image) or ["none"]
        print(f"  {name}: {task.captions[image]}   (a reference: {first})")
    data = task.data.folder
    print(
        f"\nbest checkpoint: {_checkpoint(best, step)}\n"
        f"curves:   tensorboard --logdir {model_dir}\n"
        f"scores:   python -m tfcap.evaluate --model_dir {model_dir} --data_dir {data} "
        f"--split {split}\n"
        f"caption:  python -m tfcap.caption --model_dir {model_dir} IMAGE...\n"
        f"export:   python -m tfcap.export --model_dir {model_dir} --export_dir served/{experiment}"
    )


def _checkpoint(best: str, step: int) -> str:
    """Names the best checkpoint, whose file has the number of the export, and its step."""
    path = tf.train.latest_checkpoint(best)
    return f"{path} (step {step})" if path else "none yet"


def _shown(how: Mapping[str, Any]) -> str:
    """Names the images and the search of `runs.measured`."""
    split, limit = (how[f"task.validation_data.{key}"] for key in ("split", "limit"))
    search, samples, beam = (how[f"task.decoding.{key}"] for key in ("search", "samples", "beam"))
    steps = how["trainer.validation_steps"]
    batches = [steps * how["task.validation_data.global_batch_size"]] if steps > 0 else []
    first = min([limit] * bool(limit) + batches, default=0)
    images = f"the first {first} images of {split}" if first else split
    return f"{images}, {f'{samples} samples' if search == 'sample' else f'beam {beam}'}"


def seed_directory(model_dir: str, seed: int) -> str:
    """Returns the directory of the run of one seed."""
    return os.path.join(model_dir, f"seed_{seed}")


def seed_table(model_dirs: Mapping[int, str]) -> str:
    """Returns the best validation scores of several runs as text.

    Args:
      model_dirs: the directory of the run of each seed.

    Returns:
      A line for each score that all runs have: mean, standard deviation with n - 1, and the values
      in the order of the seeds. Empty if the runs have no scores.
    """
    best = {}
    for seed, folder in model_dirs.items():
        params = configs.load(os.path.join(folder, runs.PARAMS))
        best[seed] = runs.read_best(runs.best_directory(folder, params))
    first, *others = best.values()
    names = [name for name in first if all(name in other for other in others)]
    lines = []
    for name in names:
        values = [scores[name] for scores in best.values()]
        if name == "best_ckpt_global_step":
            continue
        spread = f" ± {statistics.stdev(values):.2f}" if others else ""
        each = ", ".join(f"{value:.2f}" for value in values)
        lines.append(f"  {name:18} {statistics.mean(values):.2f}{spread}   ({each})")
    if not lines:
        return ""
    title = f"best validations of the seeds {', '.join(map(str, best))}: mean ± standard deviation"
    return "\n".join([title, *lines])
