"""Variables have the names of the attributes that hold them."""

import keras
import pytest
import tensorflow as tf
from keras import layers

from tfcap.models import variables


class Nested(keras.Model):
    def __init__(self):
        super().__init__()
        self.first = layers.Dense(2)
        self.listed = [layers.Dense(2), [layers.Dense(2)]]
        self.named = {"x": layers.Dense(2), "y": layers.Dropout(0.5)}

    def call(self, x, training=False):
        x = self.listed[0](self.listed[1][0](self.named["x"](self.first(x))))
        return self.named["y"](x, training=training)


def test_names_are_chains_of_attributes():
    model = Nested()
    model(tf.zeros((1, 2)))
    names = variables.named_variables(model)
    dense = [
        f"{path}/{part}"
        for path in ("first", "listed/0", "listed/1/0", "named/x")
        for part in ("kernel", "bias")
    ]
    assert set(names) == {*dense, "named/y/seed_generator_state"}
    assert names["listed/1/0/kernel"] is model.listed[1][0].kernel
    assert [
        variables.is_seed(names[n]) for n in ("first/bias", "named/y/seed_generator_state")
    ] == [
        False,
        True,
    ]


def test_a_shared_layer_has_one_name():
    model = Nested()
    model.again = model.first
    model(tf.zeros((1, 2)))
    assert len(variables.named_variables(model)) == len(model.variables) == 9


def test_variables_without_a_name_of_their_own_are_refused():
    class Twins(layers.Layer):
        def build(self, shape):
            self.a = self.add_weight(shape=(), name="same")
            self.b = self.add_weight(shape=(), name="same")

        def call(self, x):
            return x

    layer = Twins()
    layer(tf.zeros((1, 2)))
    with pytest.raises(
        ValueError, match="2 variables of .* must all have different names. Received: 1"
    ):
        variables.named_variables(layer)
