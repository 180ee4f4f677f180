"""Forecasts follow from rates: twice the workers take half of the time of preparing."""

import pytest

from tfcap import cli
from tfcap.measure import plan


def test_a_forecast_follows_from_its_rates():
    given = plan.assumptions(
        ["prepare=100", "xe=10", "scst=5", "xe_epochs=2", "scst_epochs=1", "price=2", "record=1000"]
    )
    one = plan.point(360_000, 1, given)
    assert (one["prepare"], one["xe"], one["scst"]) == (1, 20, 20)
    assert one["cost"] == 82 and one["records"] == 0.36 and one["shards"] == 704
    ten = plan.point(360_000, 10, given)
    assert ten["prepare"] == 0.1 and ten["xe"] == pytest.approx(20 / 9)
    assert ten["cost"] == pytest.approx(2 * (1 + 40 / 0.9))


@pytest.mark.parametrize("change", ["speed=3", "price=0", "price=much", "price", "price=inf"])
def test_a_wrong_assumption_is_refused(change):
    with pytest.raises(cli.UsageError, match="--assume must be NAME=NUMBER .* Received: "):
        plan.assumptions([change])


def test_the_table_has_a_row_for_each_point():
    points = [plan.point(n, w, plan.Assumptions()) for n in plan.IMAGES for w in plan.WORKERS]
    rows = plan.table(points).splitlines()
    assert len(rows) == 11 and {row.count("|") for row in rows} == {10}
    assert rows[2].startswith("| 113,287 | 1 | 222 | 14 | 0.46 | 0.34 | 75 | ")
