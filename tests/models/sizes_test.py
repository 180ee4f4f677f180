"""Trainable numbers at the sizes of papers and released code: what docs/systems.md says of each."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from tfcap import models

RAW = dict(width=1000, attention_width=512, embed_regions=False, embed_activation="none")
# X-LAN's code has one id for start, end and padding where ours has three, so that the same words
# make a model with two rows more here. All counts are of a vocabulary of V rows.
TOTALS = [  # system, V, length, width of the features, options, trainable numbers
    ("attention_lstm", 10200, 20, 2048, {}, 36_638_680),
    ("expansionnet", 10000, 20, 2048, {}, 62_860_048),
    # The paper's 34.44 million, without the projections of all layers.
    ("expansionnet", 10000, 20, 2048, dict(width=512, reduce=False), 34_442_000),
    ("expansionnet_v2", 10000, 20, 1536, {}, 38_604_560),
    ("m2", 10201, 20, 2048, {}, 38_411_264),
    ("mrnn", 2539, 20, 4096, {}, 4_085_867),
    ("mrnn_shared", 13691, 30, 2048, {}, 43_404_667),
    ("ort", 9488, 17, 2048, {}, 54_917_952),
    ("show_tell", 9488, 17, 2048, {}, 12_875_536),
    ("transformer", 10200, 20, 2048, {}, 55_644_632),
    ("updown", 9488, 17, 2048, RAW, 56_947_088),
    ("xlan", 9488, 17, 2048, {}, 75_189_781),
    # 45.70 million in the first rows of the ablation.
    ("xlan", 9488, 17, 2048, dict(encoder_layers=0, activation="relu"), 45_701_649),
    ("xtransformer", 9488, 17, 2048, {}, 137_521_826),
]


@pytest.mark.slow
@pytest.mark.parametrize("name, words, length, features, options, total", TOTALS)
def test_the_full_size_model_has_the_released_number_of_weights(
    name, words, length, features, options, total, monkeypatch
):
    for kind in ("RandomUniform", "RandomNormal", "GlorotUniform"):  # zeros are quick
        monkeypatch.setattr(
            getattr(keras.initializers, kind),
            "__call__",
            lambda self, shape, dtype=None: tf.zeros(shape),
        )
    model = models.build(name, words, length, features, **options)
    assert sum(int(np.prod(v.shape)) for v in model.trainable_variables) == total
