"""Prints what a finished training has reached, and what to do next."""

from collections.abc import Mapping
from typing import Any

import tensorflow as tf

from tfcap import cli, configs, runs
from tfcap.metrics import bootstrap
from tfcap.metrics.coco import leave_one_out_cider
from tfcap.runs.signature import signature
from tfcap.training.task import CaptionTask


def summarize(
    task: CaptionTask, params: configs.Experiment, model_dir: str, experiment: str
) -> None:
    """Prints the scores, the CIDEr of the references, three captions, and the next commands."""
    split = params.task.validation_data.split
    best = runs.best_directory(model_dir, params)
    scores = runs.read_best(best)
    how, now = runs.best_measured(model_dir, params), runs.measured(params)
    same = all(how.get(key, value) == value for key, value in now.items())
    step = int(scores.pop("best_ckpt_global_step", 0))
    number, intervals = runs.read_intervals(best)
    if scores:
        other = "" if same else "; this start validates with other options"
        shown = f"{_shown(now | how)}, step {step}, {signature(params.task)}"
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
