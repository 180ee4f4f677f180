"""Trains a captioner: `python -m tfcap.train --experiment=xtransformer`.

`--experiment`, `--model_dir`, `--mode`, `--config_file` and `--params_override` are named as in TF
Model Garden. If an interrupted command is given again, it resumes the run; the results are, bit for
bit, those of an uninterrupted run. Without `--experiment` the command continues the run in
`--model_dir`, for example a converted model, with the configuration of that run.

    python -m tfcap.train --experiment=xlan --then=xlan_scst

This command trains two stages, one after the other: cross-entropy training, then self-critical
training. A later stage starts from the best checkpoint of the stage before it, and its directory
lies inside the directory of that stage. `--then` can be repeated.
"""

import json
import os
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NoReturn

from tfcap import cli, errors
from tfcap.arguments import argument, arguments, takes
from tfcap.training import MODES

if TYPE_CHECKING:
    from tfcap import configs

Paths = str | os.PathLike | Sequence[str | os.PathLike]
Changes = str | Mapping[str, Any]


@arguments
class Train:
    """The arguments of the function `train`, which are also the flags of the command."""

    experiment: str | None = argument(
        "Registered experiment; by default the one of `model_dir`, whose run is continued.",
        default=None,
        kw_only=False,
    )
    model_dir: str | os.PathLike | None = argument(
        "Directory of the run; runs/<experiment> by default.", default=None, kw_only=False
    )
    config_file: Paths = argument(
        "YAML file of changes to the experiment, or the name of a recipe as in "
        "flickr8k/xlan_xe.yaml; repeatable, in order.",
        default=(),
        many="repeated",
    )
    params_override: Changes = argument(
        "Changes as YAML text, a.b=1,c=2, or a YAML file; applied last.",
        default="",
        python="It can also be a dictionary.",
    )
    mode: str = argument("Which parts to run.", default="train_and_eval", choices=MODES)
    then: str | Sequence[str] = argument(
        "Experiment of a later stage, or EXPERIMENT:FILE,FILE with its YAML files or recipes; "
        "repeatable, in order. A later stage starts from the best checkpoint of the stage before "
        "it, and takes over the model, data, decoding, validation and runtime of that stage.",
        default=(),
        many="repeated",
    )
    then_config_file: Paths = argument(
        "As `config_file`, but for every later stage; applied after the files in `then`.",
        default=(),
        many="repeated",
    )
    then_override: Changes = argument(
        "As `params_override`, but for every later stage.", default=""
    )


@arguments
class _Command(Train):
    """The arguments of the command, which has more than `train`: it can start several processes."""

    list: bool = argument("Print the experiments and the recipes, and end.", default=False)
    workers: int = argument(
        "Number of processes on this machine that train together, each with its GPUs or with the "
        "processor.",
        default=1,
        least=1,
    )
    restarts: int = argument(
        "How often all `workers` start again after one was lost.", default=0, least=0
    )


def _define_flags() -> None:
    cli.define(_Command)


def _run() -> None:
    args = _Command(**cli.values(_Command))
    if args.list:
        from tfcap.configs import recipes

        print(recipes.listing())
        return
    if args.workers > 1:
        _launch(args)
    if args.restarts:
        raise errors.UsageError(
            "`restarts` needs `workers` of at least 2. Give `workers`, or leave out `restarts`."
        )
    _train(Train(**cli.values(Train)), alone=True)


def _launch(args: _Command) -> NoReturn:
    """Starts `workers` processes of this command, and exits with their exit code."""
    from tfcap.training.workers import cluster_position, launch

    if cluster_position()[0] > 1:
        raise errors.UsageError(
            "`workers` starts the workers itself, but the environment variable TF_CONFIG already "
            "names several. Leave out `workers`, or unset TF_CONFIG."
        )
    sys.exit(launch(sys.argv[1:], args.workers, args.restarts))


@takes(Train)
def train(args: Train) -> str:
    """Trains a captioner, or continues the training of a run.

    Returns:
      The directory of the run, which `tfcap.load` loads. If `then` is given, it is the directory of
      the last stage.
    """
    return _train(args, alone=False)


def _train(args: Train, alone: bool) -> str:
    """Trains as `train` does; `alone` is true if this process computes nothing else."""
    from tfcap.training import stages

    if (args.then_config_file or args.then_override) and not args.then:
        raise errors.UsageError(
            "`then_config_file` and `then_override` need `then`, the experiment of a later stage. "
            "Give it, or leave them out."
        )
    first = (
        args.experiment or "",
        os.path.expanduser(args.model_dir or ""),
        _paths(args.config_file),
        _text(args.params_override),
    )
    later = args.then, _paths(args.then_config_file), _text(args.then_override)
    resolved = stages.resolve_stages(args.mode, first, *later)
    if alone and os.cpu_count() == 2 and all(_is_small(params.task) for params, *_ in resolved):
        # Two operations at once, each on one core. TensorFlow reads it when it first computes.
        if "TF_NUM_INTEROP_THREADS" not in os.environ:
            os.environ.setdefault("TF_NUM_INTRAOP_THREADS", "1")
    for params, experiment, directory in resolved:
        task = stages.train(params, experiment, directory, args.mode)
        with task.workers.readable_errors():
            if task.workers.is_chief and "eval" in args.mode:
                stages.summarize(task, params, directory, experiment)
            elif task.workers.is_chief:
                print(f"step {params.trainer.train_steps} is saved in {directory}")
                print(f"scores:   python -m tfcap.evaluate --model_dir {directory}")
            task.workers.wait()
    task.workers.leave()
    return directory


def _is_small(task: "configs.Task") -> bool:
    """Returns whether most operations of a step are too small to divide them between cores."""
    # The widest model that was measured (docs/speed.md). A system of a user may have no width.
    width = getattr(task.model.get(), "width", None)
    return width is not None and width <= 192 and not task.backbone.trainable


def _paths(paths: Paths) -> list[str]:
    several = [paths] if isinstance(paths, str | os.PathLike) else paths
    return [os.fspath(path) for path in several]


def _text(changes: Changes) -> str:
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
