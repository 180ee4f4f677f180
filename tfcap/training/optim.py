"""Optimizers, gradient clipping, and the probability of scheduled sampling.

The optimizers are Keras 3 ones: the Model Garden's factory makes tf_keras ones, which lose their
state in checkpoints of Keras 3 variables. Definitions: docs/systems.md 7, the released code.
"""

import keras
import numpy as np
import tensorflow as tf
from keras import ops

from tfcap import configs


class Adam(keras.optimizers.Optimizer):
    """Adam with the epsilon of its paper and of PyTorch: lr * m^ / (sqrt(v^) + epsilon).

    m^ and v^ are the bias-corrected moments (Kingma and Ba 2015, algorithm 1). Keras' own Adam adds
    epsilon to the uncorrected sqrt(v). At the first step this equals an epsilon 7 times (beta_2
    0.98) or 32 times (0.999) as large. Keras also computes 1 - beta^t in float32, which has an
    error of 1e-5 there.
    """

    def __init__(
        self, learning_rate, beta_1=0.9, beta_2=0.999, epsilon=1e-8, name="adam", **kwargs
    ):
        super().__init__(learning_rate=learning_rate, name=name, **kwargs)
        self.beta_1, self.beta_2, self.epsilon = beta_1, beta_2, epsilon

    def build(self, variables):
        """Adds the two moments of each variable."""
        if self.built:
            return
        super().build(variables)
        self._momentums, self._velocities = self.add_optimizer_variables(
            variables, ["momentum", "velocity"]
        )

    def scalars(self, rate: tf.Tensor, step: tf.Tensor) -> tuple[tf.Tensor, ...]:
        """The numbers of step t that all variables share; the arguments are float64 scalars.

        Args:
          rate: the learning rate.
          step: t = 1, 2, ...

        Returns:
          What `update_step` takes: a and e of the step a m / (sqrt(v) + e).
        """
        root = ops.sqrt(1.0 - ops.power(_beta(self.beta_2), step))
        return rate * (root / self.bias(step)), root * self.epsilon

    def bias(self, step: tf.Tensor) -> tf.Tensor:
        """1 - beta_1^t, by which the bias of the first moment is corrected; float64."""
        return 1.0 - ops.power(_beta(self.beta_1), step)

    def _backend_update_step(self, grads, trainable_variables, learning_rate):
        # The scalars are computed here, once, and not in update_step, which runs for each variable.
        # They are float64 because 1 - beta^t is a difference of numbers close to each other.
        rate, step = (ops.cast(x, "float64") for x in (learning_rate, self.iterations + 1))
        super()._backend_update_step(grads, trainable_variables, self.scalars(rate, step))

    def update_step(self, gradient, variable, learning_rate):
        """Updates the moments and one variable in one kernel.

        Args:
          gradient: of the variable.
          variable: the weight.
          learning_rate: the pair that `scalars` returns.
        """
        index = self._get_variable_index(variable)
        rate, epsilon, beta_1, beta_2, zero, gradient = (
            tf.cast(value, variable.dtype)
            for value in (*learning_rate, self.beta_1, self.beta_2, 0.0, gradient)
        )
        tf.raw_ops.ResourceApplyAdam(
            var=variable.handle,
            m=self._momentums[index].value.handle,
            v=self._velocities[index].value.handle,
            beta1_power=zero,  # the rate and epsilon hold the bias corrections already
            beta2_power=zero,
            lr=rate,
            beta1=beta_1,
            beta2=beta_2,
            epsilon=epsilon,
            grad=gradient,
        )


