"""Sentences for an image are ranked by their probability over their marginal, each text once."""

import numpy as np
import pytest

from tfcap import runs
from tfcap.data.prepared import PreparedData
from tfcap.nearest.space import Space
from tfcap.scoring import likelihood, marginal
from tfcap.scoring.candidates import Candidates
from tfcap.scoring.retrieval import Pairs
from tfcap.scoring.sentences import find_sentences

pytestmark = pytest.mark.slow


def test_sentences_are_ranked_for_images(trained, shapes):
    data = PreparedData.load(shapes)
    pairs = Pairs(runs.load(trained), data, "val", limit=4, block=4)
    (block,) = likelihood.images(data, "test", [0, 1], 2)
    features = block["features"].numpy()
    texts = list(dict.fromkeys(pairs.captions()[0]))
    scorer = pairs.scorer(likelihood.encode(pairs.run.vocab, texts, 12))
    scores = scorer(**block)
    mean = scorer(**marginal.mean_image(data, marginal.marginal_places(data, 9, 5)))
    for images, wanted in ((0, scores), (9, scores - mean)):
        found = find_sentences(pairs, features, 3, images, 5, "mean_image")
        for own, row in zip(found, wanted, strict=True):
            assert [text for text, _ in own] == [texts[n] for n in np.argsort(-row)[:3]]
            np.testing.assert_allclose([s for _, s in own], np.sort(row)[::-1][:3], rtol=1e-4)
    places = marginal.marginal_places(data, 9, 5)
    (nine,) = likelihood.images(data, "train", places, 9)
    mean = np.log(np.mean(np.exp(scorer(**nine).astype(np.float64)), axis=0))
    for own, row in zip(find_sentences(pairs, features, 3, 9, 5), scores - mean, strict=True):
        np.testing.assert_allclose([s for _, s in own], np.sort(row)[::-1][:3], rtol=1e-4)
    first = Candidates(data, "val", Space("original"), None)
    chosen = first.among_sentences(texts, 4, first.space.vectors(features))
    some = find_sentences(pairs, features, 9, 9, 5, "mean_image", first, 4)
    whole = [dict(own) for own in find_sentences(pairs, features, 99, 9, 5, "mean_image")]
    for own, places, every in zip(some, chosen, whole, strict=True):
        assert {text for text, _ in own} == {texts[n] for n in places} and len(own) == 4
        assert all(every[text] == pytest.approx(score, rel=1e-3) for text, score in own)
        assert [score for _, score in own] == sorted((s for _, s in own), reverse=True)
