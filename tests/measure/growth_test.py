"""How costs grow: what is skipped, and axes and systems that do not exist."""

import pytest

from tfcap import configs, console
from tfcap.measure import growth, workloads

SIZES = workloads.Sizes(2, 3, 4, 40, captions=2, beam=2, sentences=4, corpus=30)


def test_a_call_that_would_take_too_long_is_skipped():
    options = growth.Options(paper_size=False, repeats=1, limit=1e-9, points=(2,))
    params = configs.resolve("mrnn")
    points = list(growth.measure(params, ["mrnn"], ["beam"], SIZES, options))
    assert [point.get("skipped", "")[:5] for point in points] == ["about"]
    assert "seconds" not in points[0]
    assert "not run: about" in growth.table(points)


@pytest.mark.parametrize(
    ("systems", "axes", "message"),
    [
        (["mrnn"], ["height"], "--grow must be among regions.*Received: 'height'"),
        (["lstm"], ["beam"], "--systems must be among .*Received: 'lstm'"),
    ],
)
def test_an_unknown_axis_or_system_is_an_error(systems, axes, message):
    options = growth.Options(paper_size=False, repeats=1, limit=1.0, points=())
    with pytest.raises(console.UsageError, match=message):
        next(growth.measure(configs.resolve("mrnn"), systems, axes, SIZES, options))
