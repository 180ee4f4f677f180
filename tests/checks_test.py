"""The checks of single values."""

import pytest

from tfcap import checks


@pytest.mark.parametrize(
    ("check", "good", "bad"),
    [
        (checks.POSITIVE, [0.1, 3], [0, -1]),
        (checks.RATE, [0, 0.99], [-0.1, 1]),
        (checks.at_least(2), [2, 2.5, None], [1.9]),
        (checks.between(1, 3), [1, 3], [0, 4]),
        (checks.one_of("a", None), ["a", None], ["b", ""]),
    ],
)
def test_a_check_accepts_its_values_only(check, good, bad):
    accepts, wanted = check
    assert all(map(accepts, good)) and not any(map(accepts, bad)) and wanted


def test_a_similar_name_is_suggested():
    assert checks.did_you_mean("tset", ["train", "val", "test"]) == " Did you mean 'test'?"
    assert checks.did_you_mean("zebra", ["train", "val", "test"]) == ""
