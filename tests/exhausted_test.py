"""Exhausted memory ends a command with one line; `training/memory_test` exhausts TensorFlow's."""

import functools

import pytest
import tensorflow as tf

from tfcap import exhausted
from tfcap.training.train import LESS_MEMORY

readable = functools.partial(exhausted.readable_errors, "a training step", LESS_MEMORY)


def test_exhausted_memory_of_python_is_one_line_and_a_full_disk_is_another_error():
    with pytest.raises(ValueError, match="Python could not allocate memory.*task.micro_batches"):
        with readable():
            raise MemoryError
    with pytest.raises(tf.errors.ResourceExhaustedError, match="No space left"):
        with readable():
            raise tf.errors.ResourceExhaustedError(None, None, "No space left on device")
