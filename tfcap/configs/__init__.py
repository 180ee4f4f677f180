"""Configurations of every experiment: dataclasses over TF Model Garden's `hyperparams.Config`.

An experiment is a configuration with a name (`--experiment=xtransformer`). A recipe is a YAML file
of changes to an experiment (`--config_file`). Single changes come last (`--params_override`).

* `schema` has the groups of keys and says what they mean.
* `texts` reads values.
* `load` changes, checks and writes a configuration.
* `experiments` has the experiments.
* `recipes` finds the recipes.

Only training imports official.core.
"""

from tfcap.configs.experiments import resolve
from tfcap.configs.load import check, decoding, load, parse_override, resume, save, values
from tfcap.configs.schema import (
    SYSTEMS,
    Data,
    Decoding,
    Experiment,
    Model,
    Optimizer,
    Runtime,
    Schedule,
    ScheduledSampling,
    SelfCritical,
    Task,
    Trainer,
)
from tfcap.configs.texts import nested
