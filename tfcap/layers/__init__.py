"""Keras layers of the captioning systems. The import registers all of them, for saved models."""

from tfcap.layers import (
    attention,
    common,
    dropout,
    expansion,
    geometry,
    loops,
    multimodal,
    positions,
    precision,
    recurrent,
    relations,
    standardize,
    tree_lstm,
    xlinear,
)
