"""Trains a captioner: `python -m tfcap.train --experiment=xtransformer`.

The flags are those of TF Model Garden. The same command in the same `--model_dir` goes on where
the last one was interrupted, bit for bit. Without `--experiment` it goes on with the experiment and
the configuration in `--model_dir`, for example of a converted model.

    python -m tfcap.train --experiment=xlan --then=xlan_scst

trains both stages in a row: the second starts from the best checkpoint of the first, in a directory
inside that of the first.
"""

import os

from absl import flags

from tfcap import configs, console, runs
from tfcap.training.train import MODES, summarize, train


def _define_flags() -> None:
    # Here and not on import: the commands share names, and a program may import several.
    flags.DEFINE_string(
        "experiment", None, "Registered experiment, e.g. xtransformer; that of --model_dir if any."
    )
    flags.DEFINE_enum("mode", "train_and_eval", MODES, "What to do.")
    flags.DEFINE_string("model_dir", None, "Where the run lives; runs/<experiment> by default.")
    flags.DEFINE_multi_string(
        "config_file", [], "YAML of differences over the experiment; repeatable, in order."
    )
    flags.DEFINE_string(
        "params_override", "", "YAML text, a.b=1,c=2, or a YAML file; applied last."
    )
    flags.DEFINE_string(
        "then",
        None,
        "Experiment of a second stage, from the best checkpoint of the first, with its model, "
        "data, validation and runtime.",
    )
    flags.DEFINE_multi_string("then_config_file", [], "As --config_file, for the second stage.")
    flags.DEFINE_string("then_override", "", "As --params_override, for the second stage.")


def _run() -> None:
    given = flags.FLAGS
    begun = given.model_dir and os.path.join(given.model_dir, runs.PARAMS)
    if not given.experiment and not (begun and os.path.exists(begun)):
        raise console.UsageError("--experiment is missing, for example --experiment=xtransformer")
    if (given.then_config_file or given.then_override) and not given.then:
        raise console.UsageError("--then_config_file and --then_override need --then")
    changes = (given.config_file, given.params_override)
    try:
        if given.experiment:
            experiment, params = given.experiment, configs.resolve(given.experiment, *changes)
        else:  # goes on with what is in the directory: a converted model has no other description
            experiment, params = configs.resume(begun, *changes)
        model_dir = given.model_dir or os.path.join("runs", experiment)
        stages = [(params, experiment, model_dir)]
        if given.then:
            stages.append(_second_stage(params, model_dir))
    except ValueError as error:
        raise console.UsageError(str(error)) from error
    for params, experiment, model_dir in stages:
        task = train(params, experiment, model_dir, given.mode)
        if "eval" in given.mode:
            summarize(task, params, model_dir, experiment)


def _second_stage(first, model_dir):
    """Configuration, experiment and directory of `--then`, resolved before the first stage runs."""
    given = flags.FLAGS
    if given.mode != "train_and_eval":
        raise console.UsageError(f"--then needs --mode=train_and_eval. Received: {given.mode}")
    if not first.trainer.best_checkpoint_export_subdir:
        raise console.UsageError("--then needs trainer.best_checkpoint_export_subdir")
    keys = ("model", "max_length", "data_dir", "validation_data", "metrics")
    task = {key: value for key, value in first.task.as_dict().items() if key in keys}
    same = {"task": task, "runtime": first.runtime.as_dict()}
    changes = (given.then_config_file, given.then_override, same)
    params = configs.resolve(given.then, *changes)
    # A recipe for the second stage alone names a run to start from: here it is the first stage.
    best = runs.best_directory(model_dir, first)
    params = params.replace(task={"data_dir": first.task.data_dir, "init_checkpoint": best})
    return params, given.then, os.path.join(model_dir, given.then)


def main() -> None:
    """The command."""
    _define_flags()
    console.run(_run)


if __name__ == "__main__":
    main()
