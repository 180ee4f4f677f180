"""The loop of all searches."""

import tensorflow as tf


def loop(going, body, state, maximum_iterations=None):
    """`tf.while_loop` that keeps the static shapes of `state`."""

    def fixed(*state):
        return tf.nest.map_structure(_keep_shape, state, body(*state))

    return tf.while_loop(going, fixed, state, maximum_iterations=maximum_iterations)


def _keep_shape(old, new):
    if isinstance(new, tf.TensorArray):
        return new
    new = tf.convert_to_tensor(new)
    new.set_shape(tf.convert_to_tensor(old).shape)
    return new
