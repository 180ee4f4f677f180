"""Trains a captioner: `python -m tfcap.train --experiment=xtransformer`.

The flags are those of TF Model Garden. The same command with the same `--model_dir` resumes an
interrupted run bit for bit. Without `--experiment` the command continues the run in `--model_dir`
with its configuration, for example that of a converted model.

    python -m tfcap.train --experiment=xlan --then=xlan_scst

trains both stages, one after the other. The second stage starts from the best checkpoint of the
first one, and its directory lies inside the directory of the first one.
"""

import os

from absl import flags

from tfcap import console, recipes
from tfcap.training import MODES


def _define_flags() -> None:
    # Here and not on import: the commands share names, and a program may import several.
    flags.DEFINE_string(
        "experiment", None, "Registered experiment; by default the one of --model_dir."
    )
    flags.DEFINE_bool("list", False, "Print the experiments and the recipes, and end.")
    flags.DEFINE_enum("mode", "train_and_eval", MODES, "Which parts to run.")
    flags.DEFINE_string("model_dir", None, "Directory of the run; runs/<experiment> by default.")
    flags.DEFINE_multi_string(
        "config_file",
        [],
        "YAML file of changes to the experiment, or the name of a recipe as in "
        "flickr8k/xlan_xe.yaml; repeatable, in order.",
    )
    flags.DEFINE_string(
        "params_override", "", "Changes as YAML text, a.b=1,c=2, or a YAML file; applied last."
    )
    flags.DEFINE_string(
        "then",
        None,
        "Experiment of a second stage. It starts from the best checkpoint of the first stage and "
        "has its model, data, validation and runtime.",
    )
    flags.DEFINE_multi_string("then_config_file", [], "As --config_file, but for the second stage.")
    flags.DEFINE_string("then_override", "", "As --params_override, but for the second stage.")


def _run() -> None:
    if flags.FLAGS.list:
        print(recipes.listing())
        return
    from tfcap import configs, runs
    from tfcap.training.train import summarize, train

    given = flags.FLAGS
    begun = given.model_dir and os.path.join(given.model_dir, runs.PARAMS)
    if not given.experiment and not (begun and os.path.exists(begun)):
        raise console.UsageError(
            "--experiment is required where --model_dir holds no run. Received: none. Name one, "
            "for example --experiment=xtransformer."
        )
    if (given.then_config_file or given.then_override) and not given.then:
        raise console.UsageError(
            "--then_config_file and --then_override need --then. Received: no --then."
        )
    changes = (given.config_file, given.params_override)
    try:
        if given.experiment:
            experiment, params = given.experiment, configs.resolve(given.experiment, *changes)
        else:  # continue the run in the directory: a converted model has no other description
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
    """Resolves `--then` before the first stage runs: configuration, experiment and directory."""
    from tfcap import configs, runs

    given = flags.FLAGS
    if given.mode != "train_and_eval":
        raise console.UsageError(f"--then needs --mode=train_and_eval. Received: {given.mode}.")
    if not first.trainer.best_checkpoint_export_subdir:
        raise console.UsageError(
            "--then needs trainer.best_checkpoint_export_subdir: the second stage starts from the "
            "best checkpoint. Received: an empty name."
        )
    keys = ("model", "max_length", "data_dir", "validation_data", "metrics")
    task = {key: value for key, value in first.task.as_dict().items() if key in keys}
    same = {"task": task, "runtime": first.runtime.as_dict()}
    changes = (given.then_config_file, given.then_override, same)
    params = configs.resolve(given.then, *changes)
    # A recipe of a second stage names the run to start from. Here that run is the first stage.
    best = runs.best_directory(model_dir, first)
    params = params.replace(task={"data_dir": first.task.data_dir, "init_checkpoint": best})
    return params, given.then, os.path.join(model_dir, given.then)


def main() -> None:
    """Runs the command."""
    _define_flags()
    console.run(_run)


if __name__ == "__main__":
    main()
