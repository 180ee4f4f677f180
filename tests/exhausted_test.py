"""Exhausted memory ends a command with one line and the remedy."""

import functools

import pytest
import tensorflow as tf

from tfcap import exhausted
from tfcap.training import memory

readable = functools.partial(exhausted.readable_errors, "a training step", memory.REMEDY)


@pytest.mark.slow
def test_exhausted_memory_is_one_line_with_the_remedy():
    @tf.function
    def step(side):  # the error of a graph has the reason in the midst of many lines
        return tf.reduce_sum(tf.zeros((side, side, 64)))

    with pytest.raises(ValueError, match="not enough memory.*OOM.*task.micro_batches") as error:
        with readable():
            step(tf.constant(2**20))
    assert "\n" not in str(error.value)
    with pytest.raises(ValueError, match="Python could not allocate memory.*task.micro_batches"):
        with readable():
            raise MemoryError
    with pytest.raises(tf.errors.ResourceExhaustedError, match="No space left"):
        with readable():
            raise tf.errors.ResourceExhaustedError(None, None, "No space left on device")
