"""Learning-rate schedules, and the watchers of a validation score: `Plateau` and `Patience`.

Definitions: docs/systems.md 7.1 and the released code.
"""

import keras
import tensorflow as tf
from keras import ops

from tfcap import configs


class Noam(keras.optimizers.schedules.LearningRateSchedule):
    """factor * width^-1/2 * min(n^-1/2, n * warmup^-3/2) at step n = 1, 2, ...

    As in docs/systems.md 7.1.
    """

    def __init__(self, factor: float, width: int, warmup_steps: int):
        super().__init__()
        self.factor, self.width, self.warmup_steps = factor, width, warmup_steps

    def __call__(self, step):
        n = ops.cast(step, "float32") + 1.0
        return self.factor * self.width**-0.5 * ops.minimum(n**-0.5, n * self.warmup_steps**-1.5)


class WarmupDecay(keras.optimizers.schedules.LearningRateSchedule):
    """Warm-up to `rate`, multiplied by `decay_rate` every `decay_steps` steps after `decay_start`.

    `shape` is `linear` (rate * n / warmup) or `hyperbolic` (rate / (warmup - n), what the released
    ExpansionNet computes where its paper says warm-up; the decay runs during warm-up too). Late
    decay, as in TF-mRNN (docs/systems.md 6.5), is a warm-up of one step and a large `decay_start`.
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
    """The same rate at every step."""

    def __init__(self, rate: float):
        super().__init__()
        self.rate = rate

    def __call__(self, step):
        return ops.cast(self.rate, "float32")


class Scaled(keras.optimizers.schedules.LearningRateSchedule):
    """A schedule times a variable that `Plateau` lowers."""

    def __init__(self, schedule, scale: tf.Variable):
        super().__init__()
        self.schedule, self.scale = schedule, scale

    def __call__(self, step):
        return self.schedule(step) * ops.convert_to_tensor(self.scale)


class Plateau(tf.Module):
    """Multiplies the learning rate after `patience` validations without a better score.

    In the manner of PyTorch's ReduceLROnPlateau: a score counts as better when it exceeds the best
    by more than 1e-4 of its size. (On the negated scores that the released code hands it, PyTorch's
    own comparison also accepts slightly worse ones.) Its variables belong into the checkpoint.
    """

    def __init__(self, patience: int, factor: float, metric: str, higher: bool):
        super().__init__(name="plateau")
        self.patience, self.factor, self.metric, self.higher = patience, factor, metric, higher
        self.active = patience > 0
        self.scale = tf.Variable(1.0, trainable=False, name="scale")
        self.best = tf.Variable(-float("inf"), trainable=False, name="best")
        self.waited = tf.Variable(0, trainable=False, name="waited")

    def __call__(self, output) -> None:
        """An orbit action: `output` is the validation's dictionary of scores."""
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
        """What happens after `patience` validations and one more."""
        self.scale.assign(self.scale * self.factor)
        self.waited.assign(0)


class Patience(Plateau):
    """Ends training after `patience` validations in a row without a better score; 0 never does."""

    def __init__(self, patience: int, metric: str, higher: bool):
        super().__init__(patience, 1.0, metric, higher)

    @property
    def over(self) -> bool:
        """Whether it has ended; a run that is given more patience goes on."""
        return self.active and int(self.waited.numpy()) >= self.patience

    def react(self) -> None:
        """See base class: the count goes on."""


def schedule(
    config: configs.Schedule, width: int
) -> keras.optimizers.schedules.LearningRateSchedule:
    """The schedule that a `configs.Schedule` describes; `width` is the model's."""
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
