"""The share of distinct captions."""

import pytest

from tfcap.metrics import distinct_share


def test_share_of_distinct_captions():
    assert distinct_share({1: "a dog", 2: "a  dog ", 3: "a cat", 4: "a bird"}) == 75.0
    assert distinct_share({i: "a man" for i in range(8)}) == 12.5
    assert distinct_share({1: "a", 2: "b"}) == 100.0


def test_nothing_to_compare():
    with pytest.raises(ValueError, match="no predictions"):
        distinct_share({})
