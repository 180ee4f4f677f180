"""The captioning task under official.core: cross-entropy training, validation by beam search.

Letters: B images, S captions per image, N = B S rows, K beams, T `max_length`, V vocabulary.
"""

import os
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from official.core import base_task

from tfcap import configs, decoding, losses, models
from tfcap.data import pipeline
from tfcap.data.records import VOCABULARY, PreparedData
from tfcap.data.tokens import UNK, Vocab
from tfcap.metrics.coco import CocoScorer
from tfcap.metrics.diversity import distinct_share
from tfcap.models.captioner import Captioner
from tfcap.tasks import keras3, optim
from tfcap.tasks.checkpoints import find, restore_weights

DRAWS = -1  # beside the task's seed: apart from the data's order, which takes an epoch there


class Perplexity(keras.metrics.Mean):
    """exp of the mean negative log-likelihood per word, without label smoothing."""

    def result(self):
        return keras.ops.exp(super().result())


def build_model(task: configs.Task, vocab_size: int, feature_dim: int) -> Captioner:
    """The captioner that a `configs.Task` describes."""
    options = task.model.get().as_dict()
    return models.build(task.model.type, vocab_size, task.max_length, feature_dim, **options)


def beam_options(task: configs.Task, beam: int = 0) -> dict[str, Any]:
    """The arguments of `decoding.beam_search` that a `configs.Task` describes.

    `beam` above 0 replaces the configured width.
    """
    options = task.decoding
    return {
        "beam": beam or options.beam,
        "max_length": task.max_length,
        "finished": options.finished,
        "length_power": options.length_power,
        "suppress": (UNK,) if options.suppress_unk else (),
    }


