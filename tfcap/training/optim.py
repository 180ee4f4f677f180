"""Optimizers, learning-rate schedules, clipping, plateaus and patience, averages of the weights.

The optimizers are Keras 3 optimizers. The Model Garden makes tf_keras optimizers, whose state is
lost in checkpoints of Keras 3 variables. Definitions: docs/systems.md 7.1 and the released code.
"""

import contextlib
from collections.abc import Iterator, Sequence

import keras
import numpy as np
import tensorflow as tf
from keras import ops

from tfcap import configs, private_api
from tfcap.models.captioner import Captioner

CLEARLY = 0.95  # a perplexity that is clearly lower than another is at most this share of it
HUGE = 2.0**60  # far above the root of any second moment, and far below the largest float32


class Adam(private_api.SharedScalarsOptimizer):
    """Adam as its paper and PyTorch define it: the step is lr * m^ / (sqrt(v^) + epsilon).

    m^ and v^ are the first and second moment after their bias correction (Kingma and Ba 2015,
    algorithm 1). Keras' own Adam adds epsilon to sqrt(v) before the correction. At the first step
    this has the effect of an epsilon that is 7 times (beta_2 0.98) or 32 times (beta_2 0.999) as
    large. For the correction at step t, Keras also computes 1 - beta^t in float32. At the first
    step this has a relative error of 1e-5; here it is computed in float64.

    Args:
      learning_rate: the learning rate lr: a number or a Keras schedule.
      beta_1: decay rate of the first moment, the average of the gradient.
      beta_2: decay rate of the second moment, the average of the squared gradient.
      epsilon: number added to the root of the second moment.
      name: name of the optimizer.
      **kwargs: further arguments of a Keras optimizer.
    """

    def __init__(
        self, learning_rate, beta_1=0.9, beta_2=0.999, epsilon=1e-8, name="adam", **kwargs
    ):
        super().__init__(learning_rate=learning_rate, name=name, **kwargs)
        self.beta_1 = beta_1
        self.beta_2 = beta_2
        self.epsilon = epsilon

    def build(self, variables):
        """Creates the first and the second moment of each variable."""
        if self.built:
            return
        super().build(variables)
        self._momentums, self._velocities = self.add_optimizer_variables(
            variables, ["momentum", "velocity"]
        )

    def _scalars(self, rate: tf.Tensor, step: tf.Tensor) -> tuple[tf.Tensor, ...]:
        """Computes a and e, with which a weight changes by -a m / (sqrt(v) + e).

        Args:
          rate: the learning rate, a float64 scalar.
          step: the number of the step, t = 1, 2, ..., a float64 scalar.

        Returns:
          a and e, float64 scalars.
        """
        root = ops.sqrt(1.0 - ops.power(_beta(self.beta_2), step))
        return rate * (root / self._bias(step)), root * self.epsilon

    def _bias(self, step: tf.Tensor) -> tf.Tensor:
        """Computes 1 - beta_1^t in float64, the bias correction of the first moment."""
        return 1.0 - ops.power(_beta(self.beta_1), step)

    def shared_scalars(self, learning_rate):
        """Computes the scalars that the updates of all variables share.

        Args:
          learning_rate: the learning rate of this step, a float32 scalar.

        Returns:
          a, e, beta_1, beta_2 and 0, float32 scalars. A weight with the moments m and v changes by
          -a m / (sqrt(v) + e). At step t of `Adam`, a = learning_rate sqrt(1 - beta_2^t) /
          (1 - beta_1^t) and e = epsilon sqrt(1 - beta_2^t), which contain the bias corrections. The
          0 tells TensorFlow's kernel not to correct again.
        """
        # In float64, because 1 - beta^t subtracts two numbers that are nearly equal.
        rate = ops.cast(learning_rate, "float64")
        step = ops.cast(self.iterations + 1, "float64")
        scalars = (*self._scalars(rate, step), self.beta_1, self.beta_2, 0.0)
        return tuple(ops.cast(value, "float32") for value in scalars)

    def update_step(self, gradient, variable, learning_rate):
        """Updates one variable and its moments with a single TensorFlow kernel.

        Separate operations would take more processor time. The difference is 10 to 12 % of a
        cross-entropy step of X-LAN, and 8 % of one of X-Transformer, at the sizes of the papers.

        Args:
          gradient: the gradient of the variable.
          variable: the variable, which is changed.
          learning_rate: in place of the learning rate, the tuple that `shared_scalars` returned.
        """
        index = self.index_of(variable)
        rate, epsilon, beta_1, beta_2, zero, gradient = (
            tf.cast(value, variable.dtype) for value in (*learning_rate, gradient)
        )
        tf.raw_ops.ResourceApplyAdam(
            var=variable.handle,
            m=self._momentums[index].value.handle,
            v=self._velocities[index].value.handle,
            beta1_power=zero,  # rate and epsilon already contain the bias corrections
            beta2_power=zero,
            lr=rate,
            beta1=beta_1,
            beta2=beta_2,
            epsilon=epsilon,
            grad=gradient,
        )


