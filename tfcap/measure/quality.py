"""Compares what the systems learn in the same number of training steps.

Each row of the table is a run of `python -m tfcap.train` in its own process and its own directory.
A second call only reads finished runs, and resumes an interrupted one.
"""

import dataclasses
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator

from tfcap import configs, runs
from tfcap.runs import checkpoints


@dataclasses.dataclass(frozen=True)
class Row:
    """A row of the table.

    Attributes:
      name: name in the table.
      experiment: the registered experiment.
      options: options of the model that differ from the experiment.
    """

    name: str
    experiment: str
    options: dict = dataclasses.field(default_factory=dict)


ROWS = (
    Row("LSTM in the manner of Show and Tell", "show_tell"),
    Row("attention LSTM", "attention_lstm"),
    Row("Up-Down", "updown"),
    Row(
        "X-LAN decoder, conventional attention",
        "xlan",
        dict(attention="additive", encoder_layers=0),
    ),
    Row("X-LAN decoder, X-Linear attention", "xlan", dict(encoder_layers=0)),
    Row("X-LAN", "xlan"),
    Row("Transformer", "transformer"),
    Row("X-Transformer", "xtransformer"),
    Row(
        "ExpansionNet's baseline, attention for expansion",
        "expansionnet",
        dict(encoder_block="attention", decoder_block="attention", reduce=False),
    ),
    Row("ExpansionNet", "expansionnet"),
    Row("m-RNN, no image", "mrnn", dict(variant="rnn_base")),
    Row("m-RNN, image in the recurrent layer", "mrnn", dict(variant="vis_in_rnn")),
    Row("m-RNN, image in the multimodal layer", "mrnn"),
    Row("m-RNN with shared weights", "mrnn_shared"),
)
SCORES = ("BLEU-4", "METEOR", "CIDEr")


def compare(folder: str, data_dir: str, steps: int, seed: int = 1) -> Iterator[dict]:
    """Trains every row and yields its scores.

    Args:
      folder: the directory of all runs, with one directory for each row.
      data_dir: prepared data; empty for the built-in shapes.
      steps: number of training steps of each run.
      seed: random seed of each run.

    Yields:
      A dictionary with `name`, `parameters`, `minutes` of wall-clock time (None if the run was
      finished before), the scores of the best validation and its `step`.

    Raises:
      ValueError: if a run fails, with the end of its output, or `folder` holds other runs.
    """
    for row in ROWS:
        directory = os.path.join(folder, row.name.replace(",", "").replace(" ", "_").lower())
        minutes = None
        if not _finished(row, directory, data_dir, steps, seed):
            start = time.perf_counter()
            _train(row, directory, data_dir, steps, seed)
            minutes = round((time.perf_counter() - start) / 60, 1)
        run = runs.load(directory)
        scores = runs.read_best(runs.best_directory(directory, run.params))
        yield {
            "name": row.name,
            "parameters": runs.count_parameters(run.model),
            "minutes": minutes,
            "step": int(scores["best_ckpt_global_step"]),
            **{name: round(scores[name], 2) for name in SCORES if name in scores},
        }


def table(results: list[dict]) -> str:
    """Writes the results as a Markdown table."""
    columns = ("name", "parameters", *SCORES)
    lines = ["| system | parameters | " + " | ".join(SCORES) + " |"]
    lines.append("|---|---|" + "---|" * len(SCORES))
    for result in results:
        cells = [result.get(column, "") for column in columns]
        cells[1] = f"{cells[1] / 1e6:.2f} M"
        lines.append("| " + " | ".join(str(cell) for cell in cells) + " |")
    return "\n".join(lines)


def _finished(row: Row, directory: str, data_dir: str, steps: int, seed: int) -> bool:
    """Tells whether a run has reached its last step and was validated there.

    Raises:
      ValueError: if `directory` holds a run with other settings.
    """
    path = os.path.join(directory, runs.PARAMS)
    if not os.path.exists(path):
        return False
    params = configs.load(path)
    task, options = params.task, params.task.model.get().as_dict()
    if (
        task.model.type != row.experiment
        or row.options.items() - options.items()
        or (task.data_dir, task.seed, params.trainer.train_steps) != (data_dir, seed, steps)
    ):
        raise ValueError(
            f"{directory} holds a run with other data, seed, steps or options: choose another --out"
        )
    best = runs.read_best(runs.best_directory(directory, params))
    return bool(best) and runs.step_of(checkpoints.newest_checkpoint(directory)) >= steps


def _train(row: Row, directory: str, data_dir: str, steps: int, seed: int) -> None:
    """Starts or resumes the run of a row in a process and waits for its end."""
    override = {
        "task": {
            "data_dir": data_dir,
            "seed": seed,
            "model": {row.experiment: row.options},
            "metrics": ["BLEU", "METEOR", "CIDEr"],
        },
        "trainer": {
            "train_steps": steps,
            "validation_interval": max(steps // 2, 1),
            "optimizer_config": {"schedule": {"decay_steps": max(steps // 10, 1)}},
        },
    }
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "tfcap.train",
            f"--experiment={row.experiment}",
            f"--model_dir={directory}",
            f"--params_override={json.dumps(override)}",
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    if done.returncode:
        # The log of TensorFlow may follow the line with the error.
        _, marker, reason = done.stdout.rpartition("\nerror: ")
        reason = reason.splitlines()[0] if marker else done.stdout[-2000:]
        raise ValueError(f"The run of {row.name} failed: {reason}")
