"""The command lines of a job: training, and the captions of `val`."""

import json
import os
import sys
from typing import Any

from tfcap import configs
from tfcap.measure.quality.jobs import BATCH, CAPTIONS, Job, Options
from tfcap.measure.quality.rows import ROWS

_VALIDATIONS = 6  # of a run
# Two validations in a row without a better score end a run of cross-entropy. A self-critical run
# goes on: the score of its beam search falls first, while that of its greedy captions rises.
_PATIENCE = {"xe": 2, "scst": 0}
_EMA_SPAN = 0.05  # of a run: time constant of the moving average


def run_of(out: str, job: Job) -> str:
    """Returns the directory of a run of training."""
    return os.path.join(out, "runs", job.name)


def captions_of(out: str, job: Job) -> str:
    """Returns the file of the captions of a job."""
    return os.path.join(out, "captions", f"{job.name}.json")


def settings(job: Job, options: Options, half: int) -> dict[str, Any]:
    """Returns all that the result of a job depends on, except the data and the code.

    It holds no path, so that results can be copied to another machine.

    Args:
      job: the job.
      options: what the study trains.
      half: number of images in the first half of `val`.

    Returns:
      For a run: the experiment, and changes to its configuration. For an ensemble: its members.
    """
    if len(job.seeds) > 1:
        return {"members": [member.name for member in job.members]}
    row = ROWS[job.row]
    first = job.stage == "xe"
    experiment = row.experiment if first else f"{row.experiment}_scst"
    model = configs.resolve(experiment).task.model.get().as_dict()
    chosen = {key: job.dropout for key in model if key.endswith("_dropout")}
    chosen |= {key: round(factor * options.width) for key, factor in row.widths.items()}
    task: dict[str, Any] = {
        "seed": job.seeds[0],
        "metrics": ["BLEU", "CIDEr"],
        "model": {row.experiment: chosen | dict(row.options)},
        "train_data": {"global_batch_size": BATCH, "captions_per_image": CAPTIONS},
        "validation_data": {"global_batch_size": 50, "limit": half},
    }
    if not first:
        task["self_critical"] = {"samples": CAPTIONS}
    examples = options.examples if first else options.scst_examples
    trainer = _trainer(max(1, examples // (BATCH * CAPTIONS)), job.rate if first else job.rate / 10)
    trainer["patience"] = _PATIENCE[job.stage]
    return {"experiment": experiment, "changes": {"task": task, "trainer": trainer}}


def _trainer(steps: int, rate: float) -> dict[str, Any]:
    """Returns the options of the trainer, which depend on the number of steps alone."""
    interval = max(1, steps // _VALIDATIONS)
    return {
        "train_steps": steps,
        "validation_interval": interval,
        "checkpoint_interval": interval,
        "shown_images": 0,
        "optimizer_config": {
            "ema_decay": round(1 - 1 / max(2, _EMA_SPAN * steps), 6),
            "schedule": {
                "name": "linear",
                "learning_rate": rate,
                "warmup_steps": max(1, steps // 20),
                "decay_start": steps // 3,
                "decay_steps": max(1, steps // 10),
                "decay_rate": 0.75,
            },
        },
    }


def command_lines(job: Job, options: Options, out: str, half: int) -> list[list[str]]:
    """Returns the commands of a job, which run one after the other."""
    lines = [_training(job, options, out, half)] if len(job.seeds) == 1 else []
    members = [f"--model_dir={run_of(out, member)}" for member in job.members]
    written = f"--output={captions_of(out, job)}"
    lines.append(["tfcap.evaluate", *members, "--split=val", "--scores=CIDEr", written])
    return [[sys.executable, "-m", *line] for line in lines]


def _best(out: str, job: Job) -> str:
    return os.path.join(run_of(out, job), "best_ckpt")


def _training(job: Job, options: Options, out: str, half: int) -> list[str]:
    of_run = settings(job, options, half)
    task: dict[str, Any] = of_run["changes"]["task"] | {"data_dir": options.data_dir}
    if job.stage == "scst":
        task["init_checkpoint"] = _best(out, job.first_stage)
    return [
        "tfcap.train",
        f"--experiment={of_run['experiment']}",
        f"--model_dir={run_of(out, job)}",
        f"--params_override={json.dumps(of_run['changes'] | {'task': task})}",
    ]
