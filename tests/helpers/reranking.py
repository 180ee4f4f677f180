"""Similarities of sentences in slow, literal Python float64: what ours are compared with."""

import collections
import math

import numpy as np


def count(words):
    """Counts of the n-grams of a list, per order."""
    return [
        collections.Counter(tuple(words[i : i + n]) for i in range(len(words) - n + 1))
        for n in range(1, 5)
    ]


def cider(words, references, frequency, images):
    """CIDEr-D of a list of words, given in how many of `images` each n-gram occurs."""

    def vectors(words):
        return [
            {g: c * math.log(images / max(1, frequency.get(g, 0))) for g, c in n.items()}
            for n in count(words)
        ]

    def norm(vector):
        return math.sqrt(sum(v * v for v in vector.values()))

    own, total = vectors(words), 0.0
    for reference in references:
        delta = max(len(words) - 1, 0) - max(len(reference) - 1, 0)
        for a, b in zip(own, vectors(reference), strict=True):
            product = sum(min(a[g], b[g]) * b[g] for g in a if g in b)
            if norm(a) and norm(b):
                product /= norm(a) * norm(b)
            total += product * math.exp(-(delta**2) / (2 * 6.0**2)) / 4
    return 10 * total / len(references)


def f1(words, reference):
    """The mean F1 of the n-grams of two lists of words, which the paper calls BLEU."""
    if min(len(words), len(reference)) < 4:
        return 0.0
    score = 0.0
    for a, b in zip(count(words), count(reference), strict=True):
        if matches := sum(min(c, b[g]) for g, c in a.items()):
            precision, recall = matches / sum(a.values()), matches / sum(b.values())
            score += 2 * precision * recall / (precision + recall)
    return score / 4


def split(text):
    """The words of a sentence of the built-in shapes; their only mark is an apostrophe."""
    return text.replace("'", " ").split()


def literal_frequencies(images):
    """In how many images each n-gram occurs."""
    result = collections.Counter()
    for captions in images:
        result.update({g for text in captions for counts in count(split(text)) for g in counts})
    return result


def literal_cider(hypothesis, reference, frequency, images):
    """CIDEr-D with a single reference."""
    return cider(split(hypothesis), [split(reference)], frequency, images)


def literal_bleu(hypothesis, reference):
    """`f1` of two sentences."""
    return f1(split(hypothesis), split(reference))


def literal_scores(hypotheses, references, similarity, best):
    """The mean of the largest similarities of each hypothesis."""
    scores = []
    for hypothesis in hypotheses:
        values = sorted((similarity(hypothesis, text) for text in references), reverse=True)
        scores.append(sum(values[:best]) / min(best, len(values)))
    return np.array(scores)
