"""Runs one experiment: turns a configuration into a run directory with a trained model."""

import contextlib
import io
import os
import sys
from collections.abc import Callable, Iterator

import keras
import tensorflow as tf

from tfcap import cli, configs, runs
from tfcap.data.prepared import PreparedData, losses, unlike_references
from tfcap.layers import precision
from tfcap.runs.checkpoints import check_weights, find, newest_checkpoint
from tfcap.runs.signature import signature
from tfcap.training import interrupts, keras3, schedules, summaries
from tfcap.training.controller import Controller, Runner
from tfcap.training.self_critical import build_task
from tfcap.training.start import begin, check_splits, data_directory, unused_options
from tfcap.training.task import CaptionTask
from tfcap.training.trainer import Trainer, best_exporter
from tfcap.training.workers import Workers, code_version, digest


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
    with policy, lock, _signals(params, model_dir, mode) as signals:
        strategy = _strategy(params)
        interrupts.renew()
        workers = Workers(strategy)
        with workers.readable_errors(), workers.quiet():
            data = _common_data(workers, params, experiment, mode)
            start_step = workers.share(
                lambda: begin(lock, model_dir, experiment, params, data, mode)
            )
            keras.utils.set_random_seed(params.task.seed)
            built = (workers, params, data, start_step, model_dir, mode, hook, signals)
            trainer = _trainer(strategy, *built)
            _start_and_run(strategy, trainer, params, experiment, model_dir, mode)
            trainer.agree()
        signals.check(alone=workers.count == 1)
    return trainer.task


def _common_data(workers, params, experiment: str, mode: str) -> PreparedData:
    """Loads the data, and checks that all workers have the same code, configuration and data."""
    options = params.as_dict()
    options["runtime"].pop("task_index", None)
    same = {"experiment": experiment, "mode": mode, "configuration": digest(options)}
    workers.compare({"code": code_version(), **same})
    folder = workers.share(lambda: data_directory(params.task.data_dir))

    def load():
        if workers.count > 1:
            _check_several(params, mode)
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
            "trainer.validation_steps must be at least 1, or -1 for all images. Received: 0. To "
            "train without validation, give --mode=train."
        )
    if "eval" in mode and "CLIPScore" in params.task.metrics:
        raise cli.UsageError(
            "task.metrics cannot have CLIPScore, because training has no weights of CLIP. "
            f"Received: {', '.join(params.task.metrics)}. Leave it out, and score the run with "
            "python -m tfcap.evaluate --scores CLIPScore --clip DIRECTORY."
        )


def _check_several(params, mode: str) -> None:
    """Checks that the options work with several workers."""
    if mode == "continuous_eval":
        raise cli.UsageError(
            "--mode=continuous_eval needs a single worker: several would read different "
            "checkpoints. Received: several workers. Start it without TF_CONFIG and --workers."
        )
    if trials := params.trainer.recovery_max_trials:
        raise cli.UsageError(
            "trainer.recovery_max_trials must be 0 with several workers: only the chief would go "
            f"back to its checkpoint. Received: {trials}."
        )


def _start_and_run(strategy, trainer, params, experiment, model_dir, mode) -> None:
    """Prints what begins, trains, and prints why training ended early, if it did."""
    if int(trainer.global_step.numpy()):
        check_weights(trainer.model, find(model_dir))
    finished = _finished(trainer, params, model_dir, mode)
    print(
        f"{experiment}: {model_dir} is finished: {finished}"
        if finished
        else _start_line(strategy, trainer, params, experiment, model_dir, mode),
        flush=True,
    )
    tells = trainer.workers.is_chief and not finished
    doubts = _doubts(params, trainer.task.data, mode) if tells else []
    if unused := cli.unused_gpus(len(tf.config.list_physical_devices("GPU"))):
        doubts.append(f"{unused} To use them: {cli.USE_GPUS}")
    print(*(f"warning: {doubt}\n" for doubt in doubts), sep="", end="", file=sys.stderr, flush=True)
    with trainer.task.data.readable_errors(), _divergence(model_dir):
        _run(strategy, trainer, mode, params, model_dir, bool(finished))
    patience = trainer.patience
    if "train" in mode and patience.over:
        print(
            f"{patience.patience} validations without a better {patience.metric}: training "
            f"ends at step {int(trainer.global_step.numpy())} (trainer.patience)",
            flush=True,
        )


