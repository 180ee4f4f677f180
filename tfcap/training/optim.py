"""Optimizers, gradient clipping, and the probability of scheduled sampling.

The optimizers are those of Keras 3. The factory of the Model Garden makes optimizers of tf_keras,
whose state is lost in checkpoints of Keras 3 variables. Definitions: docs/systems.md 7.1 and the
released code.
"""

from collections.abc import Sequence

import keras
import numpy as np
import tensorflow as tf
from keras import ops

from tfcap import configs

HUGE = 2.0**60  # far above the root of any second moment, and far below the largest float32


class Adam(keras.optimizers.Optimizer):
    """Adam as its paper and PyTorch define it: the step is lr * m^ / (sqrt(v^) + epsilon).

    m^ and v^ are the bias-corrected moments (Kingma and Ba 2015, algorithm 1). Keras' own Adam adds
    epsilon to the uncorrected sqrt(v). At the first step this has the effect of an epsilon that is
    7 times (beta_2 0.98) or 32 times (beta_2 0.999) as large. Keras also computes 1 - beta^t in
    float32, with a relative error of 1e-5 at the first step.
    """

    def __init__(
        self, learning_rate, beta_1=0.9, beta_2=0.999, epsilon=1e-8, name="adam", **kwargs
    ):
        super().__init__(learning_rate=learning_rate, name=name, **kwargs)
        self.beta_1, self.beta_2, self.epsilon = beta_1, beta_2, epsilon

    def build(self, variables):
        """Creates the two moments of each variable."""
        if self.built:
            return
        super().build(variables)
        self._momentums, self._velocities = self.add_optimizer_variables(
            variables, ["momentum", "velocity"]
        )

    def scalars(self, rate: tf.Tensor, step: tf.Tensor) -> tuple[tf.Tensor, ...]:
        """Computes the factors of step t that are the same for all variables.

        Args:
          rate: the learning rate, a float64 scalar.
          step: t = 1, 2, ..., a float64 scalar.

        Returns:
          Two float64 scalars, a and e. `update_step` subtracts a m / (sqrt(v) + e).
        """
        root = ops.sqrt(1.0 - ops.power(_beta(self.beta_2), step))
        return rate * (root / self.bias(step)), root * self.epsilon

    def bias(self, step: tf.Tensor) -> tf.Tensor:
        """Computes 1 - beta_1^t in float64, which corrects the bias of the first moment."""
        return 1.0 - ops.power(_beta(self.beta_1), step)

    def _backend_update_step(self, grads, trainable_variables, learning_rate):
        # The scalars are computed here once; update_step runs again for each variable. They are
        # float64 because 1 - beta^t subtracts two numbers that are nearly equal.
        rate, step = (ops.cast(x, "float64") for x in (learning_rate, self.iterations + 1))
        scalars = (*self.scalars(rate, step), self.beta_1, self.beta_2, 0.0)
        scalars = tuple(ops.cast(value, "float32") for value in scalars)
        super()._backend_update_step(grads, trainable_variables, scalars)

    def _all_reduce_sum_gradients(self, pairs):
        # One replica has nothing to sum; Keras would copy each gradient.
        if tf.distribute.get_strategy().num_replicas_in_sync == 1:
            return pairs
        return super()._all_reduce_sum_gradients(pairs)

    def update_step(self, gradient, variable, learning_rate):
        """Updates one variable and its moments with one kernel.

        Args:
          gradient: the gradient of the variable.
          variable: the weight.
          learning_rate: the results of `scalars`, then beta_1, beta_2 and 0; not only the rate.
        """
        index = self._get_variable_index(variable)
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

    In the first steps (five for the betas in use) the variance of the adaptive step size is
    intractable. There `early_steps="momentum"` steps along the bias-corrected first moment (the
    paper and X-Transformer), and `early_steps="none"` changes nothing (ExpansionNet). Two points
    follow the released code and not the paper: a step is rectified if rho >= 5 (paper: rho > 4),
    and epsilon is added to the uncorrected sqrt(v).
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

    def scalars(self, rate, step):
        """See base class. At an early step a / e is the rate of the momentum, and e is huge.

        Then sqrt(v) + e rounds to e, a power of two, and the division by it is exact.
        """
        rectifier, is_rectified = self.rectifier(step)
        corrected = rate * (1.0 / self.bias(step))
        early = corrected * HUGE if self.early_steps == "momentum" else 0.0
        return (
            ops.where(is_rectified, corrected * rectifier, early),
            ops.where(is_rectified, ops.full_like(rate, self.epsilon), HUGE),
        )

    def rectifier(self, step: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Computes the rectification term of a step.

        Args:
          step: t = 1, 2, ..., a float64 scalar.

        Returns:
          r_t, a float64 scalar, and a bool scalar: whether the variance is tractable at this step.
        """
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
    """Rounds a decay rate to float32, as the moments use it: the rounding matters in 1 - beta^t."""
    return float(np.float32(beta))


def optimizer(
    config: configs.Optimizer, learning_rate: keras.optimizers.schedules.LearningRateSchedule
) -> keras.optimizers.Optimizer:
    """Makes the optimizer that a `configs.Optimizer` describes, with this learning rate."""
    if config.name == "sgd":
        return keras.optimizers.SGD(learning_rate)
    shared = dict(beta_1=config.beta_1, beta_2=config.beta_2, epsilon=config.epsilon)
    if config.name == "radam":
        return RAdam(learning_rate, early_steps=config.early_steps, **shared)
    return Adam(learning_rate, **shared)


def scale_rate(
    optimizer: keras.optimizers.Optimizer, variables: Sequence[keras.Variable], factor: float
) -> None:
    """Makes the learning rate of some variables `factor` times that of the others.

    Args:
      optimizer: any optimizer of this module; it changes.
      variables: the weights with their own rate.
      factor: factor of the rate.
    """
    own, update = {id(variable) for variable in variables}, optimizer._backend_update_step

    def update_both(gradients, trainable_variables, learning_rate):
        pairs = list(zip(gradients, trainable_variables, strict=True))
        for is_own, rate in ((False, learning_rate), (True, learning_rate * factor)):
            chosen = [pair for pair in pairs if (id(pair[1]) in own) == is_own]
            if chosen:
                update([g for g, _ in chosen], [v for _, v in chosen], rate)

    optimizer._backend_update_step = update_both


def clip(
    gradients: list[tf.Tensor], kind: str, threshold: float | tf.Tensor, share: float = 1.0
) -> list[tf.Tensor]:
    """Clips gradients by value or by their global norm, and multiplies them by `share`.

    Args:
      gradients: tensors of any shapes.
      kind: `value` limits each element to -threshold ... threshold. `norm` multiplies all gradients
        by min(1, threshold / (norm of all + 1e-6)), as in the released code. `none` does nothing.
      threshold: the limit, above 0.
      share: factor of the clipped gradients.

    Returns:
      The clipped gradients, in the same order.
    """
    if kind == "norm":  # both factors in one pass over the gradients
        scale = tf.minimum(1.0, threshold / (tf.linalg.global_norm(gradients) + 1e-6)) * share
        return [g * tf.cast(scale, g.dtype) for g in gradients]
    if kind == "value":  # the limits are constants once, and not once for each gradient
        low, high = tf.constant(-1.0) * threshold, tf.constant(1.0) * threshold
        gradients = [
            tf.raw_ops.ClipByValue(t=g, clip_value_min=low, clip_value_max=high) for g in gradients
        ]
    if share == 1:
        return gradients
    factor = tf.constant(share)
    return [g * factor for g in gradients]


def sampling_probability(config: configs.ScheduledSampling, done: tf.Tensor) -> tf.Tensor:
    """Computes the probability that an input of the decoder is a sampled word.

    It is min(increase * floor((done - start) / every), maximum), and 0 before `start`. The released
    X-LAN raises it between epochs (docs/systems.md 7.1): if an epoch has E steps, `start` 7 E and
    `every` 5 E give its values; epoch 12, counted from 0, is the first one with sampled words.

    Args:
      config: the options.
      done: number of finished optimizer steps, an integer scalar.

    Returns:
      A float32 scalar.
    """
    ramps = tf.maximum(done - config.start, 0) // config.every
    return tf.minimum(config.increase * tf.cast(ramps, tf.float32), config.maximum)
