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
    found = profiles.costliest(function, 9)
    seconds = [one["seconds"] for one in found]
    assert seconds == sorted(seconds, reverse=True) and min(seconds) > 0
    # Not the first one: threads of other tests in this process may be counted, too.
    (product,) = (one for one in found if one["type"] == "MatMul")
    assert product["calls"] == 3 and 0 < product["share"] < 1
    assert len(profiles.costliest(function, 2)) == 2
