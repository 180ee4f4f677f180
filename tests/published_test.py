"""The published scores: every row is complete, and the headers of the recipes say the same."""

import re

import pytest
from helpers import recipes as headers

from tfcap import published

ROWS = published.rows()
# A score in the text of a header. What was measured here has other words around it.
SCORE = re.compile(
    r"(?:B@\d|METEOR|ROUGE-L|CIDEr|SPICE|R@\d+|perplexity|hours|rank)(?: c\d+)? \d+(?:\.\d+)?"
)


def test_every_row_has_scores_and_recipes_or_a_reason():
    content = published.content()
    assert len(ROWS) == 229
    for row in ROWS:
        assert row.source in content["sources"] and row.stage in published.STAGES
        assert bool(row.recipes) != bool(row.reason), row
        assert row.reason in ("", *content["reasons"]) and row.how in ("", *content["how"])
        for name, value in row.scores.items():
            limit = 1000 if name.endswith("rank") else 250
            assert value == "-" or 0 < float(value) < limit, row
        assert all(name.endswith(f"_{row.stage}") for name in row.recipes), row


def test_scores_are_those_of_the_sources():
    rows = {(row.place, row.stage, row.name): row.text for row in ROWS}
    assert rows["X-LAN paper, table 3", "xe", "row 3, one layer in the encoder"] == (
        "B@1 77.3, B@2 61.5, B@3 47.9, B@4 37.1, METEOR 28.5, ROUGE-L 57.3, CIDEr 118.2, SPICE 21.6"
    )
    assert rows["X-LAN paper, table 1", "xe", "LSTM"] == (
        "B@4 29.6, METEOR 25.2, ROUGE-L 52.6, CIDEr 94.0"
    )


@pytest.mark.parametrize("name", sorted({name for row in ROWS for name in row.recipes}))
def test_a_header_has_all_scores_of_its_rows_and_no_other(name):
    expected = published.expected(name)
    text = headers.header(headers.named(name)).fields["Expected"].strip()
    assert text.startswith(expected)
    assert not SCORE.findall(text.removeprefix(expected))
