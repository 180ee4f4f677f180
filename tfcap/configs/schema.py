"""The groups of keys of a configuration, with their defaults."""

import dataclasses

from official.core import config_definitions
from official.modeling import hyperparams

from tfcap.configs.systems import Model
from tfcap.decoding.options import Options


@dataclasses.dataclass
class Data(hyperparams.Config):
    """One split of a prepared data set, as batches.

    Attributes:
      split: train, val or test.
      is_training: shuffled and endless, or in file order and once.
      global_batch_size: images per step over all replicas.
      captions_per_image: S.
      max_regions: regions kept of each image; 0 keeps all.
      limit: images used of the split; 0 uses all (decoding only).
      pad_to_max: static shapes, for accelerators that compile per shape.
    """

    split: str = "train"
    is_training: bool = True
    global_batch_size: int = 32
    captions_per_image: int = 5
    max_regions: int = 0
    limit: int = 0
    pad_to_max: bool = False


# The keys of `task.decoding` are the fields of `Options`, which says what each one means.
Decoding = dataclasses.make_dataclass(
    "Decoding",
    [
        (field.name, type(field.default), dataclasses.field(default=field.default))
        for field in dataclasses.fields(Options)
    ],
    bases=(hyperparams.Config,),
    namespace={"__doc__": Options.__doc__, "__module__": __name__},
)


@dataclasses.dataclass
class ScheduledSampling(hyperparams.Config):
    """How often a training input is a word that the model drew instead of the caption's own.

    After n steps the probability is min(increase * floor(max(n - start, 0) / every), maximum).

    Attributes:
      increase: see there; 0 is plain teacher forcing. Above 0, training goes word by word from the
        first step on, which costs recurrent systems nothing and the others several times as much.
      start: steps after which counting begins.
      every: steps between two increases.
      maximum: see there.
    """

    increase: float = 0.0
    start: int = 0
    every: int = 1000
    maximum: float = 0.25


@dataclasses.dataclass
class Reward(hyperparams.Config):
    """What self-critical training rewards: a weighted sum (see `rewards.Reward`).

    Attributes:
      convention: how references are read: `jdai`, as the released X-LAN and X-Transformer do (cut
        at `max_length`, an unknown word is a word like others), or `expansionnet` (whole, and an
        unknown word matches nothing).
      count_eos: whether the end of a sentence counts as a word. Without it, training finds that
        sentences which break off after "with a" score higher.
      cider: weight of CIDEr-D.
      bleu: weight of BLEU-4.
      length: weight of the closeness to the references' length.
      diversity: weight of the difference from the other samples of the image.
    """

    convention: str = "jdai"
    count_eos: bool = True
    cider: float = 1.0
    bleu: float = 0.0
    length: float = 0.0
    diversity: float = 0.0


@dataclasses.dataclass
class SelfCritical(hyperparams.Config):
    """Self-critical training (Rennie et al. 2017), for `objective: scst`.

    Attributes:
      samples: S, sentences drawn for each image.
      baseline: `greedy` or `others`, see `losses.advantages`.
      reduction: `words` or `sequences`, see `losses.self_critical`.
      gradient: `rescoring` draws without dropout and keeps nothing of it; the gradient comes from
        one pass over the drawn sentences by teacher forcing, with dropout. `sampling` draws with
        dropout and takes the gradient through the loop itself, as the released code does: slower,
        and every step is kept in memory.
      start_tolerance: points of `greedy_CIDEr-D` by which the first validation may differ from
        the one that the initial checkpoint was saved with.
      reward: see there.
    """

    samples: int = 5
    baseline: str = "others"
    reduction: str = "words"
    gradient: str = "rescoring"
    start_tolerance: float = 0.5
    reward: Reward = dataclasses.field(default_factory=Reward)


