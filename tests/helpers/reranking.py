"""Consensus reranking in slow, literal Python float64: what ours is compared with."""

import collections
import math

import numpy as np


def split(text):
    """The words of the sentences above; their only mark is an apostrophe."""
    return text.replace("'", " ").split()


def _counts(text):
    words = split(text)
    return [
        collections.Counter(tuple(words[i : i + n]) for i in range(len(words) - n + 1))
        for n in range(1, 5)
    ]


def literal_frequencies(images):
    """In how many images each n-gram occurs."""
    found = collections.Counter()
    for captions in images:
        found.update({g for text in captions for counts in _counts(text) for g in counts})
    return found


def literal_cider(hypothesis, reference, frequency, images):
    """CIDEr-D with a single reference."""
    score = 0.0
    for own, other in zip(_counts(hypothesis), _counts(reference), strict=True):

        def weigh(counts):
            return {
                g: c * (math.log(images) - math.log(max(1, frequency[g])))
                for g, c in counts.items()
            }

        a, b = weigh(own), weigh(other)
        norms = [math.sqrt(sum(x * x for x in v.values())) for v in (a, b)]
        if all(norms):
            score += sum(min(a[g], b[g]) * b[g] for g in a if g in b) / norms[0] / norms[1]
    bigrams = [max(0, len(split(text)) - 1) for text in (hypothesis, reference)]
    return 10 * score / 4 * math.exp(-((bigrams[0] - bigrams[1]) ** 2) / 72)


def literal_bleu(hypothesis, reference):
    """The mean F1 of the n-grams of two sentences, which the paper calls BLEU."""
    if min(len(split(hypothesis)), len(split(reference))) < 4:
        return 0.0
    score = 0.0
    for own, other in zip(_counts(hypothesis), _counts(reference), strict=True):
        matches = sum(min(c, other[g]) for g, c in own.items())
        if matches:
            precision, recall = matches / sum(own.values()), matches / sum(other.values())
            score += 2 * precision * recall / (precision + recall)
    return score / 4


def literal_scores(hypotheses, references, similarity, best):
    """The mean of the largest similarities of each hypothesis."""
    scores = []
    for hypothesis in hypotheses:
        values = sorted((similarity(hypothesis, text) for text in references), reverse=True)
        scores.append(sum(values[:best]) / min(best, len(values)))
    return np.array(scores)
