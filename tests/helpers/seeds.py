"""Starts random numbers again without making TensorFlow slow."""

import random

import numpy as np


def set_seed(seed: int) -> None:
    """Seeds Python and NumPy; Keras takes the seeds of weights and of dropout from Python.

    `keras.utils.set_random_seed` seeds TensorFlow, too, which then makes the kernels of all
    operations again. Building a small model takes two to three times as long after that.
    """
    random.seed(seed)
    np.random.seed(seed)
