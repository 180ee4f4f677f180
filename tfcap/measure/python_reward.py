"""CIDEr-D in the graph beside the scorer in Python that the released systems train with.

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
    """Something to time."""

    functions: dict[str, Callable[[], object]]  # graph, ready (references counted before), python
    largest_difference: Callable[[], float]  # between the rewards of both
    ngrams: int  # of the table


def build(length: int, samples: int, sizes: workloads.Sizes) -> Work:
    """The same captions for both: `samples` random ones for each image, and its references.

    Half of the words of a sample stand in a reference, as in trained systems. pycocoevalcap takes
    the number of captions it scores for the number of images that the table counts: so does the
    table here, its counts cut accordingly, for the results to be comparable.
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
        found = CiderScorer(n=4, sigma=6.0)
        for hypothesis, of_image in words:
            found += (hypothesis, of_image)
        found.document_frequency = frequencies
        return np.array(found.compute_cider())

    def difference():
        return float(np.abs(graph().numpy().ravel() - python()).max())

    functions = {"graph": graph, "ready": counted, "python": python}
    return Work(functions, difference, len(table.ngrams))


def _samples(references, samples, length, vocab):
    """int32 [B, S, T]: references with every second word drawn anew."""
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
    """What the scorer in Python reads: each hypothesis and the references of its image."""
    found = []
    for rows, captions in zip(hypotheses, references, strict=True):
        texts = [" ".join(map(str, [*caption, EOS])) for caption in captions]
        found += [(" ".join(str(word) for word in row if word != PAD), texts) for row in rows]
    return found
