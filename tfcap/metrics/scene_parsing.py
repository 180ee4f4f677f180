"""Turns a parsed caption into its scene graph: objects, attributes and relations.

The graph is that of Anderson et al., "SPICE", ECCV 2016, section 3.1, which takes the rules of
Schuster et al., "Generating semantically precise scene graphs from textual descriptions", 2015:
nouns are objects; adjectives, numbers, the first parts of compounds and verbs without an object are
attributes; verbs with an object, prepositions and possessives are relations. Words like "a group
of" are left out, and pronouns stand for the nouns that they refer to. As in figure 1 of SPICE, "a
young girl standing on top of a tennis court" is (girl), (court), (girl, young), (girl, stand),
(court, tennis), (girl, on top of, court).

A token is one of spaCy, with the dependencies of its English models.
"""

import re
from collections.abc import Iterator
from typing import Any

from tfcap.metrics import wordnet

Token = Any
Graph = frozenset[tuple[str, ...]]  # (object,), (object, attribute), (object, relation, object)

# "a group of dogs" is about dogs.
_QUANTITIES = frozenset(
    "lot couple bunch number group pair few variety plenty dozen hundred ton kind type".split()
)
# "on top of the table" is one relation.
_PLACES = frozenset(
    "top front side middle back center centre edge bottom end corner left right rear".split()
)
_PEOPLE = frozenset("someone somebody anyone everyone everybody".split())
_PRONOUNS = frozenset("he she it they him her them his its their".split())
_SHORT = re.compile(r"[a-z]*[^aeiou][aeiou][^aeiouwxy]")  # ends in consonant, vowel, consonant
_SUBJECTS = ("nsubj", "nsubjpass")
_WORDS = "zero one two three four five six seven eight nine ten".split()
_NUMBERS = {str(number): word for number, word in enumerate(_WORDS)}


def scene_graph(doc: Any) -> Graph:
    """Returns the scene graph of a parsed caption as tuples of lemmas.

    Args:
        doc: The `Doc` of spaCy, with tags, lemmas and dependencies.
    """
    graph: set[tuple[str, ...]] = set()
    for token in doc:
        if _is_object(token):
            graph.add((_label(token),))
            graph.update((_label(token), word) for word in _attributes(token))
        if token.dep_ == "poss":
            for owner in _nodes(token):
                graph.update((_label(owner), "have", _label(n)) for n in _nodes(token.head))
        if token.pos_ in ("VERB", "AUX") and token.dep_ not in ("aux", "auxpass", "amod"):
            graph.update(_of_verb(token))
        if token.dep_ in ("prep", "agent"):
            graph.update(_of_preposition(token))
    return frozenset(graph)


def _label(token: Token) -> str:
    """Returns the lemma, with the e of verbs that spaCy drops: "rid" of "rides" and "riding"."""
    lemma = token.lemma_.lower()
    if token.lower_ in (f"{lemma}es", f"{lemma}ing", f"{lemma}ed") and _SHORT.fullmatch(lemma):
        if wordnet.synsets(f"{lemma}e"):  # "rid" would have given "ridding"
            return f"{lemma}e"
    return lemma


def _is_object(token: Token) -> bool:
    if token.lower_ in _PEOPLE:
        return True
    if token.pos_ not in ("NOUN", "PROPN") or token.dep_ == "compound":
        return False
    return not _quantified(token) and not (
        token.lemma_ in _PLACES and token.dep_ == "pobj" and _of(token) is not None
    )


def _of(token: Token) -> Token | None:
    """Returns the noun after `of`: dogs of "a group of dogs"."""
    for child in token.children:
        if child.dep_ == "prep" and child.lower_ == "of":
            for noun in child.children:
                if noun.dep_ == "pobj":
                    return noun
    return None


def _quantified(token: Token) -> Token | None:
    return _of(token) if token.lemma_.lower() in _QUANTITIES else None


