"""The captioning task: cross-entropy training, and validation by beam search.

Letters: B images, S captions per image, N = B S rows, K beams, T `max_length`, T' the words of
the longest caption of a batch, V vocabulary.
"""

import dataclasses
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

import keras
import numpy as np
import tensorflow as tf
from official.core import base_task

from tfcap import configs, runs, segmentation
from tfcap.data import pipeline
from tfcap.data.prepared import PreparedData
from tfcap.decoding.sampling import sample, scheduled_sampling
from tfcap.decoding.search import Search
from tfcap.metrics.coco import CocoScorer
from tfcap.metrics.diversity import distinct_share
from tfcap.metrics.results import Scores
from tfcap.models.captioner import Captioner
from tfcap.objectives import losses, ngrams
from tfcap.runs.checkpoints import find, restore_weights
from tfcap.training import distribution, optim
from tfcap.training.start import other_features, rows_of_words
from tfcap.training.workers import Workers

_log = logging.getLogger(__name__)
MEASURED = 1000  # training images whose features give the mean and deviation of `standardize`
Sums = dict[str, tuple[tf.Tensor, tf.Tensor]]  # metric -> its sum, and the number to divide by
Batch = Any  # a nest of tensors [B, ...]
Objective = Callable[[Batch], tuple[tf.Tensor, tf.Tensor, Sums]]
DRAWS = -1  # second number of the seeds of draws; in those of the data order it is the epoch


class Perplexity(keras.metrics.Mean):
    """A Keras metric: exp of the mean of its values, the negative log-likelihoods of words in nats.

    Example:
      >>> metric = Perplexity()
      >>> metric.update_state(0.0)
      >>> float(metric.result())
      1.0
    """

    def result(self):
        return keras.ops.exp(super().result())


