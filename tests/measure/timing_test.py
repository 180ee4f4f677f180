"""Times of functions on a machine that others use too."""

from tfcap.measure import timing


def test_contended_repetitions_are_dropped_if_enough_remain():
    quiet, contended = timing.Repetition(1.0, 0.02), timing.Repetition(9.0, 0.5)
    found = timing._choose(3.0, [quiet, contended, quiet, quiet])
    assert found.dropped == 1 and found.median == 1.0
    found = timing._choose(3.0, [quiet, contended, quiet])
    assert found.dropped == 0 and len(found.kept) == 3
    own = [timing.Repetition(1.0, waiting) for waiting in (0.15, 0.6, 0.18, 0.2)]
    assert timing._choose(3.0, own).kept == [own[0], *own[2:]]
    unknown = timing.Repetition(2.0, None)
    found = timing._choose(3.0, [unknown] * 2)
    assert found.dropped == 0 and found.as_dict()["waiting"] is None


def test_functions_are_called_in_turn():
    calls = []
    found = timing.timed({"a": lambda: calls.append("a"), "b": lambda: calls.append("b")}, 2)
    assert "".join(calls) == "aabb" + "abab"
    assert len(found["a"].kept) + found["a"].dropped == 2


def test_the_fastest_call_that_is_kept_counts_beside_the_median():
    kept = [timing.Repetition(seconds, None) for seconds in (3.0, 2.0, 7.0)]
    times = timing.Times(9.0, kept, 0)
    assert (times.least, times.median) == (2.0, 3.0)
    slower = timing.Times(9.0, [timing.Repetition(5.0, None)], 0)
    assert times.speed_beside(slower) == 2.5 and slower.speed_beside(times) == 0.4


def test_a_product_is_compared_with_that_of_another_dtype():
    assert 0 < timing.relative_peak("bfloat16", "float32", 64) < float("inf")
