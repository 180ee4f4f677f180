"""Measures the diversity of captions over a data set and among several captions of one image.

A falling share of distinct captions over a data set shows that the model collapses to few captions.
The measures for several captions of an image (samples, beams or human references) are:

* *Div-1, Div-2*: number of distinct n-grams in the captions of an image, divided by the number
  of their words. Shetty et al., "Speaking the same language", ICCV 2017, after Li et al., "A
  diversity-promoting objective function", NAACL 2016. Div-2 is divided by words as well.
* *mBLEU-n*: BLEU of a caption with the other captions of its image as references; a low
  value means high diversity. Shetty et al., 2017. Corpus BLEU is computed for the first captions of
  all images, for the second captions and so on; mBLEU is the mean of these values.
* *self-CIDEr*: Wang and Chan, "Describing like humans", CVPR 2019. The captions of an image
  are vectors whose inner products are their CIDEr. 0 if all are the same, 1 if they share nothing.
* *oracle*: the mean over images of the best score that any caption of the image has: the highest,
  for CHAIRi and CHAIRs the lowest.

Captions are tokenized by `coco.CocoScorer.tokenize`: words separated by single spaces.
Letters: B images, S captions of an image, G n-grams.
"""

import collections
import dataclasses
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from pycocoevalcap.bleu import bleu_scorer
from pycocoevalcap.cider import cider_scorer

from tfcap.metrics.coco import CocoScorer
from tfcap.metrics.java import one_line
from tfcap.metrics.results import LOWER

_ORDERS = 4

Sets = Mapping[int, Sequence[str]]  # image id -> its captions, tokenized


def distinct_share(predictions: Mapping[int, str]) -> float:
    """Returns the share of captions that are different from each other, in percent.

    Args:
      predictions: Image id -> caption. Captions that differ in white space only are the same.

    Returns:
      100 if no two images share a caption, 100 / n if all n have the same one.
    """
    distinct = {one_line(caption) for caption in predictions.values()}
    return 100.0 * len(distinct) / len(predictions)


def novel_share(captions: Iterable[str], training: Iterable[str]) -> float:
    """Returns the share of captions that do not occur among the training captions, in percent.

    Args:
      captions: Tokenized captions of a model. Equal captions are counted separately.
      training: Training captions, tokenized in the same way.
    """
    captions, seen = list(captions), set(training)
    return 100.0 * sum(caption not in seen for caption in captions) / len(captions)


def div(captions: Sets, order: int) -> float:
    """Computes Div-1 or Div-2: distinct n-grams divided by words, mean over images; at most 1.

    Args:
      captions: At least one caption per image. An image without a word counts 0.
      order: n.
    """
    shares = []
    for group in captions.values():
        words = [caption.split() for caption in group]
        total = sum(map(len, words))
        distinct = {
            tuple(caption[start : start + order])
            for caption in words
            for start in range(len(caption) - order + 1)
        }
        shares.append(len(distinct) / total if total else 0.0)
    return float(np.mean(shares))


def mbleu(captions: Sets) -> list[float]:
    """Computes mBLEU-1 ... 4, times 100: BLEU of captions against the others of their image.

    Args:
      captions: At least two per image. If images have different numbers of captions, round j uses
        the images that have a caption j, and a round is weighted by its number of images.
    """
    rounds, sizes = [], []
    for number in range(max(map(len, captions.values()))):
        groups = [list(group) for group in captions.values() if len(group) > number]
        scorer = bleu_scorer.BleuScorer(n=_ORDERS)
        for group in groups:
            scorer += (group[number], group[:number] + group[number + 1 :])
        rounds.append(scorer.compute_score(option="closest")[0])
        sizes.append(len(groups))
    return (100.0 * np.average(rounds, axis=0, weights=sizes)).tolist()


