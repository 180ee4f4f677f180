"""Batch sizes follow from measured times by the rule that the page on serving states."""

import pytest

from tfcap.serving import timing


def test_the_smallest_size_with_nearly_the_highest_throughput_is_chosen():
    # 10, 16, 25, 38, 40 and 41 pictures per second
    seconds = {1: 0.1, 2: 0.125, 4: 0.16, 8: 0.21, 16: 0.4, 32: 0.78}
    how = timing.choose(seconds, cores=4)
    assert how.sizes == (1, 2, 4, 8) and how.largest == 8
    assert how.timeout == pytest.approx(0.01) and how.threads == 4
    assert how.queue == round(10 / 0.21)


def test_a_machine_without_gain_serves_single_pictures():
    how = timing.choose({1: 0.001, 2: 0.002, 4: 0.004}, cores=2)
    assert how.sizes == (1,) and how.timeout == 0.001
    assert timing.choose({1: 30.0}, cores=2) == timing.Batching({1: 30.0}, (1,), 0.02, 2, 4)


def test_measuring_ends_with_a_slow_batch(monkeypatch):
    now = iter(range(0, 1000, 3))
    monkeypatch.setattr(timing.time, "perf_counter", lambda: next(now))
    calls = []
    assert timing.measure(calls.append) == {1: 3, 2: 3, 4: 3, 8: 3, 16: 3, 32: 3}
    assert calls == [size for size in timing.SIZES for _ in range(4)]
    now = iter(range(0, 1000, 6))
    assert timing.measure(lambda size: None) == {1: 6}
