"""The published scores: the file is whole, and the headers of recipes say the same."""

import re

import pytest
from helpers import recipes as headers

from tfcap import published, recipes

ROWS = published.rows()
NAMED = sorted({name for row in ROWS for name in row.recipes})
# A score in the text of a header. What was measured here has other words around it.
SCORE = re.compile(r"(?:B@\d|METEOR|ROUGE-L|CIDEr|SPICE|R@\d+|perplexity|hours|rank) \d+(?:\.\d+)?")


def test_every_row_is_complete():
    content = published.content()
    assert len(ROWS) > 120
    for row in ROWS:
        assert row.source in content["sources"] and row.stage in published.STAGES
        assert bool(row.recipes) != bool(row.reason), row
        assert not row.reason or row.reason in content["reasons"]
        assert not row.how or (row.how in content["how"] and row.recipes)
        for value in row.scores.values():
            assert value in "-?" or 0 < float(value) < 250, row
        assert all(name.endswith(f"_{row.stage}") for name in row.recipes), row
    used = {row.reason for row in ROWS} | {row.how for row in ROWS}
    assert {*content["reasons"], *content["how"], ""} == used
    assert all(isinstance(text, str) for text in content["unread"])


def test_a_row_keeps_the_signs_of_the_file():
    [row] = [r for r in ROWS if r.recipes == ("coco/show_tell_xe",) and r.source == "X-LAN paper"]
    assert row.place == "X-LAN paper, table 1" and row.name == "LSTM" and not row.unread
    assert row.text == "B@4 29.6, METEOR 25.2, ROUGE-L 52.6, CIDEr 94.0"
    [row] = [row for row in ROWS if row.name.startswith("row 3")]
    assert row.unread == ["B@1", "B@2", "B@3", "METEOR", "ROUGE-L"]


@pytest.mark.parametrize("name", NAMED)
def test_a_header_has_all_scores_of_its_rows_and_no_other(name):
    expected = published.expected(name)
    text = headers.header(headers.named(name)).fields["Expected"].strip()
    assert text.startswith(expected)
    assert not SCORE.findall(text.removeprefix(expected))


@pytest.mark.parametrize("name", NAMED)
def test_a_header_says_what_its_source_does_not_state(name):
    """What the source leaves open is a guess or comes from released code."""
    fields = headers.header(headers.named(name)).fields
    assert fields["Guessed"].strip()
    assert fields["Guessed"].strip() != "nothing." or fields["As released"].strip()


def test_recipes_without_a_row_have_no_published_scores():
    """First stages of ablations refer to the second stage; the others were measured here."""
    for name in (name.removesuffix(".yaml") for name in recipes.names()):
        text = headers.header(headers.named(name)).fields["Expected"].strip()
        if name not in NAMED and name.startswith(("coco/", "flickr30k/", "iapr/")):
            assert text.startswith("scores are published after the second stage only")
            assert re.search(r"\((\w+)\.yaml\)", text)[1] == name[5:].replace("_xe", "_stage2_xe")
            assert not SCORE.findall(text)


def test_several_rows_with_equal_scores_are_one_sentence():
    text = published.expected("coco/show_tell_scst")
    assert text == (
        "X-LAN paper, table 1, LSTM; ExpansionNet paper, table 4, LSTM: "
        "B@4 31.9, METEOR 25.5, ROUGE-L 54.3, CIDEr 106.3."
    )
    assert published.expected("flickr30k/mrnn_alexnet_xe") == ""