class CaptionTask(base_task.Task):
    """Cross-entropy training of a captioner on a prepared data set.

    It is a task of TF Model Garden: `Loop` calls its methods. A subclass trains with another
    objective.

    Args:
      config: the configuration of the task.
      data: the prepared data set. It may be None if only `train_step` is called.
      optimizer_config: the configuration of the optimizer.
      replicas: number of replicas that share a global batch.
      start_step: the step from which training goes on; the first batch is that of this step.
      xla: true compiles the network and the search with XLA. Then all batches have one shape.
      workers: the processes that train together; None for a single process.
      teacher: the captioner whose probabilities are targets, too (`task.teacher`); None for none.
        It is no part of the model, so nothing saves, averages or trains its weights.

    Attributes:
      captions: the captions of the last validation, by image id.
      scores: the scores of these captions; None before the first validation.
      notes: texts that say what the last validation could not score, and why.
    """

    validates_start = False  # whether training begins with a validation

    def __init__(
        self,
        config: configs.Task,
        data: PreparedData | None,
        optimizer_config: configs.Optimizer,
        replicas: int = 1,
        start_step: int = 0,
        xla: bool = False,
        workers: Workers | None = None,
        teacher: Captioner | None = None,
    ):
        super().__init__(config)
        # The score of the weights that it starts from shows whether training improves them.
        self.validates_start = self.validates_start or bool(config.init_checkpoint)
        self.xla = xla
        self.workers = workers or Workers()
        self.teacher = teacher
        self.data = cast(PreparedData, data)  # None in a task that has no data
        self.optimizer_config = optimizer_config
        self.replicas = replicas
        self.start_step = start_step
        way = data.vocab.tokens if data is not None else segmentation.RAW
        self.scorer = CocoScorer(metrics=tuple(config.metrics), tokens=way)
        self.captions: dict[int, str] = {}  # of the last validation, by image id
        self.scores: Scores | None = None  # of these captions
        self.greedy = float("nan")  # their greedy_CIDEr-D
        self.notes: list[str] = []  # what the last validation could not score, and why
        self.loaded = False  # whether `initialize` has loaded `init_checkpoint`
        # Scores greedy captions at validation, in the same way whatever the reward of the run is.
        self.cider: ngrams.CiderD | None = None
        self.search: Search | None = None
        if data is not None:
            if data.has_document_frequencies and len(data.vocab) <= ngrams.LARGEST_VOCABULARY:
                self.cider = ngrams.CiderD(data.document_frequencies(), len(data.vocab))
            self.search = runs.build_search(config, data.vocab, data.document_frequencies)

    def build_model(self) -> Captioner:
        """Makes the captioner and all of its variables.

        With `task.backbone.trainable` the captioner contains the backbone, which computes the
        features of pictures.
        """
        data = self.data
        config = self.task_config
        captioner = runs.build_model(config, len(data.vocab), data.fingerprint["features"])
        model = runs.with_backbone(captioner, config, data.fingerprint, data.folder)
        if model.backbone is not None:
            self.data = data.with_backbone(model.backbone)
        return model

    def build_optimizer(
        self, model: Captioner, plateau: optim.Plateau
    ) -> keras.optimizers.Optimizer:
        """Makes the optimizer and all of its variables; under float16 it scales the loss.

        Args:
          model: the captioner, with its backbone if that is trained.
          plateau: lowers the learning rate if validations get no better.
        """
        config = self.optimizer_config
        scale = plateau.scale if plateau.patience else None
        rate = optim.LearningRate(config.schedule, model.width, scale)
        optimizer = optim.optimizer(config, rate)
        if model.backbone is not None:
            factor = self.task_config.backbone.learning_rate_factor
            optim.scale_rate(optimizer, model.network.trainable_variables, factor)
        if keras.mixed_precision.global_policy().compute_dtype == "float16":
            optimizer = keras.optimizers.LossScaleOptimizer(optimizer)
        optimizer.build(model.trainable_variables)
        return optimizer

    def build_inputs(
        self, params: configs.Data, input_context: tf.distribute.InputContext | None = None
    ) -> tf.data.Dataset:
        """Makes a data set of batches, each of which goes to one replica.

        For training the data set has no end. For validation it ends with the last image of the
        split, or after `limit` images.

        Args:
          params: the group `train_data` or `validation_data` of the task's configuration.
          input_context: the context that `tf.distribute` gives to an input function. The data set
            then has only the batches of the replicas that this process feeds. None gives the
            batches of all replicas.
        """
        options = pipeline.BatchOptions(
            split=params.split,
            batch_size=params.global_batch_size // self.replicas,
            captions_per_image=params.captions_per_image,
            max_length=self.task_config.max_length,
            max_regions=params.region_limit,
            pad_to_max=self.xla,
            replicas=self.replicas,
            input_context=input_context,
        )
        if params.is_training:
            return pipeline.training_batches(
                self.data,
                self.with_references(options),
                seed=self.task_config.seed,
                start_batch=self.start_step,
            )
        if self.cider:
            options = dataclasses.replace(options, references=self.cider.references)
        return pipeline.decoding_batches(self.data, options, limit=params.limit or None)

    def with_references(self, options: pipeline.BatchOptions) -> pipeline.BatchOptions:
        """Returns the options of training batches, with references if the objective needs them.

        Cross-entropy needs none and leaves the options as they are. A subclass may set which
        references a batch holds.

        Args:
          options: the options of the batches.
        """
        return options

    def build_metrics(self, training: bool = True) -> list[keras.metrics.Metric]:
        """Makes the Keras metrics `loss` and `perplexity`, for training and validation alike.

        Args:
          training: not used; a subclass may have other metrics for training.
        """
        return [keras.metrics.Mean(name="loss"), Perplexity(name="perplexity")]

    # AutoGraph would rewrite every function below, though none has a loop over tensors in Python:
    # a third of the time that tracing takes.
    @tf.autograph.experimental.do_not_convert
    def train_step(self, inputs, model, optimizer, metrics=None):
        """Computes the loss of a batch on one replica, and updates the weights.

        The loss is the mean over the words of all replicas, in nats per word. The penalty of the
        option `l2` is part of the gradient, but neither of the result nor of the metrics. A teacher
        (see `configs.schema.Teacher`) and the `extra_loss` of the model change the loss, but not
        the perplexity.

        Args:
          inputs: a batch of `pipeline.training_batches`.
          model: the captioner.
          optimizer: the optimizer.
          metrics: the metrics to update; None updates none.

        Returns:
          {"loss": a float32 scalar}. The mean over the replicas is the loss of the whole batch.
        """
        done = tf.convert_to_tensor(optimizer.iterations)
        # Each image has its own seed, so that micro-batches draw different words.
        images = tf.range(tf.shape(inputs["mask"])[0], dtype=done.dtype)[:, None]
        inputs = dict(inputs) | {"seed": self.seed(done) + images}

        def objective(part):
            words = part["tokens"][..., :-1]
            ramp = self.task_config.scheduled_sampling
            shape = tf.shape(words)
            context = model.encode(part, training=True)
            if ramp.increase:
                logits, words = scheduled_sampling(
                    model,
                    context,
                    tf.reshape(words, (shape[0] * shape[1], shape[2])),  # [B, S, T'] -> [N, T']
                    optim.sampling_probability(ramp, done),
                    part["seed"][0],
                    training=True,
                )
                logits = tf.reshape(logits, (shape[0], shape[1], shape[2], model.vocab_size))
                words = tf.reshape(words, shape)
            else:
                logits = model.decode_captions(context, words, training=True)
            total, count, sums = self._cross_entropy(logits, part["tokens"], 1)
            targets = part["tokens"][..., 1:]
            if self.teacher is not None:
                config = self.task_config.teacher
                taught = self.teacher.decode_captions(self.teacher.encode(part), words)
                soft = losses.distillation(logits, taught, targets, config.temperature)
                total = (1 - config.weight) * total + config.weight * soft
            total += model.extra_loss(context, logits, targets)
            return total, count, sums | {"loss": (total, count)}

        return self.apply(objective, inputs, model, optimizer, metrics)

    def seed(self, done: tf.Tensor) -> tf.Tensor:
        """Returns the seed of the random draws of this replica in one step.

        Args:
          done: number of finished optimizer steps, an integer scalar.

        Returns:
          the seed for TensorFlow's stateless random functions: two integers, [2], of the dtype of
          `done`.
        """
        replica = tf.distribute.get_replica_context().replica_id_in_sync_group
        seed = tf.random.fold_in(tf.constant([self.task_config.seed, DRAWS], done.dtype), done)
        return tf.random.fold_in(seed, tf.cast(replica, done.dtype))

    def apply(
        self,
        objective: Objective,
        batch: Batch,
        model: Captioner,
        optimizer: keras.optimizers.Optimizer,
        metrics: Sequence[keras.metrics.Metric] | None,
    ) -> dict[str, tf.Tensor]:
        """Computes the gradient of an objective, and updates the weights and the metrics.

        If the option `l2`, called lambda here, is above 0, the gradient of the penalty lambda
        |weights|^2 of m-RNN is added (docs/systems.md 6.3). The cost in the paper is in bits, but
        the loss here is in nats. So to get the penalty of the paper, set `l2` to its lambda times
        ln 2.

        Args:
          objective: a function of a batch. It returns the loss summed over words, the number of
            words, and for each metric the sum and the number to divide by.
          batch: nested tensors [B, ...] of B images; micro-batches are parts of them along B.
          model: the captioner.
          optimizer: the optimizer.
          metrics: the metrics to update; None updates none.

        Returns:
          {"loss": a float32 scalar}. The mean over the replicas is the loss of the whole batch.
        """
        config = self.optimizer_config
        weights = model.trainable_variables
        replicas = tf.distribute.get_replica_context().num_replicas_in_sync
        gradients, loss, sums = _mean_gradient(
            objective,
            batch,
            weights,
            optimizer,
            names=[metric.name for metric in metrics or ()],
            parts=self.task_config.micro_batches,
            compiled=self.compiled if self.xla else None,
        )
        if self.task_config.l2:
            # The gradients of the replicas are added up later, so each replica adds a share.
            rate = tf.constant(2.0 * self.task_config.l2 / replicas)
            if isinstance(optimizer, keras.optimizers.LossScaleOptimizer):
                rate = optimizer.scale_loss(rate)
            gradients = [
                tf.convert_to_tensor(gradient) + rate * tf.convert_to_tensor(weight)
                for gradient, weight in zip(gradients, weights, strict=True)
            ]
        distribution.apply_gradients(
            optimizer, gradients, weights, config.clip, config.clip_threshold
        )
        self._update(metrics, sums)
        return {self.loss: loss * replicas}

    @tf.autograph.experimental.do_not_convert
    def validation_step(self, inputs, model, metrics=None):
        """Computes the loss by teacher forcing, and captions by beam search and greedy search.

        Args:
          inputs: a batch of B images of `pipeline.decoding_batches`.
          model: the captioner.
          metrics: the metrics to update; None updates none.

        Returns:
          a dictionary: `id`, the image ids, int64 [B]; `tokens`, the word ids of the best caption
          of each image, at most T words, int32 [B, T]; and `greedy`, the CIDEr-D of the greedy
          caption, float32 [B]. `greedy` is NaN if the data has no document frequencies, or more
          than `ngrams.LARGEST_VOCABULARY` words.
        """
        real = tf.cast(inputs["real"], tf.int32)[:, None, None]
        tokens = inputs["tokens"]
        context = self.compiled(model.encode)(inputs)
        logits = self.compiled(model.decode_captions)(context, tokens[..., :-1])
        _, _, sums = self._cross_entropy(logits, tokens, real)
        self._update(metrics, sums)
        search = self.search
        assert search is not None  # with data
        length = self.task_config.max_length
        best = self.compiled(
            lambda context, ids: search(model, context, ids)[0], search.consensus is None
        )
        tokens = best(context, inputs["id"])
        output = {"id": inputs["id"], "tokens": tokens[:, 0]}
        if self.cider is None:  # too many words, or no document frequencies
            return output | {"greedy": tf.fill(tf.shape(inputs["id"]), float("nan"))}
        greedy = self.compiled(lambda args: sample(model, args, length)[0])(context)
        return output | {"greedy": self.cider(greedy[:, None], inputs["references"])[:, 0]}

    def compiled(self, function: Callable, possible: bool = True) -> Callable:
        """Returns a function compiled with XLA, or unchanged if the task does not use XLA.

        Args:
          function: the function.
          possible: whether XLA can compile the function; false always returns it unchanged.
        """
        if not (self.xla and possible):
            return function
        return tf.function(function, autograph=False, jit_compile=True)

    def _cross_entropy(self, logits, tokens, real):
        """Computes the summed loss, the number of words, and the sums of the metrics.

        Args:
          logits: what the model predicts, float [B, S, T', V].
          tokens: the captions int32 [B, S, T' + 1], BOS first.
          real: 0 for an image that fills up the batch, whose words do not count; else 1.
        """
        targets = tokens[..., 1:] * real
        total, nll, words = losses.cross_entropy(logits, targets, self.task_config.label_smoothing)
        return total, words, {"loss": (total, words), "perplexity": (nll, words)}

    def _update(self, metrics, sums):
        for metric in metrics or ():
            total, count = sums[metric.name]
            metric.update_state(tf.math.divide_no_nan(total, count), sample_weight=count)

    def aggregate_logs(self, state, step_logs):
        """Adds the captions of a batch to those of the batches before it.

        Args:
          state: the result for the batches before; None for the first batch.
          step_logs: the results of `validation_step`: for each key a list with a tensor of each
            replica.

        Returns:
          image id -> (the caption as text, the CIDEr-D of the greedy caption). An image that was
          repeated to fill up a batch is there once.
        """
        captions = {} if state is None else state
        columns = (step_logs[key] for key in ("id", "tokens", "greedy"))
        for ids, tokens, greedy in zip(*columns, strict=True):
            texts = self.data.vocab.detokenize(tokens, joined=False).numpy()
            for image, text, score in zip(ids.numpy(), texts, greedy.numpy(), strict=True):
                captions[int(image)] = (text.decode(), float(score))
        return captions

    def reduce_aggregated_logs(self, aggregated_logs, global_step=None) -> dict[str, float]:
        """Collects the captions of all workers in worker 0, which computes their scores.

        Args:
          aggregated_logs: the result of `aggregate_logs` in this worker.
          global_step: the number of finished steps, a variable.

        Returns:
          the scores by name, the same in all workers.
        """
        start = global_step is not None and int(global_step.numpy()) == 0
        if self.workers.count > 1:
            parts = self.workers.gather([[i, *log] for i, log in aggregated_logs.items()])
            logs = {i: (text, score) for part in parts for i, text, score in part}
            images = self.data.references(self.task_config.validation_data.split)
            aggregated_logs = {image: logs[image] for image in images if image in logs}
        scores, self.notes = self.workers.share(
            lambda: (self.score(aggregated_logs, start), self.notes)
        )
        return scores

    def score(self, aggregated_logs: Mapping[int, tuple], start: bool) -> dict[str, float]:
        """Computes the scores of captions, and keeps the captions and scores as attributes.

        Images without references do not count.

        Args:
          aggregated_logs: image id -> (the caption as text, the CIDEr-D of the greedy caption).
          start: whether this is the validation before the first step. Cross-entropy ignores it; a
            subclass may check the scores then.

        Returns:
          the scores by name, each times 100: the official ones of `task.metrics`;
          `distinct_captions`, the share of different captions; and `greedy_CIDEr-D`, the CIDEr-D of
          greedy decoding, computed on word ids with the document frequencies of the training split.
          `greedy_CIDEr-D` is left out where `validation_step` gives NaN.
        """
        references = self.data.references(self.task_config.validation_data.split)
        scored = {image: log for image, log in aggregated_logs.items() if references[image]}
        self.captions = {image: text for image, (text, _) in scored.items()}
        self.greedy = 100 * float(np.mean([score for _, score in scored.values()]))
        truth = {image: references[image] for image in scored}
        self.scores = scores = self.scorer.score(truth, self.captions)
        self.notes = [f"{name} is left out: {why}" for name, why in scores.unavailable.items()]
        self.notes += scores.notes
        if not self.data.has_document_frequencies:
            self.notes.append(
                f"greedy_CIDEr-D is left out: {self.data.folder} has no document frequencies. "
                "Prepare it with `document_frequency=FILE` of tfcap.prepare"
            )
        logs = scores.corpus | {"distinct_captions": distinct_share(self.captions)}
        return logs if np.isnan(self.greedy) else logs | {"greedy_CIDEr-D": self.greedy}

    def initialize(self, model: Captioner) -> None:
        """Gives the model its first weights, from `init_checkpoint` if the configuration names one.

        The random states of dropout are not loaded. With `remap_vocab` a word that both
        vocabularies have gets the weights of the checkpoint; any other word keeps its random
        weights. Without `init_checkpoint` all weights stay random, and a model that standardises
        its features measures their mean and deviation on images of the training split.

        Args:
          model: the captioner, with all variables.
        """
        if source := self.task_config.init_checkpoint:
            path = self._start_of(source)
            rows = rows_of_words(path, self.data, self.task_config.remap_vocab)
            if self.workers.is_chief and (warning := other_features(path, self.data)):
                _log.warning(warning)
            restore_weights(model, path, rows, start=True)
            self.loaded = True
        elif (standardize := model.on_features().standardize) is not None:
            split = self.task_config.train_data.split
            images = self.data.index(split).id[:MEASURED]
            parts = np.array_split(images, -(-len(images) // 50))
            standardize.adapt(self.data.read(split, part.tolist()) for part in parts)

    def _start_of(self, source: str) -> str:
        """Finds the checkpoint of `init_checkpoint`, which may be the default of an experiment."""
        try:
            return find(source)
        except ValueError as error:
            remedy = ""
            if self.task_config.objective == "scst":
                remedy = (
                    " Self-critical training starts from a run of cross-entropy: train it first, "
                    "or both stages with `experiment=NAME` and `then=NAME_scst`."
                )
            raise ValueError(f"task.init_checkpoint={source}: {error}{remedy}") from None


def _mean_gradient(
    objective: Objective,
    batch: Batch,
    variables: Sequence[keras.Variable],
    optimizer: keras.optimizers.Optimizer,
    names: Sequence[str],
    parts: int = 1,
    compiled: Callable[[Callable], Callable] | None = None,
) -> tuple[list[tf.Tensor], tf.Tensor, Sums]:
    """Computes this replica's share of the gradient of sum(total) / sum(count).

    Both sums run over all replicas and parts; the caller adds up the shares of the replicas. With
    micro-batches only the activations of one part exist at a time. The gradient is then the same
    except for the order of the additions, and dropout draws other masks.

    Args:
      objective: maps a batch, or a part of it, to total, count (float32 scalars) and the sums.
      batch: a nest of tensors [B, ...].
      variables: the trained variables.
      optimizer: the optimizer, which scales the loss under float16.
      names: the keys of the sums that `objective` returns.
      parts: number of micro-batches; B is a multiple of it.
      compiled: compiles a function with XLA, which cannot sum over replicas; None compiles nothing.

    Returns:
      the gradients of the variables, this replica's share of the loss, and the sums of the metrics.
    """
    replica = tf.distribute.get_replica_context()
    scaled = isinstance(optimizer, keras.optimizers.LossScaleOptimizer)
    scale = optimizer.scale_loss if scaled else tf.identity

    def over_replicas(count):
        return replica.all_reduce(tf.distribute.ReduceOp.SUM, count)

    def gradient_of(tape, loss):
        # Zeros for weights that only an `extra_loss` reads, in self-critical training.
        values = [variable.value for variable in variables]
        return tape.gradient(loss, values, unconnected_gradients=tf.UnconnectedGradients.ZERO)

    if parts == 1 and not compiled:
        with tf.GradientTape() as tape:
            total, count, sums = objective(batch)
            mean = total / over_replicas(count)
            loss = scale(mean)
        return gradient_of(tape, loss), mean, sums

    def summed(part):
        """Computes the gradients of the total of a part, the total, the count and the sums."""
        # The count of all parts is not known yet; the count of this part keeps float16 in range.
        with tf.GradientTape() as tape:
            total, count, sums = objective(part)
            loss = scale(total / count)
        gradients = [tf.convert_to_tensor(g) for g in gradient_of(tape, loss)]
        return [gradient * count for gradient in gradients], total, count, sums

    if compiled:
        summed = compiled(summed)
    if parts == 1:
        gradients, total, count, sums = summed(batch)
    else:
        zero = tf.constant(0.0)
        zeros = [tf.zeros(variable.shape, variable.dtype) for variable in variables]
        start = (zeros, zero, zero, {name: (zero, zero) for name in names})
        gradients, total, count, sums = _sum_over_parts(summed, batch, start, parts)
    count = over_replicas(count)
    return [gradient / count for gradient in gradients], total / count, sums


def _sum_over_parts(
    function: Callable[[Batch], Any], batch: Batch, start: tuple, parts: int
) -> tuple:
    """Adds up the results of a function over equal parts of a batch, one part after the other.

    Args:
      function: maps a part of the batch to a nest of tensors.
      batch: a nest of tensors [B, ...].
      start: a nest of zeros like the results.
      parts: number of parts; B is a multiple of it.
    """

    def part_of(leaf, index):  # [B, ...] -> [B / parts, ...]
        size = tf.shape(leaf)[0] // parts
        part = leaf[index * size : (index + 1) * size]
        if leaf.shape[0] is not None:
            part.set_shape([leaf.shape[0] // parts, *leaf.shape[1:]])
        return part

    def body(index, *state):
        part = tf.nest.map_structure(lambda leaf: part_of(leaf, index), batch)
        return index + 1, *tf.nest.map_structure(tf.add, list(state), list(function(part)))

    _, *result = tf.while_loop(
        lambda index, *_: index < parts, body, (tf.constant(0), *start), parallel_iterations=1
    )
    return tuple(result)
