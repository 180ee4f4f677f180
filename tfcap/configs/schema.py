"""The groups of keys of a configuration, with their defaults and what they mean.

The groups are TF Model Garden's `hyperparams.Config`. Their keys, order and defaults are those of
`params.yaml` in the directory of a run.
"""

import dataclasses
import functools
from typing import TYPE_CHECKING

from official.modeling import hyperparams

from tfcap import models
from tfcap.decoding.options import Options
from tfcap.models.captioner import options_of

SYSTEMS = models.MODELS  # by name; a system that registers later is in it too


def Model(type: str = "xtransformer") -> hyperparams.OneOfConfig:
    """Makes the group `task.model`: the chosen system, and a group of options for every system.

    The options of a system are the arguments of its constructor in `tfcap.models`. The constructor
    describes the options and has their defaults. `Model` is a function and not a class, because
    more systems can be registered after this module is imported.

    Args:
      type: the name of the chosen system.
    """
    return _model_class(*SYSTEMS.items())(type=type)


@functools.lru_cache(maxsize=8)
def _model_class(*systems) -> type[hyperparams.OneOfConfig]:
    groups = [
        (name, group := _options_class(cls), dataclasses.field(default_factory=group))
        for name, cls in systems
    ]
    return dataclasses.make_dataclass(
        "Model", [("type", str | None, None), *groups], bases=(hyperparams.OneOfConfig,)
    )


@functools.lru_cache(maxsize=64)
def _options_class(cls) -> type[hyperparams.Config]:
    options = options_of(cls)
    return dataclasses.make_dataclass(cls.__name__, options, bases=(hyperparams.Config,))


@dataclasses.dataclass
class Data(hyperparams.Config):
    """One split of a prepared data set, and how training or validation reads it in batches.

    Attributes:
      split: train, val, test, or another split of the prepared data. In `validation_data` the
        default is val.
      is_training: true reads shuffled batches endlessly, false reads the split once in file order.
        In `validation_data` the default is false.
      global_batch_size: number of images in a step, over all replicas.
      captions_per_image: number of captions that are drawn for each image of a batch.
      max_regions: largest number of regions of an image; further regions are ignored; 0 uses all.
      limit: number of images of the split that a validation uses, from the first one on; 0 uses
        all.
    """

    split: str = "train"
    is_training: bool = True
    global_batch_size: int = 32
    captions_per_image: int = 5
    max_regions: int = 0
    limit: int = 0

    @property
    def region_limit(self) -> int | None:
        """The largest number of regions of an image, `max_regions`; None for no limit."""
        return self.max_regions or None


# The keys of `task.decoding` are the fields of `Options`, which says what each one means.
if TYPE_CHECKING:  # a type checker cannot follow the fields that are made below

    class Decoding(Options, hyperparams.Config):
        """The keys of `task.decoding`."""

else:
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
    """How often training replaces a word that the model reads by a word that the model drew.

    The probability after n steps is min(increase * floor(max(n - start, 0) / every), maximum).

    Attributes:
      increase: what is added to the probability each time it grows. 0 never replaces a word (plain
        teacher forcing). Above 0, training runs word by word from the first step on: recurrent
        systems train as fast as before, the others take several times as long.
      start: number of steps before the probability begins to grow.
      every: number of steps between two increases.
      maximum: largest probability.
    """

    increase: float = 0.0
    start: int = 0
    every: int = 1000
    maximum: float = 0.25


@dataclasses.dataclass
class Teacher(hyperparams.Config):
    """Trained runs whose word probabilities are targets, too (distillation, Hinton et al. 2015).

    The loss of a word is (1 - weight) * H + weight * D. H is the cross-entropy with the word of the
    caption, and `label_smoothing` changes only H. With the temperature T, D is T^2 times the
    cross-entropy of softmax(logits / T) with softmax(teacher's logits / T). The teacher reads the
    same features and words as the captioner that it teaches, without dropout.

    Attributes:
      model_dir: the runs, as in [runs/a, runs/b]: directories, names of pretrained models, or
        `hf://OWNER/NAME`. Several runs teach with the mean of their probabilities. A run needs the
        vocabulary and the features of the data. Empty trains without a teacher.
      weight: share of the teacher in the loss.
      temperature: number T by which logits are divided; above 1 it makes improbable words count
        more.
    """

    model_dir: list[str] = dataclasses.field(default_factory=list)
    weight: float = 0.7
    temperature: float = 1.0


