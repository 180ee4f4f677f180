"""Compares CIDEr-D in the graph with the Python scorer that the released systems train with.

Letters: B images, S samples per image, T `max_length`.
"""

import collections
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import tensorflow as tf
from pycocoevalcap.cider.cider_scorer import CiderScorer

from tfcap.ids import EOS, PAD
from tfcap.measure import workloads
from tfcap.objectives import rewards


class Work(NamedTuple):
    """Functions to time that score the same captions."""

    functions: dict[str, Callable[[], object]]  # graph, ready (references counted before), python
    largest_difference: Callable[[], float]  # between the rewards of graph and Python
    ngrams: int  # number of n-grams in the table of document frequencies


def build(length: int, samples: int, sizes: workloads.Sizes) -> Work:
    """Makes random captions and references, and the functions that score them.

    Half of the words of a sample are taken from a reference, as in trained systems. pycocoevalcap
    uses the number of scored captions as the number of images in the table. To make the results
    comparable, the table here has this number of images too, and its counts are limited to it.

    Args:
      length: T.
      samples: S.
      sizes: the other sizes.
    """
    references = workloads.random_captions(sizes.images, sizes.vocab, seed=1)
    hypotheses = _samples(references, samples, length, sizes.vocab)
    table = workloads.random_table(sizes.corpus, sizes.vocab)
    number = sizes.images * samples
    table = table._replace(counts=np.minimum(table.counts, number), images=number)
    scorer = rewards.CiderD(table, sizes.vocab)
    given = tf.constant(workloads.padded(references))
    tokens = tf.constant(hypotheses)
    ready = tf.function(scorer.references)(given)
    graph = workloads.compiled(lambda: scorer(tokens, scorer.references(given)))
    counted = workloads.compiled(lambda: scorer(tokens, ready))
    words = _strings(hypotheses, references)
    frequencies = collections.defaultdict(float)
    for ngram, count in zip(table.ngrams.tolist(), table.counts.tolist(), strict=True):
        frequencies[tuple(str(word) for word in ngram if word != PAD)] = float(count)

    def python():
        python_scorer = CiderScorer(n=4, sigma=6.0)
        for hypothesis, of_image in words:
            python_scorer += (hypothesis, of_image)
        python_scorer.document_frequency = frequencies
        return np.array(python_scorer.compute_cider())

    def difference():
        return float(np.abs(graph().numpy().ravel() - python()).max())

    functions = {"graph": graph, "ready": counted, "python": python}
    return Work(functions, difference, len(table.ngrams))


def _samples(references, samples, length, vocab):
    """Makes samples int32 [B, S, T]: references in which every second word is replaced."""
    others = workloads.random_captions(len(references), vocab, seed=3)
    hypotheses = np.full((len(references), samples, length), PAD, np.int32)
    for image, captions in enumerate(references):
        for index in range(samples):
            caption = list(captions[index % len(captions)])
            drawn = others[image][(index + 1) % len(captions)]
            for place in range(1, min(len(caption), len(drawn)), 2):
                caption[place] = drawn[place]
            ended = [*caption, EOS][:length]
            hypotheses[image, index, : len(ended)] = ended
    return hypotheses


def _strings(hypotheses, references):
    """Returns each hypothesis with the references of its image, as the Python scorer reads them."""
    pairs = []
    for rows, captions in zip(hypotheses, references, strict=True):
        texts = [" ".join(map(str, [*caption, EOS])) for caption in captions]
        pairs += [(" ".join(str(word) for word in row if word != PAD), texts) for row in rows]
    return pairs