@dataclasses.dataclass
class Task(hyperparams.Config):
    """Training of a captioner.

    Attributes:
      model: which system.
      objective: `xe`, cross-entropy, or `scst`, self-critical training.
      self_critical: of `scst`.
      micro_batches: parts in which the images of a step and replica are worked through, one after
        the other: with less memory the same gradient, but for the dropout masks.
      data_dir: what `python -m tfcap.prepare` wrote; empty means the built-in `shapes`, prepared
        below `data/shapes` on first use.
      max_length: T, words of the longest caption, its end included.
      label_smoothing: see `losses.cross_entropy`.
      scheduled_sampling: see there.
      l2: lambda of lambda * |weights|^2, added to the objective (m-RNN) but not to `loss`, which
        stays the cross-entropy.
      seed: of weights, dropout, data order and drawn captions.
      metrics: scores of validation, any of BLEU, METEOR, ROUGE-L, CIDEr, SPICE.
      init_checkpoint: weights to start from: a checkpoint or a directory of checkpoints.
      remap_vocab: `init_checkpoint` has another vocabulary: rows of shared words are kept.
    """

    model: Model = dataclasses.field(default_factory=Model)
    objective: str = "xe"
    self_critical: SelfCritical = dataclasses.field(default_factory=SelfCritical)
    micro_batches: int = 1
    train_data: Data = dataclasses.field(default_factory=Data)
    validation_data: Data = dataclasses.field(
        default_factory=lambda: Data(split="val", is_training=False)
    )
    decoding: Decoding = dataclasses.field(default_factory=Decoding)
    data_dir: str = ""
    max_length: int = 17
    label_smoothing: float = 0.1
    scheduled_sampling: ScheduledSampling = dataclasses.field(default_factory=ScheduledSampling)
    l2: float = 0.0
    seed: int = 1
    metrics: list[str] = dataclasses.field(
        default_factory=lambda: ["BLEU", "METEOR", "ROUGE-L", "CIDEr"]
    )
    init_checkpoint: str = ""
    remap_vocab: bool = False


@dataclasses.dataclass
class Schedule(hyperparams.Config):
    """Learning rate over optimizer steps n = 1, 2, ... (see `training/optim.py`).

    Attributes:
      name: constant, noam, linear or hyperbolic.
      learning_rate: the rate, for noam the factor.
      warmup_steps: steps of growth.
      model_width: of noam; 0 takes the model's width.
      decay_steps: with linear and hyperbolic, every so many steps the rate is multiplied by
        `decay_rate`; 0 never.
      decay_rate: see there.
      decay_start: the first decay comes `decay_steps` after this step.
      minimum: the rate never falls below, once warm-up is over.
      plateau_patience: validations without a better score before the rate is multiplied by
        `plateau_factor`; 0 never.
      plateau_factor: see there.
    """

    name: str = "noam"
    learning_rate: float = 1.0
    warmup_steps: int = 10000
    model_width: int = 0
    decay_steps: int = 0
    decay_rate: float = 0.8
    decay_start: int = 0
    minimum: float = 0.0
    plateau_patience: int = 0
    plateau_factor: float = 0.8


@dataclasses.dataclass
class Optimizer(hyperparams.Config):
    """Optimizer and clipping.

    Attributes:
      name: adam, radam or sgd.
      beta_1: decay of the first moment.
      beta_2: decay of the second moment.
      epsilon: in the denominator.
      early_steps: of radam while its variance is intractable: momentum (released X-Transformer)
        or none (released ExpansionNet).
      clip: value (each element to +-clip_threshold), norm (global norm) or none.
      clip_threshold: see there. Clipping sees the gradient of all replicas together.
      ema_decay: d of the average d * average + (1 - d) * weights, taken after every step from the
        weights after the first one on, and used by everything but training: validation, the best
        checkpoint, and whatever reads a checkpoint later; 0 uses the weights themselves.
      schedule: learning rate.
    """

    name: str = "radam"
    beta_1: float = 0.9
    beta_2: float = 0.98
    epsilon: float = 1e-9
    early_steps: str = "momentum"
    clip: str = "value"
    clip_threshold: float = 0.1
    ema_decay: float = 0.0
    schedule: Schedule = dataclasses.field(default_factory=Schedule)


@dataclasses.dataclass
class Trainer(config_definitions.TrainerConfig):
    """TF Model Garden's trainer with our optimizers.

    Attributes:
      patience: training ends after so many validations in a row without a better
        `best_checkpoint_eval_metric`; 0 goes on to `train_steps`.
    """

    optimizer_config: Optimizer = dataclasses.field(default_factory=Optimizer)
    steps_per_loop: int = 20
    summary_interval: int = 20
    checkpoint_interval: int = 500
    max_to_keep: int = 2
    train_steps: int = 1000
    validation_interval: int = 500
    best_checkpoint_export_subdir: str = "best_ckpt"
    best_checkpoint_eval_metric: str = "CIDEr"
    patience: int = 0


@dataclasses.dataclass
class Runtime(config_definitions.RuntimeConfig):
    """TF Model Garden's runtime.

    Attributes:
      replicas: of the mirrored strategy; 0 is one for each GPU, or one on a machine without.
        Without GPUs, more than one makes as many logical devices of the processor.
    """

    replicas: int = 0
    mixed_precision_dtype: str | None = "float32"


Experiment = config_definitions.ExperimentConfig