@dataclasses.dataclass
class Reward(hyperparams.Config):
    """The reward of self-critical training: a weighted sum of scores of a sampled caption.

    Attributes:
      convention: how references are read. `jdai` cuts them at `max_length` and treats an unknown
        word like any other word, as the released X-LAN and X-Transformer do. `expansionnet` does
        not cut them, and in it an unknown word matches nothing.
      count_eos: whether the end of a caption counts as a word. If false, training learns captions
        that break off, for example after "with a", because such captions score higher.
      cider: weight of CIDEr-D.
      bleu: weight of BLEU-4.
    """

    convention: str = "jdai"
    count_eos: bool = True
    cider: float = 1.0
    bleu: float = 0.0


@dataclasses.dataclass
class SelfCritical(hyperparams.Config):
    """Self-critical training (Rennie et al. 2017), which `objective: scst` chooses.

    Attributes:
      samples: number of captions that are drawn for each image.
      baseline: what is subtracted from the reward of a caption. `greedy` is the reward of the
        caption of greedy decoding, `others` is the mean reward of the other captions that were
        drawn for the same image.
      reduction: what the sum of the loss is divided by. `words` is the number of sampled words, so
        that a long caption counts more; `sequences` is the number of captions.
      gradient: how the gradient is computed. `rescoring` draws the captions without dropout and
        stores nothing for a gradient; the gradient comes from one pass of teacher forcing over
        them, with dropout. `sampling` draws with dropout and takes the gradient through the loop,
        as the released code does: it is slower, and every step of the loop stays in memory.
      start_tolerance: largest difference, in points of `greedy_CIDEr-D`, between the validation
        before the first step and the score stored with the initial checkpoint. A larger difference
        ends training with an error.
      reward: the weighted sum of scores that training maximises.
    """

    samples: int = 5
    baseline: str = "others"
    reduction: str = "words"
    gradient: str = "rescoring"
    start_tolerance: float = 0.5
    reward: Reward = dataclasses.field(default_factory=Reward)


@dataclasses.dataclass
class Backbone(hyperparams.Config):
    """Whether and how training changes the network that computes the features of pictures.

    Attributes:
      trainable: true trains this network together with the captioner, from the pictures that
        `python -m tfcap.prepare --keep_pictures` stores. The network starts with the weights in the
        prepared data. But if `task.init_checkpoint` names a run that also trained the network, it
        starts with the weights of that run.
      learning_rate_factor: number by which the learning rate is multiplied for the weights of this
        network; 0 does not change these weights.
    """

    trainable: bool = False
    learning_rate_factor: float = 0.1


@dataclasses.dataclass
class Task(hyperparams.Config):
    """What is trained, on which data and with which objective: the group `task`.

    Attributes:
      model: the captioning system and its options.
      backbone: whether and how the network that computes the features is trained, too.
      objective: `xe`, cross-entropy, or `scst`, self-critical training.
      self_critical: options of the objective `scst`.
      micro_batches: number of parts into which each replica divides its images of a step. The parts
        run one after the other. More parts need less memory and give the same gradient, but dropout
        draws other masks.
      data_dir: directory that `python -m tfcap.prepare` wrote. Empty means the built-in pictures,
        the shapes, which are prepared in `data/shapes` on first use. The built-in clips are
        prepared on first use, too, in `data/moving_shapes`.
      max_length: the number of words of the longest caption, the end mark included.
      label_smoothing: the share of the target probability that all other words get together; with 0
        the word of the caption gets all of it.
      scheduled_sampling: how often a word that training feeds to the model is replaced by a word
        that the model drew.
      teacher: trained runs that teach the captioner; only for the objective `xe`, with a backbone
        that is not trained.
      l2: the factor of the penalty l2 * |weights|^2 of m-RNN. The penalty is added to the
        objective; the reported `loss` stays the cross-entropy.
      seed: random seed of weights, dropout, data order and drawn captions.
      metrics: the scores that validation computes, any of BLEU, METEOR, ROUGE-L, CIDEr, SPICE,
        CHAIR.
      init_checkpoint: weights to start from: a checkpoint; a directory, whose newest checkpoint is
        taken (`RUN/best_ckpt` holds the best one); or the name of a pretrained model. Empty starts
        from random weights.
      remap_vocab: true allows that `init_checkpoint` has another vocabulary. Words that both
        vocabularies have get their weights from the checkpoint; the other words keep random
        weights. False makes another vocabulary an error.
    """

    model: hyperparams.OneOfConfig = dataclasses.field(default_factory=Model)
    backbone: Backbone = dataclasses.field(default_factory=Backbone)
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
    teacher: Teacher = dataclasses.field(default_factory=Teacher)
    l2: float = 0.0
    seed: int = 1
    metrics: list[str] = dataclasses.field(
        default_factory=lambda: ["BLEU", "METEOR", "ROUGE-L", "CIDEr"]
    )
    init_checkpoint: str = ""
    remap_vocab: bool = False


