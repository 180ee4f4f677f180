"""Every use of a private name of TensorFlow or Keras, with the reason for it.

The next version of either may change these names. `tests/private_api_test.py` has a test for each
name. The test says for which versions it was written.
"""

import functools
from collections.abc import Callable, Iterable

import keras
import tensorflow as tf
from tensorflow.python.eager import context
from tensorflow.python.ops.control_flow_util import GraphOrParentsInXlaContext


def in_xla() -> bool:
    """True while TensorFlow traces a function that XLA will compile.

    TensorFlow has no public name for this.
    """
    return bool(GraphOrParentsInXlaContext(tf.compat.v1.get_default_graph()))


def all_layers(model: keras.Model) -> Iterable[keras.layers.Layer]:
    """Returns the model, its layers, and the layers inside these layers.

    `model.layers` lacks the model and the inner layers.
    """
    return model._flatten_layers()


def set_worker_timeout(seconds: float) -> None:
    """Sets after how long without an answer TensorFlow treats a worker as lost.

    Call it before a multi-worker strategy is made. The time holds for the whole process, because a
    strategy has no option for it.

    Args:
      seconds: the time without an answer, in seconds.
    """
    service = context.context()
    service.configure_coordination_service = functools.partial(
        service.configure_coordination_service, heartbeat_timeout_in_ms=int(1000 * seconds)
    )


class SharedScalarsOptimizer(keras.optimizers.Optimizer):
    """Base class of Keras optimizers that compute some scalars once a step for all variables.

    In a plain Keras optimizer, `update_step` would compute these scalars anew for each variable. A
    subclass implements `shared_scalars` and `update_step`. Keras calls `update_step` with the
    result of `shared_scalars` in place of the learning rate.
    """

    def shared_scalars(self, learning_rate: tf.Tensor) -> tuple[tf.Tensor, ...]:
        """Computes the scalars that the updates of all variables in one step share.

        A subclass implements it.

        Args:
          learning_rate: the learning rate of the step, a float32 scalar.
        """
        raise NotImplementedError

    def index_of(self, variable: keras.Variable) -> int:
        """Returns the index of a trained variable in the lists of `add_optimizer_variables`."""
        return self._get_variable_index(variable)

    def _backend_update_step(self, grads, trainable_variables, learning_rate):
        scalars = self.shared_scalars(learning_rate)
        super()._backend_update_step(grads, trainable_variables, scalars)

    def _all_reduce_sum_gradients(self, pairs):
        # One replica has nothing to sum; Keras would copy each gradient.
        if tf.distribute.get_strategy().num_replicas_in_sync == 1:
            return pairs
        return super()._all_reduce_sum_gradients(pairs)


def wrap_update(optimizer: keras.optimizers.Optimizer, wrapper: Callable[..., None]) -> None:
    """Replaces the function with which an optimizer updates its variables.

    Args:
      optimizer: the optimizer, which is changed.
      wrapper: the new function. It is called as `wrapper(update, gradients, variables,
        learning_rate)`, where `update` is the replaced function. It may call `update(gradients,
        variables, learning_rate)`.
    """
    optimizer._backend_update_step = functools.partial(wrapper, optimizer._backend_update_step)
