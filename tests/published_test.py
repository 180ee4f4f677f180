"""The published scores: the file is whole, and the headers of recipes say the same."""

import re

import pytest
from helpers import recipes as headers

from tfcap import published, recipes

ROWS = published.rows()
NAMED = sorted({name for row in ROWS for name in row.recipes})
# A score in the text of a header. What was measured here has other words around it.
SCORE = re.compile(
    r"(?:B@\d|METEOR|ROUGE-L|CIDEr|SPICE|R@\d+|perplexity|hours|rank)(?: c\d+)? \d+(?:\.\d+)?"
)


def test_every_row_is_complete():
    content = published.content()
    assert len(ROWS) == 229
    for row in ROWS:
        assert row.source in content["sources"] and row.stage in published.STAGES
        assert bool(row.recipes) != bool(row.reason), row
        assert not row.reason or row.reason in content["reasons"]
        assert not row.how or (row.how in content["how"] and row.recipes)
        for name, value in row.scores.items():
            limit = 1000 if name.endswith("rank") else 250
            assert value == "-" or 0 < float(value) < limit, row
        assert all(name.endswith(f"_{row.stage}") for name in row.recipes), row
    used = {row.reason for row in ROWS} | {row.how for row in ROWS}
    assert {*content["reasons"], *content["how"], ""} == used
    assert all(isinstance(text, str) for text in content["left_out"])


def test_a_row_keeps_the_signs_of_the_file():
    [row] = [r for r in ROWS if r.recipes == ("coco/show_tell_xe",) and r.source == "X-LAN paper"]
    assert row.place == "X-LAN paper, table 1" and row.name == "LSTM"
    assert row.text == "B@4 29.6, METEOR 25.2, ROUGE-L 52.6, CIDEr 94.0"
    assert row.scores["B@1"] == "-"


def test_rows_that_lacked_scores_have_those_of_the_source():
    rows = {(row.place, row.stage, row.name): row.text for row in ROWS}
    assert rows["X-LAN paper, table 3", "xe", "row 3, one layer in the encoder"] == (
        "B@1 77.3, B@2 61.5, B@3 47.9, B@4 37.1, METEOR 28.5, ROUGE-L 57.3, CIDEr 118.2, SPICE 21.6"
    )
    assert rows["X-LAN paper, table 1", "scst", "LSTM-A"].startswith("B@1 78.6, B@4 35.5, METEOR")
    server = rows["ExpansionNet paper, table 5", "scst", "ExpansionNet"]
    assert server.endswith("CIDEr c5 127.8, CIDEr c40 130.0")
    whole = rows["X-LAN paper, table 2", "scst", "X-Transformer, SENet-154"]
    assert rows["slides, COCO server", "scst", "X-LAN"] in whole
    assert rows["m-RNN paper, table 4", "xe", "COCO, Random"].endswith("image rank 500")
    section = "m-RNN paper, section 7.4", "xe", "Flickr8K, m-RNN-AlexNet"
    assert rows[section].startswith("perplexity 24.39")
    assert published.expected("flickr30k/mrnn_alexnet_xe") == (
        "m-RNN paper, table 4, Flickr30K, m-RNN-AlexNet: caption R@1 18.4, caption R@5 40.2, "
        "caption R@10 50.9, caption rank 10, image R@1 12.6, image R@5 31.2, image R@10 41.5, "
        "image rank 16. m-RNN paper, table 5, Flickr30K, m-RNN-AlexNet: perplexity 35.11, "
        "B@1 54.0, B@2 36.0, B@3 23.0, B@4 15.0."
    )


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


def test_a_direct_answer_of_m_rnn_has_5_beams_and_reranking_10():
    """Footnote 8 of the m-RNN paper."""
    recipe = headers.resolve(headers.named("coco/mrnn_shared_xe"))
    assert recipe.task.decoding.beam == 5
    for name, text in published.content()["how"].items():
        assert ("--beam 10" in text) == name.startswith(("rerank", "oracle"))


def test_several_rows_with_equal_scores_are_one_sentence():
    text = published.expected("coco/show_tell_scst")
    assert text == (
        "X-LAN paper, table 1, LSTM; ExpansionNet paper, table 4, LSTM: "
        "B@4 31.9, METEOR 25.5, ROUGE-L 54.3, CIDEr 106.3."
    )