@dataclasses.dataclass
class Schedule(hyperparams.Config):
    """The learning rate at the optimizer steps n = 1, 2, ...

    Attributes:
      name: how the rate changes. constant: it is always `learning_rate`. noam: it is
        `learning_rate` * width^-0.5 * min(n^-0.5, n * `warmup_steps`^-1.5), where width is the
        width of the model. linear: in the warm-up it grows to `learning_rate` by equal amounts.
        hyperbolic: in the warm-up it is `learning_rate` / (`warmup_steps` - n + 1).
      learning_rate: the rate after the warm-up, before any decay; for noam, the first factor of the
        formula in `name`.
      warmup_steps: number of steps in which the rate grows.
      decay_steps: for linear and hyperbolic, number of steps between two decays, each of which
        multiplies the rate by `decay_rate`; 0 never decays.
      decay_rate: for linear and hyperbolic, number by which each decay multiplies the rate.
      decay_start: for linear and hyperbolic, number of steps before `decay_steps` is counted: the
        first decay is after `decay_start` + `decay_steps` steps.
      minimum: for linear and hyperbolic, smallest rate after the warm-up.
      plateau_patience: after more than this number of validations in a row without a better score,
        the rate is multiplied by `plateau_factor`. 0 never does this.
      plateau_factor: number by which the rate is multiplied, see `plateau_patience`.
    """

    name: str = "noam"
    learning_rate: float = 1.0
    warmup_steps: int = 10000
    decay_steps: int = 0
    decay_rate: float = 0.8
    decay_start: int = 0
    minimum: float = 0.0
    plateau_patience: int = 0
    plateau_factor: float = 0.8