def self_cider(captions: Sets, references: Sets) -> dict[int, float]:
    """Computes the diversity of each image's captions from the eigenvalues of their CIDEr.

    K [S, S] holds the CIDEr of each pair of captions, without the factor 10: the mean
    over n = 1 ... 4 of the cosine of their n-gram counts weighted by ln N - ln df. The
    eigenvalues of K are l_1 >= ... >= l_S; the diversity is -log_S(sqrt(l_1) / sum of sqrt(l_i)).
    The square roots are the singular values of the captions' vectors. Like the public evaluation
    code, the measure uses CIDEr. CIDEr-D clips counts and therefore is not an inner product.

    Args:
      captions: At least two per image.
      references: Image id -> reference captions of N images, from which the document frequencies
        are counted. Give the references of the evaluated data set.

    Returns:
      Image id -> diversity, 0 to 1. If no n-gram has a weight, the diversity is 0.
    """
    frequencies: collections.Counter = collections.Counter()
    for group in references.values():
        frequencies.update({gram for caption in group for gram in cider_scorer.precook(caption)})
    return {
        image: _spread(_kernel(group, frequencies, len(references)))
        for image, group in captions.items()
    }


def _kernel(group: Sequence[str], frequencies: Mapping[tuple, int], images: int) -> np.ndarray:
    """Computes the CIDEr of each pair of captions, divided by 10: float64 [S, S]."""
    counts = [cider_scorer.precook(caption, _ORDERS) for caption in group]
    columns = {gram: column for column, gram in enumerate(set().union(*counts))}
    weights = np.zeros((len(group), len(columns)))  # [S, G]
    for row, grams in enumerate(counts):
        for gram, count in grams.items():
            rarity = math.log(images) - math.log(max(1, frequencies.get(gram, 0)))
            weights[row, columns[gram]] = count * rarity
    orders = np.array([len(gram) for gram in columns], int)
    kernel = np.zeros((len(group), len(group)))
    for order in range(1, _ORDERS + 1):
        vectors = weights[:, orders == order]
        norms = np.linalg.norm(vectors, axis=1, keepdims=True)
        vectors = vectors / np.where(norms > 0, norms, 1.0)
        kernel += vectors @ vectors.T / _ORDERS
    return kernel


def _spread(kernel: np.ndarray) -> float:
    values = np.sqrt(np.clip(np.linalg.eigvalsh(kernel), 0.0, None))
    if not values.sum():
        return 0.0
    return max(0.0, -math.log(values[-1] / values.sum()) / math.log(len(values)))


@dataclasses.dataclass(frozen=True)
class Diversity:
    """The diversity of several captions per image.

    Attributes:
      captions: Number of captions.
      corpus: "distinct %" (within its image, mean over images), "novel %" (only with training
        captions), "Div-1", "Div-2", "mBLEU-1" ... "mBLEU-4", "self-CIDEr".
      oracle: Key of a score -> score of an image's best caption, mean over images, times 100.
      mean: Key of a score -> mean score of an image's captions, mean over images, times 100.
      best: Key of a score -> image id -> position of the best caption; the first one of a tie.
      notes: Remarks on the tokens, one line each.
    """

    captions: int
    corpus: dict[str, float]
    oracle: dict[str, float]
    mean: dict[str, float]
    best: dict[str, dict[int, int]]
    notes: list[str] = dataclasses.field(default_factory=list)


