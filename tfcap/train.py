"""Trains a captioner: `python -m tfcap.train --experiment=xtransformer`.

The flags are those of TF Model Garden. The same command with the same `--model_dir` resumes an
interrupted run bit for bit. Without `--experiment` the command continues the run in `--model_dir`
with its configuration, for example that of a converted model.

    python -m tfcap.train --experiment=xlan --then=xlan_scst

This command trains both stages, one after the other. A later stage starts from the best checkpoint
of the stage before it, and its directory lies inside the directory of that stage. `--then` can be
repeated.
"""

import json
import os
import sys
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

from absl import flags

from tfcap import cli, errors
from tfcap.configs import recipes
from tfcap.training import MODES


def _define_flags() -> None:
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
    flags.DEFINE_multi_string(
        "then",
        [],
        "Experiment of a later stage, or EXPERIMENT:FILE,FILE with its YAML files or recipes; "
        "repeatable, in order. It starts from the best checkpoint of the stage before it and has "
        "its model, data, decoding, validation and runtime.",
    )
    flags.DEFINE_multi_string(
        "then_config_file", [], "As --config_file, but for every later stage, after its own files."
    )
    flags.DEFINE_string("then_override", "", "As --params_override, but for every later stage.")
    flags.DEFINE_integer(
        "workers",
        1,
        "Number of processes on this machine that train together, each with its GPUs or with the "
        "processor.",
        lower_bound=1,
    )
    flags.DEFINE_integer(
        "restarts", 0, "How often all --workers start again after one was lost.", lower_bound=0
    )


def _run() -> None:
    given = flags.FLAGS
    if given.list:
        print(recipes.listing())
        return
    if given.workers > 1:
        _launch(given)
    if given.restarts:
        raise errors.UsageError("--restarts needs --workers of at least 2.")
    names = "config_file params_override mode then then_config_file then_override"
    changes = {name: given[name].value for name in names.split()}
    train(given.experiment or "", given.model_dir or "", **changes)


def _launch(given) -> NoReturn:
    """Starts `--workers` processes of this command, and exits with their exit code."""
    from tfcap.training.workers import cluster_position, launch

    if cluster_position()[0] > 1:
        raise errors.UsageError(
            "--workers starts its own workers, but TF_CONFIG names several. Leave out --workers, "
            "or unset TF_CONFIG."
        )
    sys.exit(launch(sys.argv[1:], given.workers, given.restarts))


def train(
    experiment: str = "",
    model_dir: str | os.PathLike = "",
    *,
    config_file: str | os.PathLike | Sequence[str | os.PathLike] = (),
    params_override: str | Mapping[str, Any] = "",
    mode: str = "train_and_eval",
    then: str | Sequence[str] = (),
    then_config_file: str | os.PathLike | Sequence[str | os.PathLike] = (),
    then_override: str | Mapping[str, Any] = "",
) -> str:
    """Trains a captioner, or continues its run; the arguments are the flags of the command.

    Args:
      experiment: the name of the experiment; empty continues the run in `model_dir`.
      model_dir: the directory of the run; empty for `runs/<experiment>`.
      config_file: YAML files of changes to the experiment, in order.
      params_override: changes as a dictionary, as YAML text or as `a.b=1,c=2`, applied last.
      mode: train, eval, train_and_eval or continuous_eval.
      then: the experiments of later stages, each of which starts from the best checkpoint of the
        stage before it; `EXPERIMENT:FILE,FILE` names YAML files of one stage, too.
      then_config_file: YAML files for every later stage, applied after the files in `then`.
      then_override: changes to every later stage, in the form of `params_override`.

    Returns:
      The directory of the run, or of the last stage. `tfcap.load` loads it.
    """
    from tfcap.training import stages

    if mode not in MODES:
        raise errors.UsageError(f"--mode={mode} is not one of {', '.join(MODES)}.")
    if (then_config_file or then_override) and not then:
        raise errors.UsageError("--then_config_file and --then_override need --then.")
    first = (experiment, os.path.expanduser(model_dir), _files(config_file), _text(params_override))
    later = then, _files(then_config_file), _text(then_override)
    for params, experiment, folder in stages.resolve_stages(mode, first, *later):
        task = stages.train(params, experiment, folder, mode)
        with task.workers.readable_errors():
            if task.workers.is_chief and "eval" in mode:
                stages.summarize(task, params, folder, experiment)
            elif task.workers.is_chief:
                print(f"step {params.trainer.train_steps} is saved in {folder}")
                print(f"scores:   python -m tfcap.evaluate --model_dir {folder}")
            task.workers.wait()
    task.workers.leave()
    return folder


def _files(given: str | os.PathLike | Sequence[str | os.PathLike]) -> list[str]:
    paths = [given] if isinstance(given, str | os.PathLike) else given
    return [os.fspath(path) for path in paths]


def _text(changes: str | Mapping[str, Any]) -> str:
    """Returns changes as YAML text; a dictionary may have dotted keys, groups and paths."""
    from tfcap import configs

    if isinstance(changes, str):
        return changes
    return json.dumps(configs.nested(changes), default=os.fspath) if changes else ""


def main() -> None:
    _define_flags()
    cli.run(_run)


if __name__ == "__main__":
    main()
