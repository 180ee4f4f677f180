"""Learning-rate schedules, and the watchers of a validation score: `Plateau` and `Patience`.

Definitions: docs/systems.md 7.1 and the released code.
"""

import keras
import tensorflow as tf
from keras import ops

from tfcap import configs


class Noam(keras.optimizers.schedules.LearningRateSchedule):
    """Computes factor * width^-1/2 * min(n^-1/2, n * warmup^-3/2) at step n = 1, 2, ...

    Source: docs/systems.md 7.1.
    """

    def __init__(self, factor: float, width: int, warmup_steps: int):
        super().__init__()
        self.factor, self.width, self.warmup_steps = factor, width, warmup_steps

    def __call__(self, step):
        n = ops.cast(step, "float32") + 1.0
        return self.factor * self.width**-0.5 * ops.minimum(n**-0.5, n * self.warmup_steps**-1.5)


class WarmupDecay(keras.optimizers.schedules.LearningRateSchedule):
    """Raises the rate during a warm-up and then multiplies it by a factor at regular steps.

    The factor `decay_rate` is applied every `decay_steps` steps after step `decay_start`, and also
    during the warm-up. After the warm-up the rate never falls below `minimum`.

    Args:
      rate: the rate at the end of the warm-up.
      warmup_steps: number of steps W of the warm-up.
      shape: `linear` gives rate * n / W at step n = 1, 2, ..., W. `hyperbolic` gives
        rate / (W - n + 1), as the code of ExpansionNet does; its paper only writes "warm-up".
      decay_steps: number of steps between two decays; 0 does not decay.
      decay_rate: the factor of each decay.
      minimum: the smallest rate after the warm-up.
      decay_start: decays are counted from this step. TF-mRNN (docs/systems.md 6.5) decays late: it
        has a warm-up of one step and a large `decay_start`.
    """

    def __init__(
        self,
        rate,
        warmup_steps,
        shape,
        decay_steps=0,
        decay_rate=1.0,
        minimum=0.0,
        decay_start=0,
    ):
        super().__init__()
        self.rate, self.warmup_steps, self.shape = rate, warmup_steps, shape
        self.decay_steps, self.decay_rate, self.minimum = decay_steps, decay_rate, minimum
        self.decay_start = decay_start

    def __call__(self, step):
        it = ops.cast(step, "float32")
        if self.shape == "linear":
            rate = self.rate * ops.minimum(1.0, (it + 1.0) / self.warmup_steps)
        else:
            rate = self.rate / ops.maximum(self.warmup_steps - it, 1.0)
        if self.decay_steps:
            past = ops.maximum(it - self.decay_start, 0.0)
            rate = rate * ops.power(self.decay_rate, ops.floor(past / self.decay_steps))
        floor = ops.where(it >= self.warmup_steps, self.minimum, 0.0)
        return ops.maximum(rate, floor)


class Constant(keras.optimizers.schedules.LearningRateSchedule):
    """Gives the same rate at every step."""

    def __init__(self, rate: float):
        super().__init__()
        self.rate = rate

    def __call__(self, step):
        return ops.cast(self.rate, "float32")


class Scaled(keras.optimizers.schedules.LearningRateSchedule):
    """Multiplies a schedule by `scale`, a variable that `Plateau` lowers."""

    def __init__(self, schedule, scale: tf.Variable):
        super().__init__()
        self.schedule, self.scale = schedule, scale

    def __call__(self, step):
        return self.schedule(step) * ops.convert_to_tensor(self.scale)


class Plateau(tf.Module):
    """Multiplies the learning rate by a factor when the validation score stops improving.

    The rules are those of PyTorch's ReduceLROnPlateau: the rate changes when more than `patience`
    validations in a row had no better score. A score is better if it exceeds the best
    one by more than 1e-4 of its absolute value. The released code gives PyTorch negated scores, for
    which its comparison also accepts slightly worse scores; this class does not. The variables must
    be saved in the checkpoint.

    Args:
      patience: number of validations; 0 never changes the rate.
      factor: the rate is multiplied by it.
      metric: key of the score in the results of a validation.
      higher: whether a higher score is better.
    """

    def __init__(self, patience: int, factor: float, metric: str, higher: bool):
        super().__init__(name="plateau")
        self.patience, self.factor, self.metric, self.higher = patience, factor, metric, higher
        self.active = patience > 0
        self.scale = tf.Variable(1.0, trainable=False, name="scale")
        self.best = tf.Variable(-float("inf"), trainable=False, name="best")
        self.waited = tf.Variable(0, trainable=False, name="waited")

    def __call__(self, output) -> None:
        """Notes the score of a validation, and calls `react` if the score stops improving.

        orbit calls this action after each validation.

        Args:
          output: the scores by name.
        """
        if not self.active or self.metric not in output:
            return
        score = float(output[self.metric]) * (1 if self.higher else -1)
        best = float(self.best.numpy())
        if score > best + 1e-4 * abs(best) or best == -float("inf"):
            self.best.assign(score)
            self.waited.assign(0)
            return
        self.waited.assign_add(1)
        if int(self.waited) > self.patience:
            self.react()

    def react(self) -> None:
        """Lowers the rate; called when more than `patience` validations had no better score."""
        self.scale.assign(self.scale * self.factor)
        self.waited.assign(0)


class Patience(Plateau):
    """Ends training after `patience` validations in a row without a better score; 0 never does."""

    def __init__(self, patience: int, metric: str, higher: bool):
        super().__init__(patience, 1.0, metric, higher)

    @property
    def over(self) -> bool:
        """Tells whether training ends; with a larger `patience` a finished run goes on."""
        return self.active and int(self.waited.numpy()) >= self.patience

    def react(self) -> None:
        """Changes nothing: the count of validations goes on."""


def schedule(
    config: configs.Schedule, width: int
) -> keras.optimizers.schedules.LearningRateSchedule:
    """Makes the schedule that a `configs.Schedule` describes.

    Args:
      config: the options.
      width: width of the model, used by `noam` if the options have no `model_width`.
    """
    if config.name == "noam":
        return Noam(config.learning_rate, config.model_width or width, config.warmup_steps)
    if config.name == "constant":
        return Constant(config.learning_rate)
    return WarmupDecay(
        config.learning_rate,
        config.warmup_steps,
        config.name,
        config.decay_steps,
        config.decay_rate,
        config.minimum,
        config.decay_start,
    )