def measure(
    captions: Mapping[int, Sequence[str]],
    references: Mapping[int, Sequence[str]],
    scorer: CocoScorer,
    training: Iterable[str] = (),
) -> Diversity:
    """Computes every score of this module.

    Args:
      captions: Image id -> two or more captions, not tokenized. The number may differ between
        images.
      references: Image id -> reference captions of the same images, not tokenized.
      scorer: Tokenizes the captions and computes the scores for the oracle.
      training: Training captions of the model, not tokenized. Without them "novel %" is left out.
    """
    training = list(training)
    gold = scorer.tokenize_references(references)
    flat = iter(scorer.tokenize([caption for group in captions.values() for caption in group]))
    cut = {image: [next(flat) for _ in group] for image, group in captions.items()}
    corpus = {"distinct %": 100.0 * float(np.mean([len({*g}) / len(g) for g in cut.values()]))}
    if training:
        words = scorer.tokenize(training)
        corpus["novel %"] = novel_share((c for group in cut.values() for c in group), words)
    corpus |= {f"Div-{order}": div(cut, order) for order in (1, 2)}
    corpus |= {f"mBLEU-{order}": score for order, score in enumerate(mbleu(cut), 1)}
    corpus["self-CIDEr"] = float(np.mean(list(self_cider(cut, gold).values())))
    scores, keys = _all_scores(captions, references, scorer)
    best = {key: {image: _best(key, each[key]) for image, each in scores.items()} for key in keys}
    return Diversity(
        captions=sum(map(len, captions.values())),
        corpus=corpus,
        oracle={
            key: float(np.mean([scores[image][key][place] for image, place in own.items()]))
            for key, own in best.items()
        },
        mean={key: float(np.mean([np.mean(s[key]) for s in scores.values()])) for key in keys},
        best=best,
        notes=scorer.notes,
    )


def _best(key: str, scores: Sequence[float]) -> int:
    """Returns the position of the best score; the first one of a tie."""
    return int(np.argmin(scores) if key in LOWER else np.argmax(scores))


def summarize(
    captions: Mapping[int, Sequence[str]],
    references: Mapping[int, Sequence[str]],
    scorer: CocoScorer,
    training: Sequence[str] = (),
) -> tuple[dict[str, Any], str]:
    """Computes `measure`, or only the share of novel captions if an image has one caption.

    Args:
      captions, references, scorer, training: As for `measure`, with one or more captions per
        image.

    Returns:
      The values as a dictionary for JSON, and as text. If an image has one caption and there are
      no training captions, there are no values and the text says why. One image alone counts as
      such: its n-grams have no document frequencies.
    """
    if all(len(group) > 1 for group in captions.values()) and len(references) > 1:
        measured = measure(captions, references, scorer, training)
        values = {"diversity": measured.corpus, "oracle": measured.oracle, "mean": measured.mean}
        return values, format_table(measured)
    if not training:
        return {}, (
            "note: --diversity needs several images with several captions each, or the captions "
            "that the model was trained on"
        )
    best = [group[0] for group in captions.values()]
    novel = novel_share(scorer.tokenize(best), scorer.tokenize(training))
    return {"diversity": {"novel %": novel}}, f"novel captions: {novel:.1f} %"


def _all_scores(
    captions: Mapping[int, Sequence[str]], references: Mapping[int, Sequence[str]], scorer
) -> tuple[dict[int, dict[str, list[float]]], list[str]]:
    """Returns image id -> key -> score of each caption, and the list of keys."""
    by_image: dict[int, dict[str, list[float]]] = {
        image: collections.defaultdict(list) for image in captions
    }
    for number in range(max(map(len, captions.values()))):
        # An image with fewer captions repeats its last one; the repeated score is not recorded.
        shown = {image: group[min(number, len(group) - 1)] for image, group in captions.items()}
        scores = scorer.score(references, shown)
        for image, group in captions.items():
            if number < len(group):
                for key in scores.corpus:
                    by_image[image][key].append(scores.per_image[image][key])
    return by_image, list(scores.corpus)


def format_table(diversity: Diversity) -> str:
    """Returns the values as text with one line per score."""
    lines = [f"{diversity.captions} captions of {len(next(iter(diversity.best.values())))} images"]
    for key, value in diversity.corpus.items():
        digits = 1 if key.endswith("%") or key.startswith("mBLEU") else 3
        lines.append(f"{key:<12} {value:8.{digits}f}")
    lines.append(f"{'':<12} {'mean':>8} {'oracle':>8}")
    for key, best in diversity.oracle.items():
        lines.append(f"{key:<12} {diversity.mean[key]:8.2f} {best:8.2f}")
    return "\n".join(lines + [f"note: {note}" for note in diversity.notes])