@dataclasses.dataclass
class Optimizer(hyperparams.Config):
    """The optimizer, clipping, averaging and learning rate: the group `optimizer_config`.

    Attributes:
      name: adam, radam or sgd.
      beta_1: for adam and radam, decay rate of the first moment.
      beta_2: for adam and radam, decay rate of the second moment.
      epsilon: for adam and radam, number added in the denominator of the update.
      early_steps: for radam, what happens in the first steps, in which the variance of the step
        size cannot be computed. momentum changes weights by the first moment, as the released
        X-Transformer does; none changes no weight, as the released ExpansionNet does.
      clip: how the gradient is clipped. value limits each element to +-`clip_threshold`. norm
        limits the Euclidean norm of the gradients of all weights together. none does not clip.
      clip_threshold: the limit of `clip`. It applies to the gradient of all replicas together.
      ema_decay: the factor d of a moving average of the weights, which becomes
        d * average + (1 - d) * weights after every step. It starts as the weights after the first
        step. Validation, the best checkpoint and everything that reads a checkpoint use the
        average; only training uses the weights. 0 keeps no average.
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
class Trainer(hyperparams.Config):
    """The training loop, with the keys of TF Model Garden's trainer.

    Attributes:
      optimizer_config: optimizer and learning rate.
      train_tf_while_loop: true runs `steps_per_loop` steps as one TensorFlow graph, which needs
        `train_tf_function`; false calls each step from Python.
      train_tf_function: true runs a training step as a TensorFlow graph; false runs it eagerly,
        which is slow but can be debugged.
      eval_tf_function: the same for a step of validation.
      steps_per_loop: number of steps between two reports of the loss.
      summary_interval: number of steps between two points of the curves that TensorBoard shows of
        training. A point has the values of the last loop of `steps_per_loop` steps.
      checkpoint_interval: number of steps between two checkpoints.
      max_to_keep: number of newest checkpoints that are not deleted; the best one is stored apart.
      continuous_eval_timeout: with `--mode=continuous_eval`, seconds to wait for the next
        checkpoint.
      train_steps: number of steps of the whole training.
      validation_steps: number of batches of a validation; -1 validates on the whole split.
      validation_interval: number of steps between two validations.
      best_checkpoint_export_subdir: the directory in the run for the best checkpoint. Only
        `--mode=train_and_eval` and `--mode=continuous_eval` write it.
      best_checkpoint_eval_metric: the score that chooses the best checkpoint. TensorBoard shows it
        as GROUP/NAME; give NAME only: `CIDEr`, `BLEU-4`, `loss`, `perplexity`, `greedy_CIDEr-D`,
        `distinct_captions`, or another score of `task.metrics`.
      best_checkpoint_metric_comp: whether a `higher` or a `lower` score is better.
      loss_upper_bound: a training loss above it is an error.
      recovery_begin_steps: number of steps before the loss is checked against `loss_upper_bound`.
      recovery_max_trials: below 0 the loss is never checked; all other values have the same effect:
        the loss is checked. Training never restores an older checkpoint by itself, because the same
        steps would give the same loss.
      validation_summary_subdir: the directory in the run for the scores of validation that
        TensorBoard shows.
      patience: number of validations in a row without a better `best_checkpoint_eval_metric` after
        which training ends; 0 trains for all `train_steps`. With cross-entropy, the validation
        before the first step does not count. Also with cross-entropy, counting starts again at 0
        after a validation whose perplexity is more than 5 % below a reference. The reference is the
        perplexity of the first validation that counts, and later that of the last validation after
        which counting started again.
      shown_images: number of validation images that TensorBoard shows with their captions.
    """

    optimizer_config: Optimizer = dataclasses.field(default_factory=Optimizer)
    train_tf_while_loop: bool = True
    train_tf_function: bool = True
    eval_tf_function: bool = True
    steps_per_loop: int = 20
    summary_interval: int = 20
    checkpoint_interval: int = 500
    max_to_keep: int = 2
    continuous_eval_timeout: int = 3600
    train_steps: int = 1000
    validation_steps: int = -1
    validation_interval: int = 500
    best_checkpoint_export_subdir: str = "best_ckpt"
    best_checkpoint_eval_metric: str = "CIDEr"
    best_checkpoint_metric_comp: str = "higher"
    loss_upper_bound: float = 1e6
    recovery_begin_steps: int = 0
    recovery_max_trials: int = 0
    validation_summary_subdir: str = "validation"
    patience: int = 0
    shown_images: int = 8


@dataclasses.dataclass
class Runtime(hyperparams.Config):
    """Devices and precision, with the keys of TF Model Garden's runtime.

    Attributes:
      distribution_strategy: mirrored, multi_worker_mirrored, one_device or tpu. If the environment
        variable `TF_CONFIG` names several workers, mirrored means multi_worker_mirrored.
      enable_xla: true compiles the network and the search with XLA in training and validation. All
        batches are then padded to one shape. The first step takes longer. Dropout draws other
        masks than without XLA, and scheduled sampling other words. On a TPU XLA always compiles.
      tpu: address of the TPU.
      num_gpus: number of GPUs to use. With `mirrored`, 0 uses all. With `one_device`, 1 uses the
        first GPU and 0 the processor. `multi_worker_mirrored` always uses all.
      worker_hosts: for `multi_worker_mirrored`, HOST:PORT of every worker, with commas between
        them.
      task_index: for `multi_worker_mirrored`, number of this worker, from 0.
      all_reduce_alg: how `multi_worker_mirrored` adds the gradients of the replicas: ring, nccl or
        auto; None means auto. The other strategies do not use it.
      num_packs: has no effect; it is a key of TF Model Garden's runtime.
      mixed_precision_dtype: the type in which layers compute: float32, bfloat16 or float16.
      replicas: number of replicas of the mirrored strategy; 0 makes one for each GPU, or one on a
        machine without GPUs. Without GPUs, a number above 1 divides the processor into as many
        logical devices.
      start_timeout: for `multi_worker_mirrored`, seconds that a worker waits for the others to
        start.
      worker_timeout: for `multi_worker_mirrored`, seconds without an answer after which a worker
        counts as lost. Then all workers end with exit code 75.
    """

    distribution_strategy: str = "mirrored"
    enable_xla: bool = False
    tpu: str | None = None
    num_gpus: int = 0
    worker_hosts: str | None = None
    task_index: int = -1
    all_reduce_alg: str | None = None
    num_packs: int = 1
    mixed_precision_dtype: str | None = "float32"
    replicas: int = 0
    start_timeout: float = 600.0
    worker_timeout: float = 10.0

    @property
    def uses_xla(self) -> bool:
        """Whether XLA compiles the network: if `enable_xla` is true, and always on a TPU."""
        return self.enable_xla or self.distribution_strategy == "tpu"


@dataclasses.dataclass
class Experiment(hyperparams.Config):
    """The whole configuration of a run.

    Attributes:
      task: what is trained, on which data and with which objective.
      trainer: the training loop and the optimizer.
      runtime: devices and precision.
    """

    task: Task = dataclasses.field(default_factory=Task)
    trainer: Trainer = dataclasses.field(default_factory=Trainer)
    runtime: Runtime = dataclasses.field(default_factory=Runtime)
