"""The registered experiments: each trains on the built-in shapes and needs no file.

Each system has two experiments, of a size that a laptop trains in minutes. The first has the name
of the system and trains with cross-entropy. The second has this name followed by `_scst`. It
continues with self-critical training from the checkpoint in the default directory of the first. The
experiments of two systems differ only in the model; `tfcap.models` has its small size where the
system is registered. The training is not that of any paper: every system has RAdam, label smoothing
0.1 and clipped gradients. The recipes have the training of the papers.

`xtransformer_video` and `xtransformer_video_scst` do the same on the built-in clips. `finetune`
trains the packaged captioner on photographs of the user's own.
"""

import functools
import pathlib

import yaml
from official.core import exp_factory
from official.modeling import hyperparams

from tfcap import models, pretrained
from tfcap.configs.schema import (
    SYSTEMS,
    Data,
    Experiment,
    Model,
    Optimizer,
    Runtime,
    Schedule,
    Task,
    Trainer,
)
from tfcap.models.captioner import SMALL

VIDEO = "xtransformer_video"
FINETUNE = "finetune"
_DROPOUT = 0.1  # shapes have 3,000 scenes and little noise
_CLIPS = "data/moving_shapes"  # made on first use, as the shapes are
_LEARNING_RATE = 0.002  # the peak of cross-entropy; self-critical training has a tenth of it


def names() -> list[str]:
    """Registers the experiments of new systems, and returns the sorted names of all experiments."""
    known = exp_factory._REGISTERED_CONFIGS
    first = {system: functools.partial(_shapes, system) for system in SYSTEMS} | {VIDEO: _clips}
    second = {f"{name}_scst": functools.partial(_self_critical, name) for name in first}
    for name, factory in (first | second | {FINETUNE: _finetune}).items():
        if name not in known:
            exp_factory.register_config_factory(name)(factory)
    return sorted(known)


def get(name: str) -> Experiment:
    """Returns a new copy of a registered configuration."""
    return exp_factory.get_exp_config(name)


def _small_model(system: str) -> hyperparams.OneOfConfig:
    """The system at the size of the built-in shapes."""
    model = Model(type=system)
    group = model.get()
    rates = {key: _DROPOUT for key in group.as_dict() if key.endswith("_dropout")}
    standardize = {"standardize": True} if models.MODELS[system].reads_order else {}
    group.override(rates | standardize | SMALL[system])
    return model


def _shapes(system: str) -> Experiment:
    """A system on the built-in shapes."""
    return Experiment(
        task=Task(
            model=_small_model(system),
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
        runtime=Runtime(),
    )


def _clips() -> Experiment:
    """An X-Transformer that knows the order of frames, on the built-in clips."""
    params = _shapes("xtransformer")
    params.task.override(
        {"data_dir": _CLIPS, "model": {"xtransformer": {"region_positions": "frames"}}}
    )
    return params


def _finetune() -> Experiment:
    """The packaged captioner, with its own model and decoding, for further training."""
    path = pathlib.Path(pretrained.directory(pretrained.DEFAULT), "params.yaml")
    packaged = yaml.safe_load(path.read_text(encoding="utf-8"))["task"]
    params = _shapes(packaged["model"]["type"])
    params.task.model = Model(type=packaged["model"]["type"])  # not that of the built-in shapes
    same = {key: packaged[key] for key in ("model", "max_length", "decoding")}
    start = {"init_checkpoint": pretrained.DEFAULT, "remap_vocab": True}
    batch = {"global_batch_size": 10, "captions_per_image": 5}
    params.task.override(same | start | {"train_data": batch}, is_strict=False)
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


def _self_critical(first: str) -> Experiment:
    """Self-critical training that starts from the result of the experiment `first`."""
    params = get(first)
    params.task.override(
        {
            "objective": "scst",
            "init_checkpoint": f"runs/{first}/best_ckpt",
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
