"""CLIPScore and RefCLIPScore equal the formulas of the paper, computed one number at a time."""

import math

import numpy as np
import pytest

from tfcap.metrics import coco, results

REFERENCES = {3: ["A dog.", "Two dogs"], 1: ["A cat"], 2: ["A bird."]}
CAPTIONS = {1: "A Cat, asleep", 2: "a plane", 3: "a dog"}
PICTURES = {1: "1.jpg", 2: "2.jpg", 3: "3.jpg", 4: "4.jpg"}


class Random:
    """An encoder with a random vector for every file and text."""

    def __init__(self):
        self.known = {}
        self.asked = []

    def __call__(self, items):
        self.asked.append(list(items))
        rng = np.random.default_rng(len(self.known))
        for item in items:
            self.known.setdefault(item, rng.normal(size=7).astype(np.float32) + 0.4)
        return np.stack([self.known[item] for item in items])

    pictures = texts = __call__


def cosine(one, other):
    lengths = math.sqrt(sum(x * x for x in one)) * math.sqrt(sum(x * x for x in other))
    return sum(x * y for x, y in zip(one, other, strict=True)) / lengths


def test_the_scores_are_those_of_the_formulas():
    encoder = Random()
    options = results.Options(pictures=PICTURES, clip=encoder)
    with coco.CocoScorer(["CLIPScore"], java=None, options=options) as scorer:
        result = scorer.score(REFERENCES, CAPTIONS)
    for image, caption in CAPTIONS.items():
        text = encoder.known[f"A photo depicts {caption}"]  # not tokenized, as in the paper
        fit = 2.5 * max(cosine(text, encoder.known[PICTURES[image]]), 0)
        near = [cosine(text, encoder.known[f"A photo depicts {r}"]) for r in REFERENCES[image]]
        best = max(max(near), 0)
        assert result.per_image[image]["CLIPScore"] == pytest.approx(100 * fit)
        mean = 2 * fit * best / (fit + best) if fit + best else 0
        assert result.per_image[image]["RefCLIPScore"] == pytest.approx(100 * mean)
    each = [scores["CLIPScore"] for scores in result.per_image.values()]
    assert result.corpus["CLIPScore"] == pytest.approx(np.mean(each))
    assert encoder.asked[0] == ["3.jpg", "1.jpg", "2.jpg"]  # only pictures of scored images
