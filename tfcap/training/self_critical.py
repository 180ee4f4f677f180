"""Self-critical training: the whole step in one graph.

Letters: B images, S samples per image, N = B S rows, T `max_length`, V vocabulary.
"""

from collections.abc import Callable

import keras
import tensorflow as tf

from tfcap import configs
from tfcap.data.prepared import PreparedData
from tfcap.data.tokens import FUNCTION_WORDS
from tfcap.decoding.sampling import sample
from tfcap.decoding.scores import word_log_probs
from tfcap.ids import EOS, PAD, UNK
from tfcap.objectives import losses, rewards
from tfcap.training.start import check_start
from tfcap.training.task import CaptionTask
from tfcap.training.workers import Workers

METRICS = "loss reward baseline advantage_spread entropy length distinct_samples".split()
METRICS += ["function_word_endings"]


class RootMean(keras.metrics.Mean):
    """Computes the root of a mean."""

    def result(self):
        return keras.ops.sqrt(super().result())


class SelfCriticalTask(CaptionTask):
    """Self-critical sequence training (Rennie et al. 2017; docs/systems.md 7.2 and 7.3).

    Captions are sampled and rewarded, and a baseline is subtracted from each reward: the result is
    the advantage. The gradient of the loss is the sum of -advantage times the gradient of log p,
    that is minus the gradient of the expected reward. With `gradient: rescoring`, sampling and
    greedy decoding share one loop over the words, and images are encoded once for both.

    TensorBoard shows these values of the samples of a step: `reward` and `baseline` (means),
    `advantage_spread` (root of the mean square), `entropy` (the mean of -log p of a sampled word,
    in nats), `length` (words without the end mark), `distinct_samples` (share of different captions
    among the samples of an image, percent), `function_word_endings` (share of captions whose last
    word is one of `tokens.FUNCTION_WORDS`, percent).

    `gradient: rescoring` departs from the released code: samples are drawn without dropout, and the
    pass that has the gradient draws new dropout masks.

    Args:
      reward: replaces the configured reward; required if `data` is None.
      hook: a Python function that computes a further reward, see `rewards.Reward`.
      The other arguments are those of `CaptionTask`.
    """

    validates_start = True

    def __init__(
        self,
        config: configs.Task,
        data: PreparedData | None,
        *args,
        reward: rewards.Reward | None = None,
        hook: Callable | None = None,
        **kwargs,
    ):
        super().__init__(config, data, *args, **kwargs)
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

    def training_references(self):
        convention = rewards.CONVENTIONS[self.options.reward.convention]
        return {
            "references": self.reward.references,
            "reference_length": convention.reference_length,
        }

    def build_metrics(self, training: bool = True) -> list[keras.metrics.Metric]:
        """Makes `METRICS` for training, and the metrics of cross-entropy for validation."""
        if not training:
            return super().build_metrics(False)
        kinds = {"advantage_spread": RootMean}
        return [kinds.get(name, keras.metrics.Mean)(name=name) for name in METRICS]

    @tf.autograph.experimental.do_not_convert
    def train_step(self, inputs, model, optimizer, metrics=None):
        """Runs one step on one replica: sample, reward, advantage, score, loss, update."""
        length = self.task_config.max_length
        done = tf.convert_to_tensor(optimizer.iterations)
        inputs = dict(inputs) | {"draws": self.draws(inputs, done)}

        def rescored(part):
            """Computes the loss by `rescoring`: teacher forcing over samples drawn before."""
            tokens = tf.reshape(part["samples"], (-1, length))
            if not self.xla:  # Trim to the longest sampled caption. XLA has one shape only.
                longest = tf.reduce_max(tf.reduce_sum(tf.cast(tokens != PAD, tf.int32), 1))
                tokens = tokens[:, :longest]
            context = model.encode(part, training=True)
            return self._loss(part, tokens, word_log_probs(model, context, tokens, training=True))

        def sampled(part):
            """Computes the loss by `sampling`: the gradient goes through the sampling loop."""
            context, greedy = model.encode(part, training=True), None
            tokens, logps = self._sample(model, context, part["draws"], training=True)
            if self.options.baseline == "greedy":
                greedy = sample(model, model.encode(part), length)[0][:, None]
            part = self.advantages(tokens, tf.stop_gradient(logps), greedy, part)
            return self._loss(part, *(tf.reshape(rows, (-1, length)) for rows in (tokens, logps)))

        if self.options.gradient == "sampling":
            return self.apply(sampled, inputs, model, optimizer, metrics)
        sample = self.compiled(lambda part: self.sample(model, model.encode(part), part["draws"]))
        tokens, logps, greedy = sample(inputs)
        inputs |= self.advantages(tokens, logps, greedy, inputs)
        return self.apply(rescored, inputs, model, optimizer, metrics)

    def _loss(self, part, tokens, logps):
        """Sums -advantage log p over words [N, T]; returns what an `Objective` returns."""
        advantages = tf.reshape(part["advantages"], [-1])
        total, count = losses.self_critical(logps, tokens, advantages, self.options.reduction)
        return total, count, {"loss": (total, count)} | self._metric_sums(part)

    def draws(self, inputs, done: tf.Tensor) -> tf.Tensor:
        """Returns the random numbers of the samples of a step, float32 [B, S, T]."""
        shape = [tf.shape(inputs["mask"])[0], self.options.samples, self.task_config.max_length]
        return tf.random.stateless_uniform(shape, self.seed(done))

    def sample(self, model, context, draws):
        """Samples captions, and decodes greedily, in one loop over the words without dropout.

        Returns tokens and log-probabilities, both [B, S, T], and the greedy tokens [B, 1, T], or
        None if the baseline does not need them.
        """
        if self.options.baseline != "greedy":
            return *self._sample(model, context, draws), None
        draws = tf.concat([tf.fill(tf.shape(draws[:, :1]), -1.0), draws], 1)
        tokens, logps = self._sample(model, context, draws)
        return tokens[:, 1:], logps[:, 1:], tokens[:, :1]

    def _sample(self, model, context, draws, training=False):
        """Samples with random numbers `draws`; returns tokens and log-probabilities [B, S, T]."""
        length, shape = self.task_config.max_length, tf.shape(draws)
        rows = tf.reshape(draws, (-1, length))
        tokens, logps = sample(model, context, length, rows, training=training)
        return tf.reshape(tokens, shape), tf.reshape(logps, shape)

    def advantages(self, tokens, logps, greedy, inputs):
        """Computes the rewards of samples, and subtracts the baseline."""
        tokens = tf.ensure_shape(tokens, (None, self.options.samples, self.task_config.max_length))
        ids = inputs.get("id")
        reward = self.reward(tokens, inputs["references"], ids)
        if greedy is not None:
            greedy = self.reward(greedy, inputs["references"], ids)
        advantages, baseline = losses.advantages(reward, self.options.baseline, greedy)
        return {"samples": tokens, "logps": logps, "advantages": advantages, "baseline": baseline}

    def _metric_sums(self, scored):
        """Computes the sum and the weight of each metric in `METRICS` except the loss."""
        tokens, advantages = scored["samples"], scored["advantages"]
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
            "reward": (tf.reduce_sum(scored["baseline"] + advantages), rows),
            "baseline": (tf.reduce_sum(scored["baseline"]), rows),
            "advantage_spread": (tf.reduce_sum(tf.square(advantages)), rows),
            "entropy": (-tf.reduce_sum(scored["logps"]), tf.reduce_sum(real)),
            "length": (tf.reduce_sum(lengths), rows),
            "distinct_samples": (100 * tf.reduce_sum(new), rows),
            "function_word_endings": (100 * tf.reduce_sum(tf.cast(bad, tf.float32)), rows),
        }

    def score(self, aggregated_logs, start):
        """Computes the scores; at the start, compares them with those of `init_checkpoint`."""
        logs, images = super().score(aggregated_logs, start), len(self.captions)
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
) -> CaptionTask:
    """Makes the task for `params.task.objective`."""
    xla = params.runtime.enable_xla
    optimizer = params.trainer.optimizer_config
    shared = (params.task, data, optimizer, replicas, start_step, xla, workers)
    if params.task.objective == "scst":
        return SelfCriticalTask(*shared, hook=hook)
    if hook:
        raise ValueError("A reward hook needs task.objective=scst.")
    return CaptionTask(*shared)
