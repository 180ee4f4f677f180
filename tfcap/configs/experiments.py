"""The registered experiments: each trains without any file, on the built-in shapes.

Two for each system, at a size that a laptop trains in minutes: cross-entropy under the system's
name, and self-critical training, which starts from what the first leaves in its default directory,
under that name and `_scst`. What differs between systems is the model and its learning rate.
"""

import functools
from collections.abc import Callable
from typing import Any

from official.core import exp_factory

from tfcap.configs.schema import (
    Data,
    Experiment,
    Optimizer,
    Runtime,
    Schedule,
    Task,
    Trainer,
)
from tfcap.configs.systems import SYSTEMS, Model

_DROPOUT = 0.1  # shapes have 3,000 scenes and little noise
# What makes each system small, and the peak of its learning rate.
_SMALL: dict[str, tuple[dict[str, Any], float]] = {
    "xlan": (dict(width=128, encoder_layers=2), 0.002),
    "xtransformer": (dict(width=128, encoder_layers=2, decoder_layers=2), 0.002),
    "updown": (dict(width=128, attention_width=64), 0.002),
    "attention_lstm": (dict(width=128, attention_width=64), 0.002),
    "show_tell": (dict(width=128), 0.002),
    "transformer": (dict(width=128, encoder_layers=2, decoder_layers=2), 0.002),
    "expansionnet": (
        dict(
            width=128,
            encoder_layers=2,
            decoder_layers=2,
            inner_width=256,
            encoder_vectors=16,
            decoder_vectors=8,
        ),
        0.002,
    ),
    "mrnn": (dict(embed_width=128, width=128, multimodal_width=256), 0.002),
    "mrnn_shared": (dict(embed_width=128, width=128, multimodal_width=256), 0.002),
}


def _small_model(system: str) -> Model:
    """The system at the size of the built-in shapes."""
    model = Model(type=system)
    options, _ = _SMALL[system]
    group = model.get()
    rates = {key: _DROPOUT for key in group.as_dict() if key.endswith("_dropout")}
    group.override(rates | options)
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
                    learning_rate=_SMALL[system][1],
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


def _shapes_scst(system: str) -> Experiment:
    """Self-critical training of what `_shapes` trains."""
    params = _shapes(system)
    params.task.override(
        {
            "objective": "scst",
            "init_checkpoint": f"runs/{system}/best_ckpt",
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
                    "learning_rate": _SMALL[system][1] / 10,
                    "decay_steps": 0,
                },
            },
        }
    )
    return params


def _register(name: str, factory: Callable[[], Experiment]) -> None:
    exp_factory.register_config_factory(name)(factory)


for _system in SYSTEMS:
    _register(_system, functools.partial(_shapes, _system))
    _register(f"{_system}_scst", functools.partial(_shapes_scst, _system))