class CaptionTask(base_task.Task):
    """Cross-entropy training of a captioner on a prepared data set.

    Args:
      config: `configs.Task`.
      data: the prepared data set; None where only `train_step` is used.
      start_step: the step that training continues from; the input stream starts there.
      replicas: over which a global batch is divided.
      optimizer_config: `configs.Optimizer`.
    """

    def __init__(
        self,
        config: configs.Task,
        data: PreparedData | None,
        optimizer_config: configs.Optimizer,
        replicas: int = 1,
        start_step: int = 0,
    ):
        super().__init__(config)
        self.data = data
        self.optimizer_config = optimizer_config
        self.replicas = replicas
        self.start_step = start_step
        self.scorer = CocoScorer(metrics=tuple(config.metrics))
        self.captions: dict[int, str] = {}  # of the last validation, by image id
        self.notes: list[str] = []  # what the last validation could not score, and why

    def build_model(self) -> Captioner:
        """The captioner with all its variables."""
        return build_model(self.task_config, len(self.data.vocab), self.data.feature_dim)

    def build_optimizer(
        self, model: Captioner, plateau: optim.Plateau
    ) -> keras.optimizers.Optimizer:
        """The optimizer with all its variables; float16 gets a scaled loss."""
        config = self.optimizer_config
        rate = optim.schedule(config.schedule, model.width)
        if plateau.patience:
            rate = optim.Scaled(rate, plateau.scale)
        optimizer = optim.optimizer(config, rate)
        if keras.mixed_precision.global_policy().compute_dtype == "float16":
            optimizer = keras.optimizers.LossScaleOptimizer(optimizer)
        optimizer.build(model.trainable_variables)
        return optimizer

    def build_inputs(self, params: configs.Data, input_context=None) -> tf.data.Dataset:
        """Batches of one replica; `params` is `configs.Data`."""
        size = params.global_batch_size // self.replicas
        shared = dict(
            split=params.split,
            batch_size=size,
            replicas=self.replicas,
            captions_per_image=params.captions_per_image,
            max_length=self.task_config.max_length,
            max_regions=params.max_regions or None,
            input_context=input_context,
            pad_to_max=params.pad_to_max,
        )
        if params.is_training:
            return pipeline.training_batches(
                self.data, seed=self.task_config.seed, start_batch=self.start_step, **shared
            )
        return pipeline.decoding_batches(self.data, limit=params.limit or None, **shared)

    def build_metrics(self, training: bool = True) -> list[keras.metrics.Metric]:
        """The same two for training and validation, so that TensorBoard overlays them."""
        del training
        return [
            keras3.metric(keras.metrics.Mean(name="loss")),
            keras3.metric(Perplexity(name="perplexity")),
        ]

    def train_step(self, inputs, model, optimizer, metrics=None):
        """One step on one replica; the loss is a mean over the words of all replicas.

        What TensorBoard shows is the cross-entropy, without the penalty of `l2`.
        """
        config, context = self.optimizer_config, tf.distribute.get_replica_context()
        scaled = isinstance(optimizer, keras.optimizers.LossScaleOptimizer)
        with tf.GradientTape() as tape:
            logits = self._training_logits(inputs, model, optimizer.iterations)
            total, nll, words = self._loss(logits, inputs["tokens"], 1)
            every = context.all_reduce(tf.distribute.ReduceOp.SUM, words)
            loss = total / every
            # The gradients of the replicas will be added up: each gives its share of the penalty.
            objective = loss + self._penalty(model) / context.num_replicas_in_sync
            objective = optimizer.scale_loss(objective) if scaled else objective
        gradients = tape.gradient(objective, model.trainable_variables)
        keras3.apply_gradients(
            optimizer, gradients, model.trainable_variables, config.clip, config.clip_threshold
        )
        self._update(metrics, total, nll, words)
        return {self.loss: loss * context.num_replicas_in_sync}

    def validation_step(self, inputs, model, metrics=None):
        """Loss by teacher forcing and captions by beam search, on one replica."""
        real = tf.cast(inputs["real"], tf.int32)[:, None, None]
        tokens = inputs["tokens"]
        logits = model(inputs | {"tokens": tokens[..., :-1]})
        self._update(metrics, *self._loss(logits, tokens, real))
        context = model.encode(inputs)
        tokens, _, _ = decoding.beam_search(model, context, **beam_options(self.task_config))
        return {"id": inputs["id"], "tokens": tokens[:, 0]}

    def _training_logits(self, inputs, model, done):
        """Logits [B, S, T', V] of a step after `done` others, with dropout."""
        given = inputs["tokens"][..., :-1]
        if not self.task_config.scheduled_sampling.increase:
            return model(inputs | {"tokens": given}, training=True)
        done = tf.convert_to_tensor(done)
        replica = tf.distribute.get_replica_context().replica_id_in_sync_group
        seed = tf.random.fold_in(tf.constant([self.task_config.seed, DRAWS], done.dtype), done)
        seed = tf.random.fold_in(seed, tf.cast(replica, done.dtype))
        shape = tf.shape(given)
        logits = decoding.scheduled(
            model,
            model.encode(inputs, training=True),
            tf.reshape(given, (shape[0] * shape[1], shape[2])),  # [B, S, T'] -> [N, T']
            optim.sampling_probability(self.task_config.scheduled_sampling, done),
            seed,
            training=True,
        )
        return tf.reshape(logits, (shape[0], shape[1], shape[2], model.vocab_size))

    def _penalty(self, model):
        """lambda |weights|^2 of m-RNN (systems 6.3), over all weights, biases too.

        The paper's cost is in bits, this one in nats: its lambda is to be multiplied by ln 2.
        """
        if not self.task_config.l2:
            return 0.0
        return self.task_config.l2 * tf.add_n(
            [tf.reduce_sum(tf.square(weight)) for weight in model.trainable_variables]
        )

    def _loss(self, logits, tokens, real):
        """Summed objective, summed negative log-likelihood, and number of words.

        `real` is 0 for images that only fill the batch: their words do not count.
        """
        targets = tokens[..., 1:] * real
        return losses.cross_entropy(logits, targets, self.task_config.label_smoothing)

    def _update(self, metrics, total, nll, words):
        loss, perplexity = metrics
        loss.update_state(tf.math.divide_no_nan(total, words), sample_weight=words)
        perplexity.update_state(tf.math.divide_no_nan(nll, words), sample_weight=words)

    def aggregate_logs(self, state, step_logs):
        """Collects captions by image id, so that images repeated to fill a batch count once."""
        captions = {} if state is None else state
        for ids, tokens in zip(step_logs["id"], step_logs["tokens"], strict=True):
            texts = self.data.vocab.detokenize(tokens).numpy()
            captions.update({int(i): t.decode() for i, t in zip(ids.numpy(), texts, strict=True)})
        return captions

    def reduce_aggregated_logs(self, aggregated_logs, global_step=None) -> dict[str, float]:
        """Official scores of the captions, each times 100."""
        self.captions = aggregated_logs
        references = self.data.references(self.task_config.validation_data.split)
        scores = self.scorer.score({i: references[i] for i in self.captions}, self.captions)
        self.notes = [f"{name} is left out: {why}" for name, why in scores.unavailable.items()]
        self.notes += scores.notes
        return scores.corpus | {"distinct_captions": distinct_share(self.captions)}

    def initialize(self, model: Captioner) -> None:
        """Loads `init_checkpoint`'s weights, and only weights: a new run has its own dropout.

        With `remap_vocab` the words that its vocabulary shares with ours keep their rows; the
        other words keep their initialisation.

        Raises:
          ValueError: if the checkpoint lacks a weight of the model or has another shape for it, or
            other words, unless they are to be remapped.
        """
        source = self.task_config.init_checkpoint
        if source:
            restore_weights(model, source, self._rows(find(source)))

    def _rows(self, path):
        """Where the checkpoint `path` has our words; None if its vocabulary is ours."""
        mine, remap = self.data.vocab, self.task_config.remap_vocab
        folder = os.path.dirname(path)  # of a run, or best_ckpt inside one
        places = [os.path.join(f, VOCABULARY) for f in (folder, os.path.dirname(folder))]
        place = next((place for place in places if os.path.exists(place)), None)
        if place is None and remap:
            raise ValueError(f"task.remap_vocab needs {places[0]}, the words of {path}")
        other = mine if place is None else Vocab.load(place)
        if other.sha256 == mine.sha256:
            return None
        if not remap:
            raise ValueError(
                f"{path} has another vocabulary ({place}) than {self.data.folder}: choose "
                "task.remap_vocab=true to keep the rows of shared words"
            )
        ids = {word: number for number, word in enumerate(other.words)}
        rows = np.array([ids.get(word, -1) for word in mine.words])
        print(
            f"{path}: {(rows >= 0).sum()} of {len(mine)} words keep their rows, "
            f"{(rows < 0).sum()} are new",
            flush=True,
        )
        return rows
