"""Configurations of every experiment: dataclasses over TF Model Garden's `hyperparams.Config`.

An experiment is a registered configuration (`--experiment=xtransformer`). A recipe is a YAML file
with changes to it (`--config_file`). `--params_override` comes last.

`schema` holds the groups of keys, `systems` those of each captioning system, and `experiments` the
registered configurations. `files` reads, resolves and writes a configuration, `keys` refuses
unknown keys, and `rules` checks the values.
"""

from tfcap.configs import experiments
from tfcap.configs.files import decoding, given, load, nested, resolve, resume, save
from tfcap.configs.rules import check, leaves
from tfcap.configs.schema import (
    Backbone,
    Data,
    Decoding,
    Experiment,
    Optimizer,
    Reward,
    Runtime,
    Schedule,
    ScheduledSampling,
    SelfCritical,
    Task,
    Trainer,
)
from tfcap.configs.systems import SYSTEMS, Model

__all__ = [
    "SYSTEMS",
    "Backbone",
    "Data",
    "Decoding",
    "Experiment",
    "Model",
    "Optimizer",
    "Reward",
    "Runtime",
    "Schedule",
    "ScheduledSampling",
    "SelfCritical",
    "Task",
    "Trainer",
    "check",
    "decoding",
    "experiments",
    "given",
    "leaves",
    "load",
    "nested",
    "resolve",
    "resume",
    "save",
]
