"""Self-critical training: the whole step in one graph.

Letters: B images, S samples per image, N = B S rows, T `max_length`, V vocabulary.
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import keras
import tensorflow as tf

from tfcap import configs
from tfcap.data import pipeline
from tfcap.data.prepared import PreparedData
from tfcap.data.tokens import FUNCTION_WORDS
from tfcap.decoding.sampling import sample
from tfcap.decoding.scores import word_log_probs
from tfcap.ids import EOS, PAD, UNK
from tfcap.models.captioner import Captioner
from tfcap.objectives import losses, rewards
from tfcap.training.start import check_start
from tfcap.training.task import CaptionTask, Sums
from tfcap.training.workers import Workers

METRICS = "loss reward baseline advantage_spread entropy length distinct_samples".split()
METRICS += ["function_word_endings"]


class Draws(NamedTuple):
    """The captions that were drawn for a batch of B images.

    Attributes:
      tokens: word ids of S sampled captions per image, each of at most T words, int32 [B, S, T];
        PAD after the end mark.
      logps: the natural logarithm of the probability of each sampled word, float32 [B, S, T]; 0 at
        PAD.
      greedy: the captions of greedy decoding, int32 [B, 1, T]; None if the baseline needs none.
    """

    tokens: tf.Tensor
    logps: tf.Tensor
    greedy: tf.Tensor | None = None


class Samples(NamedTuple):
    """The sampled captions of a batch of B images, with their advantages.

    Attributes:
      tokens: word ids of S sampled captions per image, each of at most T words, int32 [B, S, T];
        PAD after the end mark.
      logps: the natural logarithm of the probability that each word had when it was drawn, float32
        [B, S, T]; 0 at PAD.
      advantages: the reward of each caption minus its baseline, float32 [B, S].
      baseline: what was subtracted from the reward of each caption, float32 [B, S].
    """

    tokens: tf.Tensor
    logps: tf.Tensor
    advantages: tf.Tensor
    baseline: tf.Tensor


class RootMean(keras.metrics.Mean):
    """A Keras metric: the square root of the mean of its values.

    Example:
      >>> metric = RootMean()
      >>> metric.update_state([1.0, 7.0])
      >>> float(metric.result())
      2.0
    """

    def result(self):
        return keras.ops.sqrt(super().result())


class SelfCriticalTask(CaptionTask):
    """Self-critical sequence training (Rennie et al. 2017; docs/systems.md 7.2 and 7.3).

    Captions are sampled and rewarded, and a baseline is subtracted from each reward: the result is
    the advantage. The loss is the sum of -advantage times the log-probability of the caption, so
    that its gradient is minus the gradient of the expected reward. The option `reduction` says what
    this sum is divided by.

    TensorBoard shows these values of the samples of a step:

    * `reward` and `baseline`: their means.
    * `advantage_spread`: the root of the mean squared advantage.
    * `entropy`: the mean of -log p of a sampled word, in nats.
    * `length`: the mean number of words of a caption, without the end mark.
    * `distinct_samples`: the share of different captions among the samples of an image, in percent.
    * `function_word_endings`: the share of captions whose last word is one of
      `tokens.FUNCTION_WORDS`, in percent.

    With the option `gradient: rescoring`, samples are drawn first, and the model computes their
    log-probabilities again for the gradient. Sampling and greedy decoding then share one loop over
    the words, and images are encoded once for both. This departs from the released code: samples
    are drawn without dropout, and the pass that has the gradient draws new dropout masks.

    Args:
      config: the configuration of the task.
      data: the prepared data set. It may be None if only `train_step` is called and `reward` is
        given.
      optimizer_config: the configuration of the optimizer.
      reward: computes the rewards; None makes it from the configuration and the data.
      hook: a Python function whose result is added to the reward, see `rewards.Reward`.
      **kwargs: the other arguments of `CaptionTask`.
    """

    validates_start = True

    def __init__(
        self,
        config: configs.Task,
        data: PreparedData | None,
        optimizer_config: configs.Optimizer,
        *,
        reward: rewards.Reward | None = None,
        hook: Callable | None = None,
        **kwargs: Any,
    ):
        super().__init__(config, data, optimizer_config, **kwargs)
        self.options = config.self_critical
        if reward is None:
            reward = rewards.Reward(
                self.data.document_frequencies(),
                len(self.data.vocab),
                hook=hook,
                detokenize=self.data.vocab.detokenize,
                **self.options.reward.as_dict(),
            )
        self.reward = reward
        ids = data.vocab.ids(FUNCTION_WORDS) if data else []
        self.function_words = [word for word in ids if word != UNK]

    def with_references(self, options: pipeline.BatchOptions) -> pipeline.BatchOptions:
        convention = rewards.CONVENTIONS[self.options.reward.convention]
        return dataclasses.replace(
            options,
            references=self.reward.references,
            reference_length=convention.reference_length,
        )

    def build_metrics(self, training: bool = True) -> list[keras.metrics.Metric]:
        """Makes the Keras metrics that TensorBoard shows.

        Args:
          training: true makes the metrics of training, with the names in `METRICS`. False makes
            those of validation: `loss` and `perplexity`, as in cross-entropy training.
        """
        if not training:
            return super().build_metrics(False)
        kinds = {"advantage_spread": RootMean}
        return [kinds.get(name, keras.metrics.Mean)(name=name) for name in METRICS]

    @tf.autograph.experimental.do_not_convert
    def train_step(self, inputs, model, optimizer, metrics=None):
        """Samples captions, computes their advantages and the loss, and updates the weights.

        This is one step on one replica.

        Args:
          inputs: a batch of `pipeline.training_batches`, with references.
          model: the captioner.
          optimizer: the optimizer.
          metrics: the metrics to update; None updates none.

        Returns:
          {"loss": a float32 scalar}. The mean over the replicas is the loss of the whole batch.
        """
        batch = dict(inputs)
        numbers = self.random_numbers(batch, tf.convert_to_tensor(optimizer.iterations))
        if self.options.gradient == "sampling":
            loss = functools.partial(self._loss_by_sampling, model)
            return self.apply(loss, (batch, numbers), model, optimizer, metrics)
        draw = self.compiled(lambda batch, numbers: self.draw(model, model.encode(batch), numbers))
        samples = self.with_advantages(draw(batch, numbers), batch)
        loss = functools.partial(self._loss_by_rescoring, model)
        return self.apply(loss, (batch, samples), model, optimizer, metrics)

    def _loss_by_rescoring(self, model: Captioner, part: tuple[dict[str, tf.Tensor], Samples]):
        """Computes the loss of images and their samples, by teacher forcing over the samples."""
        batch, samples = part
        tokens = tf.reshape(samples.tokens, (-1, self.task_config.max_length))
        if not self.xla:  # Trim to the longest sampled caption. XLA has one shape only.
            longest = tf.reduce_max(tf.reduce_sum(tf.cast(tokens != PAD, tf.int32), 1))
            tokens = tokens[:, :longest]
        context = model.encode(batch, training=True)
        logps = word_log_probs(model, context, tokens, training=True)
        return self._loss(samples, tokens, logps)

    def _loss_by_sampling(self, model: Captioner, part: tuple[dict[str, tf.Tensor], tf.Tensor]):
        """Draws samples of images by random numbers; the gradient goes through the sampling."""
        batch, numbers = part
        length = self.task_config.max_length
        greedy = None
        context = model.encode(batch, training=True)
        tokens, logps = self._sample(model, context, numbers, training=True)
        if self.options.baseline == "greedy":
            greedy = sample(model, model.encode(batch), length)[0][:, None]
        draws = Draws(tokens, tf.stop_gradient(logps), greedy)
        samples = self.with_advantages(draws, batch)
        return self._loss(
            samples, tf.reshape(tokens, (-1, length)), tf.reshape(logps, (-1, length))
        )

    def _loss(self, samples: Samples, tokens: tf.Tensor, logps: tf.Tensor):
        """Sums -advantage log p over words [N, T]; returns what an `Objective` returns."""
        advantages = tf.reshape(samples.advantages, [-1])
        total, count = losses.self_critical(logps, tokens, advantages, self.options.reduction)
        return total, count, {"loss": (total, count)} | self._metric_sums(samples)

    def random_numbers(self, batch: dict[str, tf.Tensor], done: tf.Tensor) -> tf.Tensor:
        """Draws the random numbers that decide the sampled words of a step.

        Args:
          batch: a batch, of which only the number of images, B, is read.
          done: number of finished optimizer steps.

        Returns:
          float32 [B, S, T] in [0, 1): one number for each of the T words of the S captions of each
          image. The numbers depend only on `task.seed`, the step and the replica.
        """
        shape = [tf.shape(batch["mask"])[0], self.options.samples, self.task_config.max_length]
        return tf.random.stateless_uniform(shape, self.seed(done))

    def draw(self, model: Captioner, context: Any, numbers: tf.Tensor) -> Draws:
        """Samples captions without dropout, in one loop over the words.

        If the baseline is that of greedy decoding, the same loop decodes the greedy captions.

        Args:
          model: the captioner.
          context: the images, as `model.encode` returns them.
          numbers: the result of `random_numbers`.
        """
        if self.options.baseline != "greedy":
            return Draws(*self._sample(model, context, numbers))
        # A negative number takes the most probable word.
        numbers = tf.concat([tf.fill(tf.shape(numbers[:, :1]), -1.0), numbers], 1)
        tokens, logps = self._sample(model, context, numbers)
        return Draws(tokens[:, 1:], logps[:, 1:], greedy=tokens[:, :1])

    def _sample(self, model, context, numbers, training=False):
        """Samples with numbers [B, S, T]; returns tokens and log-probabilities [B, S, T]."""
        length = self.task_config.max_length
        shape = tf.shape(numbers)
        rows = tf.reshape(numbers, (-1, length))
        drops_ended = not (training or self.xla)
        tokens, logps = sample(
            model, context, length, rows, training=training, drops_ended=drops_ended
        )
        return tf.reshape(tokens, shape), tf.reshape(logps, shape)

    def with_advantages(self, draws: Draws, batch: dict[str, tf.Tensor]) -> Samples:
        """Rewards drawn captions, and subtracts the baseline from their rewards.

        Args:
          draws: the captions.
          batch: the images, with their references and ids.
        """
        shape = (None, self.options.samples, self.task_config.max_length)
        tokens = tf.ensure_shape(draws.tokens, shape)
        reward = self.reward(tokens, batch["references"], batch.get("id"))
        greedy = None
        if draws.greedy is not None:
            greedy = self.reward(draws.greedy, batch["references"], batch.get("id"))
        advantages, baseline = losses.advantages(reward, self.options.baseline, greedy)
        return Samples(tokens, draws.logps, advantages, baseline)

    def _metric_sums(self, samples: Samples) -> Sums:
        """Computes the sum and the weight of each metric in `METRICS` except the loss."""
        tokens, logps, advantages, baseline = samples
        real = tf.cast(tokens != PAD, tf.float32)
        words = tf.cast((tokens != PAD) & (tokens != EOS), tf.float32)
        lengths = tf.reduce_sum(words, -1)  # [B, S]
        rows = tf.cast(tf.size(lengths), tf.float32)
        last = tf.maximum(tf.cast(lengths, tf.int32) - 1, 0)
        last = tf.gather(tokens, last, batch_dims=2)
        bad = tf.reduce_any(last[..., None] == tf.constant(self.function_words, tf.int32), -1)
        same = tf.reduce_all(tokens[:, :, None] == tokens[:, None], -1)  # [B, S, S]
        earlier = tf.linalg.band_part(tf.cast(same, tf.float32), -1, 0) - tf.eye(same.shape[-1])
        new = tf.cast(tf.reduce_max(earlier, -1) == 0, tf.float32)
        return {
            "reward": (tf.reduce_sum(baseline + advantages), rows),
            "baseline": (tf.reduce_sum(baseline), rows),
            "advantage_spread": (tf.reduce_sum(tf.square(advantages)), rows),
            "entropy": (-tf.reduce_sum(logps), tf.reduce_sum(real)),
            "length": (tf.reduce_sum(lengths), rows),
            "distinct_samples": (100 * tf.reduce_sum(new), rows),
            "function_word_endings": (100 * tf.reduce_sum(tf.cast(bad, tf.float32)), rows),
        }

    def score(self, aggregated_logs, start):
        """Computes the scores of the captions of a validation, see `CaptionTask.score`.

        Before the first step, this method also compares the score of greedy decoding with the score
        that `init_checkpoint` was saved with, and appends the result to `notes` as text.

        Raises:
          ValueError: before the first step, the two scores differ by more than
            `self_critical.start_tolerance`.
        """
        logs = super().score(aggregated_logs, start)
        images = len(self.captions)
        # A run that goes on from a checkpoint at step 0, as a converted one, has loaded none.
        if start and self.loaded:
            self.notes.append(check_start(self.task_config, self.data, self.greedy, images))
        return logs


def build_task(
    params: configs.Experiment,
    data: PreparedData | None,
    replicas: int = 1,
    start_step: int = 0,
    hook: Callable | None = None,
    workers: Workers | None = None,
    teacher: Captioner | None = None,
) -> CaptionTask:
    """Makes the task for the objective of a configuration: cross-entropy or self-critical training.

    Args:
      params: the configuration.
      data: the prepared data set. It may be None if the objective is cross-entropy and only
        `train_step` is called.
      replicas: number of replicas that share a global batch.
      start_step: the step from which training goes on.
      hook: a Python function whose result is added to the reward, see `rewards.Reward`.
      workers: the processes that train together; None for a single process.
      teacher: the captioner of `task.teacher`, for cross-entropy; None for none.

    Raises:
      ValueError: `hook` is given, but the objective is cross-entropy, which has no reward.
    """
    options: dict[str, Any] = {
        "optimizer_config": params.trainer.optimizer_config,
        "replicas": replicas,
        "start_step": start_step,
        "xla": params.runtime.uses_xla,
        "workers": workers,
    }
    if params.task.objective == "scst":
        return SelfCriticalTask(params.task, data, hook=hook, **options)
    if hook:
        raise ValueError(
            "`hook` needs a reward, to which it is added. Set task.objective=scst, or leave `hook` "
            "out."
        )
    return CaptionTask(params.task, data, teacher=teacher, **options)
