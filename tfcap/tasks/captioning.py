"""The captioning task under official.core: cross-entropy training, validation by beam search.

Letters: B images, S captions per image, N = B S rows, K beams, T `max_length`, V vocabulary.
"""

import os
import re
from typing import Any

import keras
import tensorflow as tf
from official.core import base_task

from tfcap import configs, decoding, losses, models
from tfcap.data import pipeline
from tfcap.data.records import PreparedData
from tfcap.data.tokens import UNK
from tfcap.metrics.coco import CocoScorer
from tfcap.metrics.diversity import distinct_share
from tfcap.models.captioner import Captioner
from tfcap.tasks import keras3, optim


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
        """One step on one replica; the loss is a mean over the words of all replicas."""
        config, context = self.optimizer_config, tf.distribute.get_replica_context()
        scaled = isinstance(optimizer, keras.optimizers.LossScaleOptimizer)
        with tf.GradientTape() as tape:
            total, nll, words = self._loss(model, inputs, 1, training=True)
            every = context.all_reduce(tf.distribute.ReduceOp.SUM, words)
            loss = total / every
            objective = optimizer.scale_loss(loss) if scaled else loss
        gradients = tape.gradient(objective, model.trainable_variables)
        keras3.apply_gradients(
            optimizer, gradients, model.trainable_variables, config.clip, config.clip_threshold
        )
        self._update(metrics, total, nll, words)
        return {self.loss: loss * context.num_replicas_in_sync}

    def validation_step(self, inputs, model, metrics=None):
        """Loss by teacher forcing and captions by beam search, on one replica."""
        real = tf.cast(inputs["real"], tf.int32)[:, None, None]
        self._update(metrics, *self._loss(model, inputs, real))
        context = model.encode(inputs)
        tokens, _, _ = decoding.beam_search(model, context, **beam_options(self.task_config))
        return {"id": inputs["id"], "tokens": tokens[:, 0]}

    def _loss(self, model, inputs, real, training=False):
        """Summed objective, summed negative log-likelihood, and number of words.

        `real` is 0 for images that only fill the batch: their words do not count.
        """
        tokens = inputs["tokens"]
        logits = model(inputs | {"tokens": tokens[..., :-1]}, training=training)
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

        Raises:
          ValueError: if the checkpoint lacks a weight of the model or has another shape for it.
        """
        if self.task_config.init_checkpoint:
            restore_weights(model, self.task_config.init_checkpoint)


def newest_checkpoint(directory: str) -> str | None:
    """The checkpoint that TensorFlow's file `checkpoint` names, the newest one if it names none.

    That file may be damaged while the checkpoints are whole: then TensorFlow finds nothing, or
    raises, depending on the damage.
    """
    try:
        path = tf.train.latest_checkpoint(directory)
    except ValueError:  # it is empty or not text
        path = None
    if path or not os.path.isdir(directory):
        return path
    found = [re.fullmatch(r"(.+-(\d+))\.index", name) for name in os.listdir(directory)]
    newest = max((match for match in found if match), key=lambda m: int(m[2]), default=None)
    return os.path.join(directory, newest[1]) if newest else None


def restore_weights(model: Captioner, checkpoint: str) -> str:
    """Restores every weight of `model` from a checkpoint, or the latest one of a directory.

    Returns:
      The path of the checkpoint that was read.

    Raises:
      ValueError: if there is none, it is damaged, or it lacks or misshapes a weight.
    """
    path = newest_checkpoint(checkpoint) if os.path.isdir(checkpoint) else checkpoint
    if not path or not tf.io.gfile.exists(path + ".index"):
        raise ValueError(f"there is no checkpoint in {checkpoint}")
    weights = model.checkpoint_items["weights"]
    # Read by name and not by tf.train.Checkpoint, whose failed reads leave a warning for every
    # tensor of the checkpoint.
    try:
        reader = tf.train.load_checkpoint(path)
        shapes = reader.get_variable_to_shape_map()
        for name, variable in weights.items():
            if (shape := shapes.get(_key(name))) != variable.shape:
                found = "not there" if shape is None else f"{shape} there"
                raise ValueError(
                    f"{path} does not fit this model ({model.name}, {len(weights)} weights): "
                    f"{name} is {variable.shape.as_list()} here and {found}"
                )
        values = {name: reader.get_tensor(_key(name)) for name in weights}
    except (tf.errors.OpError, RuntimeError, IndexError) as error:
        raise ValueError(f"{path} is damaged: {str(error).splitlines()[0]}") from error
    for name, variable in weights.items():
        variable.assign(values[name])
    return path


def _key(name: str) -> str:
    """Where a checkpoint keeps the item `name` of `weights`."""
    escaped = name.replace(".", "..").replace("/", ".S")
    return f"weights/{escaped}/.ATTRIBUTES/VARIABLE_VALUE"