class RAdam(Adam):
    """Rectified Adam (Liu et al. 2020, algorithm 2; docs/systems.md 7.1).

    While the variance of the adaptive step size is intractable (the first five steps for the betas
    in use), `early_steps` is `momentum`, a step along the bias-corrected first moment (the paper
    and X-Transformer), or `none`, no step at all (ExpansionNet). Two points follow the released
    code and not the paper: the step is rectified from rho = 5 on (paper: above 4), and epsilon is
    added to the uncorrected sqrt(v).
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

    def _backend_update_step(self, grads, trainable_variables, learning_rate):
        super()._backend_update_step(grads, trainable_variables, learning_rate)
        if self.early_steps == "momentum":
            rate, step = (ops.cast(x, "float64") for x in (learning_rate, self.iterations + 1))
            rate = rate * (1.0 / self.bias(step))
            # One condition for all variables: one for each would make tracing five times as slow.
            tf.cond(
                self.rectifier(step)[1],
                lambda: None,
                lambda: self._momentum_step(trainable_variables, rate),
            )

    def scalars(self, rate, step):
        """See base class; at an early step the kernel updates the moments and nothing else."""
        rectifier, is_rectified = self.rectifier(step)
        rectified = rate * (1.0 / self.bias(step) * rectifier)
        return ops.where(is_rectified, rectified, 0.0), ops.full_like(rate, self.epsilon)

    def rectifier(self, step: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """r_t of step t, a float64 scalar, and whether the variance is tractable then."""
        beta = _beta(self.beta_2)
        decay = ops.power(beta, step)
        limit = 2.0 / (1.0 - beta) - 1.0  # rho of t = infinity
        rho = limit - 2.0 * step * decay / (1.0 - decay)
        safe = ops.maximum(rho, 5.0)  # the square root stays finite in the early steps
        rectifier = ops.sqrt(
            (1.0 - decay)
            * ((safe - 4.0) / (limit - 4.0))
            * ((safe - 2.0) / safe)
            * (limit / (limit - 2.0))
        )
        return rectifier, rho >= 5.0

    def _momentum_step(self, variables, rate):
        """Takes the step `rate` m, where m is the first moment before its bias correction."""
        for variable in variables:
            momentum = self._momentums[self._get_variable_index(variable)]
            step = tf.cast(rate, momentum.dtype) * momentum.value
            # Of this replica: `assign_sub` of a mirrored variable would add up the replicas' steps.
            tf.raw_ops.AssignSubVariableOp(resource=variable.value.handle, value=step)


def _beta(beta: float) -> float:
    """A decay rate as the float32 that the moments use: the error matters in 1 - beta^t."""
    return float(np.float32(beta))


def optimizer(
    config: configs.Optimizer, learning_rate: keras.optimizers.schedules.LearningRateSchedule
) -> keras.optimizers.Optimizer:
    """The optimizer that a `configs.Optimizer` describes."""
    if config.name == "sgd":
        return keras.optimizers.SGD(learning_rate)
    shared = dict(beta_1=config.beta_1, beta_2=config.beta_2, epsilon=config.epsilon)
    if config.name == "radam":
        return RAdam(learning_rate, early_steps=config.early_steps, **shared)
    return Adam(learning_rate, **shared)


def clip(gradients: list[tf.Tensor], kind: str, threshold: float | tf.Tensor) -> list[tf.Tensor]:
    """Clips each element to +-`threshold` (`value`) or the global norm to it (`norm`).

    The norm is scaled by min(1, threshold / (norm + 1e-6)), as in the released code.
    """
    if kind == "value":
        return [tf.clip_by_value(g, -threshold, threshold) for g in gradients]
    if kind == "norm":
        scale = tf.minimum(1.0, threshold / (tf.linalg.global_norm(gradients) + 1e-6))
        return [g * tf.cast(scale, g.dtype) for g in gradients]
    return gradients


def sampling_probability(config: configs.ScheduledSampling, done: tf.Tensor) -> tf.Tensor:
    """How often an input is a drawn word after `done` steps: the formula of the configuration.

    The released X-LAN raises it between epochs (docs/systems.md 7.1): with E steps an epoch,
    `start` 7 E and `every` 5 E make its epoch 12 the first with drawn words.
    """
    ramps = tf.maximum(done - config.start, 0) // config.every
    return tf.minimum(config.increase * tf.cast(ramps, tf.float32), config.maximum)