def _finished(trainer, params, model_dir: str, mode: str) -> str:
    """Says how far a run went that has no step left to train; '' for another one."""
    step, steps = int(trainer.global_step.numpy()), params.trainer.train_steps
    if "train" not in mode or not step:
        return ""
    if step >= steps:
        return f"{step} of {steps} steps. A larger trainer.train_steps trains on"
    saved, name = tf.train.load_checkpoint(find(model_dir)), "patience/waited/.ATTRIBUTES/"
    waited = f"{name}VARIABLE_VALUE"
    if saved.has_tensor(waited) and 0 < trainer.patience.patience <= saved.get_tensor(waited):
        return f"{step} of {steps} steps. A larger trainer.patience trains on"
    return ""


def _doubts(params, data: PreparedData, mode: str) -> list[str]:
    """Returns what the training does not do as it seems to: options, captions and references."""
    task, found = params.task, unused_options(params, mode)
    if "train" in mode:
        limits = task.train_data.split, task.max_length, task.train_data.max_regions
        found += losses(data, *limits)
    unlike = unlike_references(data, task.validation_data.split) if "eval" in mode else ""
    return found + [unlike] * bool(unlike)


def _trainer(
    strategy, workers, params, data, start_step, model_dir, mode, hook, signals
) -> Trainer:
    """Makes task, model, optimizer and trainer."""
    if _can_stop(params, mode):
        signals.prepare(alone=workers.count == 1)
    # Outside the scope of the strategy: replicas only read these variables.
    plateau, patience = _watchers(params)
    with strategy.scope():
        replicas = strategy.num_replicas_in_sync
        task = build_task(params, data, replicas, start_step, hook, workers)
        model = task.build_model()
        trainer = Trainer(
            # With GPUs official.core would compile the whole step; the task compiles its parts.
            params.replace(runtime={"num_gpus": 0}),
            task,
            model,
            task.build_optimizer(model, plateau),
            train="train" in mode,
            evaluate="eval" in mode,
            # An evaluation alone, maybe with another beam, must not replace the best checkpoint.
            checkpoint_exporter=None
            if mode == "eval" or not workers.is_chief
            else best_exporter(params, model_dir, signature(params.task, hook is not None), task),
            plateau=plateau,
            patience=patience,
            signals=signals,
        )
    trainer.global_step.assign(start_step)
    return trainer


def _start_line(strategy, trainer, params, experiment, model_dir, mode) -> str:
    """Describes what begins: devices, precision, size and steps."""
    replicas, step = strategy.num_replicas_in_sync, int(trainer.global_step.numpy())
    steps = f"goes on from step {step}" if step else "from the beginning"
    if "train" in mode:
        steps += f" to step {params.trainer.train_steps}"
    return (
        f"{experiment}: {'training' if 'train' in mode else 'validation'} on "
        f"{keras3.describe_devices(strategy)} in {keras.mixed_precision.global_policy().name}, "
        f"{runs.count_parameters(trainer.model):,} parameters, {replicas} "
        f"replica{'s' * (replicas > 1)}, {steps}, in {model_dir}"
    )


@contextlib.contextmanager
def _signals(params, model_dir: str, mode: str) -> Iterator[interrupts.Signals]:
    """Watches signals if the run trains, and turns `Stop` into an error for people.

    Raises:
      cli.Interrupted: a signal ended training.
    """
    signals = interrupts.Signals()
    try:
        with signals if _can_stop(params, mode) else contextlib.nullcontext():
            yield signals
    except interrupts.Stop as stop:
        newest = newest_checkpoint(model_dir)
        text = f"{stop} ended training before its first step, so nothing was saved. "
        then = "The same command begins again."
        if newest:
            step = runs.step_of(newest)
            text = f"{stop} ended training. Step {step} is saved in {model_dir}. "
            then = f"The same command goes on from step {step}."
        raise cli.Interrupted(text + then, interrupts.CODES[stop.number]) from None


def _can_stop(params, mode: str) -> bool:
    """Returns whether a signal ends the training of the run at the next step."""
    strategies = ("mirrored", "multi_worker_mirrored", "one_device")
    return "train" in mode and params.runtime.distribution_strategy in strategies


