"""The profile of a function with known operations."""

import tensorflow as tf

from tfcap.measure import profiles


def test_time_inside_an_event_belongs_to_the_inner_one():
    events = [(10, 20, "inner"), (0, 100, "outer"), (15, 5, "inmost"), (100, 7, "next")]
    assert sorted(profiles.own_times(events)) == sorted(
        [("outer", 80), ("inner", 15), ("inmost", 5), ("next", 7)]
    )


def test_the_operations_of_a_function_are_counted_and_timed():
    x = tf.random.stateless_normal((400, 400), (1, 2))

    @tf.function(autograph=False)
    def function():
        y = x
        for _ in range(3):
            y = tf.linalg.matmul(y, x)
        return tf.sin(y)

    function()
    found = profiles.costliest(function, 2)
    assert len(found) == 2 and found[0]["type"] == "MatMul" and found[0]["calls"] == 3
    assert found[0]["seconds"] > found[1]["seconds"] > 0
    assert 0.3 < found[0]["share"] < 1