def _nodes(token: Token) -> Iterator[Token]:
    """Yields the objects that a noun or pronoun stands for, and those joined to it by `and`."""
    if token.tag_ in ("WDT", "WP") or token.lower_ == "that":  # the dog that runs
        clause = next((t for t in (token, *token.ancestors) if t.dep_ == "relcl"), None)
        if clause is not None:
            yield from _nodes(clause.head)
        return
    if token.lower_ in _PRONOUNS:
        first = next((t for t in token.doc[: token.i] if _is_object(t)), None)
        if first is not None:
            yield first
        return
    inner = _quantified(token)
    if inner is not None:
        yield from _nodes(inner)
    elif _is_object(token):
        yield token
    for child in token.children:
        if child.dep_ == "conj":
            yield from _nodes(child)


def _attributes(token: Token) -> Iterator[str]:
    """Yields the attributes before or after a noun: adjectives, numbers, parts of compounds."""
    for child in token.children:
        if child.dep_ == "nummod":
            yield _NUMBERS.get(child.lower_, child.lower_)
        elif child.dep_ in ("amod", "compound", "nmod"):
            yield _label(child)
            for other in child.children:
                if other.dep_ == "conj" and other.pos_ in ("ADJ", "VERB", "NOUN"):
                    yield _label(other)


def _subjects(verb: Token) -> list[Token]:
    """Returns the objects that do what a verb says, or to which it is done in the passive."""
    own = [n for c in verb.children if c.dep_ in _SUBJECTS for n in _nodes(c)]
    if own or any(c.dep_ in (*_SUBJECTS, "expl") for c in verb.children):
        return own
    if verb.dep_ in ("acl", "relcl", "conj", "xcomp", "advcl", "ccomp", "pcomp", "prep"):
        head = verb.head
        if head.pos_ in ("NOUN", "PROPN", "PRON"):
            return list(_nodes(head))
        if head != verb:
            return _subjects(head)
    return []


def _of_verb(verb: Token) -> Iterator[tuple[str, ...]]:
    """Yields what a verb says of its subjects: relations to its objects, or an attribute."""
    subjects = _subjects(verb)
    particle = [child.lower_ for child in verb.children if child.dep_ == "prt"]
    name = " ".join([_label(verb), *particle])
    agents = [child for child in verb.children if child.dep_ == "agent"]
    objects = [
        node
        for child in verb.children
        if child.dep_ in ("dobj", "dative", "oprd", "attr")
        for node in _nodes(child)
    ]
    # The object of "the ball that he throws" is the ball.
    if verb.dep_ == "relcl" and not objects and any(c.dep_ == "nsubj" for c in verb.children):
        heads = list(_nodes(verb.head))
        objects = [node for node in heads if node not in subjects]
    for subject in subjects:
        for child in verb.children:
            if child.dep_ == "acomp":
                yield _label(subject), _label(child)
        for node in objects:
            yield _label(subject), name, _label(node)
        if not objects and not agents and verb.lemma_ != "be":
            yield _label(subject), name


def _of_preposition(word: Token) -> Iterator[tuple[str, ...]]:
    """Yields the relations of a preposition; `by` of the passive gives those of the verb."""
    name, head = word.lower_, word.head
    nodes = []
    for child in word.children:
        if child.dep_ != "pobj":
            continue
        inner = _of(child)
        if child.lemma_ in _PLACES and inner is not None:  # on top of, in front of
            name = f"{name} {child.lower_} of"
            nodes += list(_nodes(inner))
        else:
            nodes += list(_nodes(child))
    if word.dep_ == "agent":
        for node in nodes:
            yield from ((_label(node), _label(head), _label(s)) for s in _subjects(head))
        return
    while head.pos_ in ("ADV", "ADP", "SCONJ", "ADJ") and head.head != head:  # next to, full of
        name = f"{head.lower_} {name}"
        head = head.head
    if head.pos_ in ("NOUN", "PROPN", "PRON"):
        if _quantified(head) is not None or (head.lemma_ in _PLACES and name == "of"):
            return
        subjects = list(_nodes(head))[:1]
    else:
        subjects = _subjects(head)
    for subject in subjects:
        yield from ((_label(subject), name, _label(node)) for node in nodes if node != subject)