def _strategy(params: configs.Experiment) -> tf.distribute.Strategy:
    """Makes the distribution strategy and checks that it divides the batches."""
    try:
        strategy = keras3.strategy(params.runtime)
    except ValueError as error:
        raise cli.UsageError(str(error)) from error
    replicas = strategy.num_replicas_in_sync
    for name in ("train_data", "validation_data"):
        size = getattr(params.task, name).global_batch_size
        parts = params.task.micro_batches if name == "train_data" else 1
        if size % (replicas * parts):
            times = f" times {parts} micro-batches" * (parts > 1)
            raise cli.UsageError(
                f"task.{name}.global_batch_size must be a multiple of the {replicas} replicas"
                f"{times}. Received: {size}."
            )
    return strategy


def _run(strategy, trainer, mode, params, model_dir, finished: bool) -> None:
    """Runs the training of official.core with our summaries, progress line and samples."""
    step, task = trainer.global_step, trainer.task
    images = 0
    if "eval" in mode:
        images = task.data.split(params.task.validation_data.split)["images"]
        images = min(images, params.task.validation_data.limit or images)
        images = -(-images // trainer.workers.count)  # each worker captions its part
    stream = None if trainer.workers.is_chief else sys.stdout  # see `Workers.quiet`
    progress = summaries.Progress(step, params.trainer.train_steps, stream)
    trainer.images, trainer.stream = images, stream
    names = ("train", params.trainer.validation_summary_subdir)
    folders = [os.path.join(model_dir, name) for name in names]
    writers = summaries.writers(folders if trainer.workers.is_chief else [], step)
    # The handler of official.core would save at SIGTERM and train on: `interrupts` ends training.
    params = params.replace(trainer={"preemption_on_demand_checkpoint": False})
    with progress, _without_orbit_prints() as echo:
        train_actions: list[Callable] = [progress]
        if "train" in mode and not finished:
            say = echo(cli.say)
            say("tracing the training step ...")
            train_actions.append(summaries.PeakMemory(say))
        runner = Runner(
            strategy,
            task,
            mode,
            params,
            model_dir,
            trainer=trainer,
            controller_cls=Controller,
            summary_manager=writers[0],
            eval_summary_manager=writers[1],
            train_actions=train_actions,
            eval_actions=[
                echo(summaries.Scores(step, task)),
                echo(summaries.Worse(step, params, model_dir, mode)),
                summaries.Samples(step, task, writers[1], trainer, params.trainer.shown_images),
                trainer.plateau,
                trainer.patience,
            ],
        )
        # Another process may be saving while this one only validates.
        trainer.workers.compare({"checkpoint": runner.checkpoint_manager.latest_checkpoint or ""})
        if params.trainer.recovery_max_trials and "train" in mode:
            manager = runner.checkpoint_manager
            if not manager.latest_checkpoint:  # a loss that diverges at once goes back to it
                manager.save(checkpoint_number=0)
        runner.run()


def _watchers(params) -> tuple[schedules.Plateau, schedules.Patience]:
    """Makes the plateau, which lowers the learning rate, and the patience, which ends training."""
    schedule, trainer = params.trainer.optimizer_config.schedule, params.trainer
    metric = (trainer.best_checkpoint_eval_metric, trainer.best_checkpoint_metric_comp == "higher")
    return (
        schedules.Plateau(schedule.plateau_patience, schedule.plateau_factor, *metric),
        schedules.Patience(trainer.patience, *metric),
    )


@contextlib.contextmanager
def _divergence(model_dir: str):
    """Adds a remedy to the error of official.core for a loss that is NaN or too large."""
    try:
        yield
    except RuntimeError as error:
        if not str(error).startswith("The loss value"):
            raise
        raise ValueError(
            f"Training diverged: {error} The checkpoints in {model_dir} are older. Lower "
            "trainer.optimizer_config.schedule.learning_rate or clip_threshold, and start again."
        ) from error


@contextlib.contextmanager
def _without_orbit_prints():
    """Hides the lines that orbit prints; a function that is wrapped in `echo` still prints."""
    out = sys.stdout

    def echo(function):
        def loud(*arguments):
            with contextlib.redirect_stdout(out):
                return function(*arguments)

        return loud

    with contextlib.redirect_stdout(io.StringIO()):
        yield echo