class RAdam(Adam):
    """Rectified Adam (Liu et al. 2020, algorithm 2; docs/systems.md 7.1).

    At step t the average behind the second moment has the length rho = 2 / (1 - beta_2) - 1 - 2 t
    beta_2^t / (1 - beta_2^t). While rho < 5, the variance of the adaptive step size counts as
    unknown. With the values of beta_2 that the papers use, rho < 5 holds for the first five steps.
    In these steps `early_steps="momentum"` moves the weights along the bias-corrected first moment
    (the paper and X-Transformer), and `early_steps="none"` leaves the weights as they are
    (ExpansionNet). Later steps are rectified.

    Two points follow the released code and not the paper: steps are rectified from rho >= 5 on
    (paper: rho > 4), and epsilon is added to the root of the second moment before the bias
    correction.

    Args:
      learning_rate: the learning rate: a number or a Keras schedule.
      beta_1: decay rate of the first moment, the average of the gradient.
      beta_2: decay rate of the second moment, the average of the squared gradient.
      epsilon: number added to the root of the second moment.
      early_steps: what the first steps do: `momentum` or `none`.
      name: name of the optimizer.
      **kwargs: further arguments of a Keras optimizer.
    """

    def __init__(
        self,
        learning_rate,
        beta_1=0.9,
        beta_2=0.999,
        epsilon=1e-8,
        early_steps="momentum",
        name="radam",
        **kwargs,
    ):
        super().__init__(learning_rate, beta_1, beta_2, epsilon, name, **kwargs)
        self.early_steps = early_steps

    def _scalars(self, rate, step):
        """See `Adam._scalars`.

        At an early step e is huge, and a / e is the learning rate of the momentum. Then sqrt(v) + e
        rounds to e, a power of two, and the division by e is exact.
        """
        rectifier, is_rectified = self._rectifier(step)
        corrected = rate * (1.0 / self._bias(step))
        early = corrected * HUGE if self.early_steps == "momentum" else 0.0
        return (
            ops.where(is_rectified, corrected * rectifier, early),
            ops.where(is_rectified, ops.full_like(rate, self.epsilon), HUGE),
        )

    def _rectifier(self, step: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Computes r_t, a float64 scalar, and whether the variance is tractable at step t."""
        beta = _beta(self.beta_2)
        decay = ops.power(beta, step)
        limit = 2.0 / (1.0 - beta) - 1.0  # rho for t = infinity
        rho = limit - 2.0 * step * decay / (1.0 - decay)
        safe = ops.maximum(rho, 5.0)  # the square root stays finite in the early steps
        rectifier = ops.sqrt(
            (1.0 - decay)
            * ((safe - 4.0) / (limit - 4.0))
            * ((safe - 2.0) / safe)
            * (limit / (limit - 2.0))
        )
        return rectifier, rho >= 5.0


def _beta(beta: float) -> float:
    """Rounds a decay rate to float32, as in the moments: this matters in 1 - beta^t."""
    return float(np.float32(beta))


def optimizer(
    config: configs.Optimizer, learning_rate: "float | LearningRate"
) -> keras.optimizers.Optimizer:
    """Makes the optimizer that a configuration names: `Adam`, `RAdam` or Keras' SGD.

    Args:
      config: the group `trainer.optimizer_config`. Its name, betas, epsilon and early steps are
        read, but not its schedule.
      learning_rate: the learning rate: a number or a Keras schedule.
    """
    if config.name == "sgd":
        return keras.optimizers.SGD(learning_rate)
    shared = dict(beta_1=config.beta_1, beta_2=config.beta_2, epsilon=config.epsilon)
    if config.name == "radam":
        return RAdam(learning_rate, early_steps=config.early_steps, **shared)
    return Adam(learning_rate, **shared)


def scale_rate(
    optimizer: keras.optimizers.Optimizer, variables: Sequence[keras.Variable], factor: float
) -> None:
    """Multiplies the learning rate of some variables of an optimizer by a factor.

    Args:
      optimizer: the optimizer, which is changed.
      variables: the variables with another learning rate.
      factor: the factor by which the learning rate of these variables is multiplied.
    """
    scaled = {id(variable) for variable in variables}

    def update_both(update, gradients, trainable_variables, learning_rate):
        pairs = list(zip(gradients, trainable_variables, strict=True))
        for is_scaled, rate in ((False, learning_rate), (True, learning_rate * factor)):
            chosen = [pair for pair in pairs if (id(pair[1]) in scaled) == is_scaled]
            if chosen:
                update([g for g, _ in chosen], [v for _, v in chosen], rate)

    private_api.wrap_update(optimizer, update_both)


def clip(
    gradients: list[tf.Tensor], kind: str, threshold: float | tf.Tensor, share: float = 1.0
) -> list[tf.Tensor]:
    """Clips gradients, multiplies them by `share`, and returns them.

    Args:
      gradients: the gradients of all variables, of any shapes.
      kind: `value` limits each element to -threshold ... threshold. `norm` multiplies all gradients
        by min(1, threshold / (norm + 1e-6)), where the norm is the Euclidean norm of all of them
        together, as in the released code. `none` does not clip.
      threshold: the limit for `value` and `norm`.
      share: number by which the clipped gradients are multiplied.
    """
    if kind == "norm":  # both factors in one pass over the gradients
        scale = tf.minimum(1.0, threshold / (tf.linalg.global_norm(gradients) + 1e-6)) * share
        return [g * tf.cast(scale, g.dtype) for g in gradients]
    if kind == "value":  # the limits are constants once, and not once for each gradient
        low = tf.constant(-1.0) * threshold
        high = tf.constant(1.0) * threshold
        gradients = [
            tf.raw_ops.ClipByValue(t=g, clip_value_min=low, clip_value_max=high) for g in gradients
        ]
    if share == 1:
        return gradients
    factor = tf.constant(share)
    return [g * factor for g in gradients]


def sampling_probability(config: configs.ScheduledSampling, done: tf.Tensor) -> tf.Tensor:
    """Computes the probability of scheduled sampling at a step, a float32 scalar.

    It is the probability that training replaces an input word of the decoder by a word that the
    model drew: min(increase * floor((done - start) / every), maximum), and 0 before `start`. The
    released X-LAN raises the probability between epochs (docs/systems.md 7.1). For epochs of E
    steps, `start` = 7 E and `every` = 5 E give the same values: the first drawn words are in epoch
    12, counted from 0.

    Args:
      config: the group `task.scheduled_sampling`: increase, start, every and maximum.
      done: number of finished optimizer steps, an integer scalar.
    """
    ramps = tf.maximum(done - config.start, 0) // config.every
    return tf.minimum(config.increase * tf.cast(ramps, tf.float32), config.maximum)


# ---- the learning rate, and the watchers of a validation score ----------------------------------


class LearningRate(keras.optimizers.schedules.LearningRateSchedule):
    """The learning rate at each step, as a configuration describes it.

    At step n = 1, 2, ..., with w = warmup_steps, the rate of each kind of schedule is

    * constant: learning_rate
    * noam: learning_rate * width^-0.5 * min(n^-0.5, n * w^-1.5) (docs/systems.md 7.1)
    * linear: learning_rate * min(n / w, 1) * decay
    * hyperbolic: learning_rate / max(w - n + 1, 1) * decay

    with decay = decay_rate^floor(max(n - 1 - decay_start, 0) / decay_steps), or 1 if decay_steps is
    0. So the decay may begin during the warm-up. After the warm-up, linear and hyperbolic rates are
    at least `minimum`. The hyperbolic warm-up is that of ExpansionNet's code; its paper only writes
    "warm-up".

    Args:
      config: the group `schedule` of the optimizer's configuration.
      width: the width of the model, for `noam`.
      scale: a variable by which the rate is multiplied, see `Plateau`; None leaves the rate as it
        is.
    """

    def __init__(self, config: configs.Schedule, width: int, scale: tf.Variable | None = None):
        super().__init__()
        self.config = config
        self.width = width
        self.scale = scale

    def __call__(self, step):
        rate = self._rate(ops.cast(step, "float32"))
        return rate if self.scale is None else rate * ops.convert_to_tensor(self.scale)

    def _rate(self, done):
        """Computes the rate of the step after `done` steps, without `scale`."""
        config = self.config
        warmup = config.warmup_steps
        if config.name == "constant":
            return ops.cast(config.learning_rate, "float32")
        n = done + 1.0
        if config.name == "noam":
            factor = config.learning_rate * self.width**-0.5
            return factor * ops.minimum(n**-0.5, n * warmup**-1.5)
        if config.name == "linear":
            rate = config.learning_rate * ops.minimum(1.0, n / warmup)
        else:
            rate = config.learning_rate / ops.maximum(warmup - done, 1.0)
        if config.decay_steps:
            past = ops.maximum(done - config.decay_start, 0.0)
            rate = rate * ops.power(config.decay_rate, ops.floor(past / config.decay_steps))
        return ops.maximum(rate, ops.where(done >= warmup, config.minimum, 0.0))


class Plateau(tf.Module):
    """Lowers the learning rate when the score of the validations stops improving.

    Call the object with the scores of each validation. After more than `patience` validations in a
    row without a better score, the object multiplies its variable `scale` by `factor`, and
    `LearningRate` multiplies the rate by `scale`. A score is better if it improves on the best
    score by more than 1e-4 of the absolute value of the best, as in PyTorch's ReduceLROnPlateau.
    The released code gives PyTorch negated scores. PyTorch then counts a slightly worse score as
    better, too; this class does not. Save the object in checkpoints, so that a resumed run goes on
    counting.

    Args:
      patience: the largest number of validations in a row without a better score that leaves the
        rate as it is; 0 never changes the rate.
      factor: number by which the learning rate is multiplied.
      metric: name of the score.
      higher: true if a higher score is better, false if a lower one is.
    """

    def __init__(self, patience: int, factor: float, metric: str, higher: bool):
        super().__init__(name="plateau")
        self.patience = patience
        self.factor = factor
        self.metric = metric
        self.higher = higher
        self.scale = tf.Variable(1.0, trainable=False, name="scale")
        self.best = tf.Variable(-float("inf"), trainable=False, name="best")
        self.waited = tf.Variable(0, trainable=False, name="waited")

    def __call__(self, scores) -> None:
        """Notes the score of a validation; calls `react` if scores have stopped improving."""
        if not self.patience or self.metric not in scores:
            return
        score = float(scores[self.metric]) * (1 if self.higher else -1)
        best = float(self.best.numpy())
        if score > best + 1e-4 * abs(best) or best == -float("inf"):
            self.best.assign(score)
            self.waited.assign(0)
            return
        self.waited.assign_add(1)
        if int(self.waited) > self.patience:
            self.react()

    def react(self) -> None:
        """Multiplies the learning rate by `factor`, and counts validations from 0 again."""
        self.scale.assign(self.scale * self.factor)
        self.waited.assign(0)


class Patience(Plateau):
    """Ends training after `patience` validations in a row without a better score.

    Call the object with the scores of each validation; `over` then says whether training ends.

    Args:
      patience: number of validations; 0 never ends training.
      metric: name of the score.
      higher: true if a higher score is better, false if a lower one is.
      settles: true also restarts the count when the perplexity has fallen by more than 5 %. The
        fall is measured from the first validation or, later, from the last restart by perplexity.
        False counts by the score alone.
    """

    def __init__(self, patience: int, metric: str, higher: bool, settles: bool = False):
        super().__init__(patience, 1.0, metric, higher)
        self.settles = settles
        self.perplexity = tf.Variable(float("inf"), trainable=False, name="perplexity")

    def __call__(self, scores) -> None:
        """Notes the score and the perplexity of a validation."""
        super().__call__(scores)
        perplexity = float(scores.get("perplexity", "nan"))
        if self.patience and self.settles and perplexity < CLEARLY * float(self.perplexity.numpy()):
            self.perplexity.assign(perplexity)
            self.waited.assign(0)

    @property
    def over(self) -> bool:
        """True if `patience` validations in a row had no better score, so that training ends.

        Such a run goes on training if it is started again with a larger `patience`.
        """
        return 0 < self.patience <= int(self.waited.numpy())

    def react(self) -> None:
        """Does nothing: the learning rate stays, and `over` reads the count of validations."""


# ---- the average of the weights -----------------------------------------------------------------


class Average:
    """The exponential moving average of a model's weights.

    After every step average += (1 - decay) (weights - average). The average starts as the weights
    after the first step, so it needs no bias correction. If training resumes from a checkpoint
    without an average, the average starts as the weights after the next step.

    Keras' own average (`use_ema`) is not used. The optimizer keeps it in a numbered list, before
    the other variables of the optimizer. If a run were resumed with `use_ema` switched on or off,
    the numbers would shift, and wrong variables would be restored. Here each average has the name
    of its weight.

    Args:
      model: the captioner with the weights.
      decay: the decay rate, at least 0 and below 1.
    """

    def __init__(self, model: Captioner, decay: float):
        self.weights = model.checkpoint_items["weights"]
        self.decay = decay
        self.values = {
            name: tf.Variable(tf.zeros_like(weight), trainable=False, name="average")
            for name, weight in self.weights.items()
        }
        self.started = tf.Variable(False, trainable=False, name="average_started")
        self.checkpoint_items = {"average": self.values, "average_started": self.started}

    def update(self, strategy: tf.distribute.Strategy) -> None:
        """Updates the average after a training step, on every replica.

        Args:
          strategy: the distribution strategy of the model. Call this method outside of replica
            context.
        """

        def update():
            rate = tf.where(self.started, 1.0 - self.decay, 1.0)
            for name, value in self.values.items():
                value.assign_add(tf.cast(rate, value.dtype) * (self.weights[name] - value))

        strategy.run(update)
        self.started.assign(True)

    @contextlib.contextmanager
    def used(self) -> Iterator[None]:
        """Context in which the model has the average in place of its weights.

        Before the first `update` there is no average, and the model keeps its weights.
        """
        before = {}
        if self.started.numpy():
            before = {name: weight.numpy() for name, weight in self.weights.items()}
            for name, weight in self.weights.items():
                weight.assign(self.values[name])
        try:
            yield
        finally:
            for name, weight in before.items():
                self.weights[name].assign(weight)
