"""The named experiments. Nearly all train on built-in data and need no file.

Each system has two experiments, of a size that a laptop trains in minutes. The first has the name
of the system and trains with cross-entropy. The second has this name followed by `_scst`. It starts
from the best checkpoint in the default directory of the first, and goes on with self-critical
training. The experiments of two systems differ only in the model. Its small size is set in
`tfcap.models`, where the system is registered. No paper trains like this: every system has RAdam,
label smoothing 0.1 and clipped gradients. The recipes train as the papers do.

`xtransformer_video` and `xtransformer_video_scst` train an X-Transformer in the same way on the
built-in clips. `finetune` trains the packaged captioner on the user's photographs, and
`finetune_scst` is its second stage.
"""

import functools
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tfcap import models, pretrained
from tfcap.configs.load import REGISTERED, apply, changed, load
from tfcap.configs.schema import (
    SYSTEMS,
    Data,
    Experiment,
    Model,
    Optimizer,
    Schedule,
    Task,
    Trainer,
)
from tfcap.errors import did_you_mean
from tfcap.models.captioner import SMALL

VIDEO = "xtransformer_video"
FINETUNE = "finetune"
_DROPOUT = 0.1  # shapes have 3,000 scenes and little noise
_CLIPS = "data/moving_shapes"  # made on first use, as the shapes are
_LEARNING_RATE = 0.002  # the peak of cross-entropy; self-critical training has a tenth of it


def factories() -> dict[str, Callable[[], Experiment]]:
    """Returns all experiments: for each name a function without arguments.

    The function makes the configuration of the experiment.
    """
    # Not a constant: a system can register after this import.
    systems = {system: functools.partial(_shapes, system) for system in SYSTEMS}
    first = systems | {VIDEO: _clips, FINETUNE: _finetune}
    second = {
        f"{name}_scst": functools.partial(_self_critical, name, make)
        for name, make in first.items()
    }
    return first | second


def _shapes(system: str) -> Experiment:
    """A system at its small size, on the built-in shapes."""
    model = Model(type=system)
    group = model.get()
    rates = {key: _DROPOUT for key in group.as_dict() if key.endswith("_dropout")}
    standardize = {"standardize": True} if models.MODELS[system].reads_order else {}
    group.override(rates | standardize | SMALL[system])
    return Experiment(
        task=Task(
            model=model,
            train_data=Data(global_batch_size=32, captions_per_image=2),
            validation_data=Data(split="val", is_training=False, global_batch_size=50),
            max_length=20,
        ),
        trainer=Trainer(
            optimizer_config=Optimizer(
                schedule=Schedule(
                    name="linear",
                    learning_rate=_LEARNING_RATE,
                    warmup_steps=200,
                    decay_steps=200,
                )
            ),
            train_steps=2000,
            validation_interval=500,
            checkpoint_interval=250,
        ),
    )


def _clips() -> Experiment:
    """An X-Transformer that knows the order of frames, on the built-in clips."""
    params = _shapes("xtransformer")
    params.task.override(
        {"data_dir": _CLIPS, "model": {"xtransformer": {"region_positions": "frames"}}}
    )
    return params


def _finetune() -> Experiment:
    """Further training of the packaged captioner, with its model and decoding options."""
    path = os.path.join(pretrained.packaged_directory(pretrained.DEFAULT), "params.yaml")
    packaged = load(path).task
    params = _shapes(packaged.model.type)
    params.task.model = packaged.model
    params.task.decoding = packaged.decoding
    params.task.max_length = packaged.max_length
    start = {"init_checkpoint": pretrained.DEFAULT, "remap_vocab": True}
    batch = {"global_batch_size": 10, "captions_per_image": 5}
    params.task.override(start | {"train_data": batch})
    schedule = {"learning_rate": 0.0005, "warmup_steps": 20, "decay_steps": 100}
    params.trainer.override(
        {
            "train_steps": 400,
            "validation_interval": 100,
            "checkpoint_interval": 100,
            "patience": 2,
            "optimizer_config": {"schedule": schedule},
        }
    )
    return params


def _self_critical(first: str, make: Callable[[], Experiment]) -> Experiment:
    """Self-critical training that starts from the best checkpoint of a first stage.

    Args:
      first: the name of the experiment of the first stage.
      make: makes the configuration of the first stage.
    """
    params = make()
    params.task.override(
        {
            "objective": "scst",
            "init_checkpoint": f"runs/{first}/best_ckpt",
            "remap_vocab": False,
            "label_smoothing": 0.0,
            "train_data": {"global_batch_size": 20},
        }
    )
    params.trainer.override(
        {
            "train_steps": 1000,
            "validation_interval": 250,
            "optimizer_config": {
                "name": "adam",
                "beta_2": 0.999,
                "epsilon": 1e-8,
                "schedule": {
                    "name": "constant",
                    "learning_rate": _LEARNING_RATE / 10,
                    "decay_steps": 0,
                },
            },
        }
    )
    return params


def resolve(
    experiment: str,
    config_files: Sequence[str] = (),
    override: str = "",
    changes: Mapping[str, Any] | None = None,
) -> Experiment:
    """Makes the configuration of an experiment, changes it, and checks it.

    Args:
      experiment: the name of the experiment.
      config_files: YAML files or names of recipes, applied in this order.
      override: changes that are applied last: YAML or JSON text, text like `a.b=1,c=2`, or the path
        of a YAML file.
      changes: changes that are applied before the files, as nested dictionaries.

    Raises:
      ValueError: the experiment, a key or a value is wrong.
    """
    experiments = factories()
    if experiment not in experiments:
        raise ValueError(
            f"`experiment={experiment}` is unknown.{did_you_mean(experiment, experiments)} Known: "
            f"{', '.join(sorted(experiments))}. {REGISTERED}"
        )
    params = experiments[experiment]()
    apply(params, changes or {}, experiment)
    return changed(params, config_files, override)
