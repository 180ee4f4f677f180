"""Measures the diversity of captions over a data set and among several captions of one image.

The measure over a data set is the share of distinct captions: a low share shows that the model
repeats few captions. The measures for several captions of an image (samples, beams or human
references) are:

* *Div-1, Div-2*: number of distinct words (Div-1) or bigrams (Div-2) in the captions of an image,
  divided by the number of words of these captions. Shetty et al., "Speaking the same language",
  ICCV 2017, after Li et al., "A diversity-promoting objective function", NAACL 2016.
* *mBLEU-n*: BLEU of a caption with the other captions of its image as references; a low
  value means high diversity. Shetty et al., 2017. BLEU is computed for the set of the first
  captions of all images, for the set of the second captions, and so on; mBLEU is the mean of these
  values.
* *self-CIDEr*: the diversity of the captions of an image, from the CIDEr of each pair of them. It
  is 0 if all captions are the same, and 1 if they share no word. Wang and Chan, "Describing like
  humans", CVPR 2019.
* *oracle*: the score of the best caption of an image, mean over images. The best score is the
  highest one. For CHAIRi and CHAIRs it is the lowest one.

Captions are tokenized by `coco.CocoScorer.tokenize`: words separated by single spaces.
Letters: B images, S captions of an image, G n-grams.
"""

import collections
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
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
    """Returns the number of different captions, in percent of the number of all captions.

    Captions that differ in white space only count as the same caption.

    Args:
      predictions: image id -> caption.

    Example:
      >>> distinct_share({1: "a dog", 2: "a cat", 3: "a dog", 4: "a dog"})
      50.0
    """
    distinct = {one_line(caption) for caption in predictions.values()}
    return 100.0 * len(distinct) / len(predictions)


def novel_share(captions: Iterable[str], training: Iterable[str]) -> float:
    """Returns the share of captions that do not occur among the training captions, in percent.

    Args:
      captions: captions, each as tokens with single spaces between them.
      training: the captions that the model was trained on, in the same form.

    Example:
      >>> novel_share(["a dog", "a red dog"], training=["a dog", "a cat"])
      50.0
    """
    captions = list(captions)
    training = set(training)
    return 100.0 * sum(caption not in training for caption in captions) / len(captions)


def div(captions: Sets, order: int) -> float:
    """Computes Div-n: the number of different n-grams in the captions of an image, per word.

    This number is divided by the number of words of these captions. More diverse captions have a
    higher value.

    Args:
      captions: image id -> captions, each as tokens with single spaces between them.
      order: number of words of an n-gram, n.

    Returns:
      The mean over images, 0 to 1. An image without words counts as 0.

    Example:
      >>> div({1: ["a red dog", "a dog"]}, order=1)  # 3 of 5 words
      0.6
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
    """Computes mBLEU-1 ... 4: BLEU of each caption against the other captions of its image.

    BLEU is computed for the set of the first captions of all images, for the set of the second
    captions, and so on; the result is the mean over the sets. A low value means diverse captions.
    If images have different numbers of captions, set j has only the images with at least j
    captions, and its weight in the mean is the number of these images.

    Args:
      captions: image id -> at least two captions, each as tokens with single spaces between them.

    Returns:
      The list of mBLEU-1, mBLEU-2, mBLEU-3 and mBLEU-4, each from 0 to 100.

    Example:
      >>> [round(score) for score in mbleu({1: ["a red dog", "a red cat"]})]
      [67, 58, 0, 0]
    """
    rounds = []
    sizes = []
    for number in range(max(map(len, captions.values()))):
        groups = [list(group) for group in captions.values() if len(group) > number]
        scorer = bleu_scorer.BleuScorer(n=_ORDERS)
        for group in groups:
            scorer += (group[number], group[:number] + group[number + 1 :])
        rounds.append(scorer.compute_score(option="closest")[0])
        sizes.append(len(groups))
    return (100.0 * np.average(rounds, axis=0, weights=sizes)).tolist()


def self_cider(captions: Sets, references: Sets) -> dict[int, float]:
    """Computes self-CIDEr: the diversity of the captions of each image, from the CIDEr of pairs.

    A caption has a vector for each n = 1 ... 4: the counts of its n-grams, each times ln N - ln df.
    N is the number of images in `references`, and df is the number of these images whose references
    contain the n-gram, but at least 1. The CIDEr of two captions is the mean over n of the cosine
    of their vectors, here without the usual factor 10.

    For S captions of an image, the matrix K [S, S] holds the CIDEr of each pair. Its eigenvalues
    are l_1 >= ... >= l_S. The diversity is -log_S(sqrt(l_1) / sum of sqrt(l_i)). Like the public
    evaluation code, this function uses CIDEr and not CIDEr-D, which clips counts and so is not an
    inner product.

    Args:
      captions: image id -> at least two captions, each as tokens with single spaces between them.
      references: image id -> references in the same form.

    Returns:
      Image id -> diversity: 0 if all captions are the same, 1 if no two share a word. It is also 0
      if ln N - ln df is 0 for every n-gram of the captions.

    Example:
      >>> references = {1: ["a red bus"], 2: ["two dogs"]}
      >>> self_cider({1: ["red bus", "red bus"], 2: ["two dogs", "red bus"]}, references)
      {1: 0.0, 2: 1.0}
    """
    frequencies: collections.Counter = collections.Counter()
    for group in references.values():
        frequencies.update({gram for caption in group for gram in cider_scorer.precook(caption)})
    spreads = {}
    for image, group in captions.items():
        kernel = _kernel(group, frequencies, len(references))
        values = np.sqrt(np.clip(np.linalg.eigvalsh(kernel), 0.0, None))
        share = values[-1] / values.sum() if values.any() else 1.0
        spreads[image] = max(0.0, -math.log(share) / math.log(len(values)))
    return spreads


def _kernel(group: Sequence[str], frequencies: Mapping[tuple, int], images: int) -> np.ndarray:
    """Computes the CIDEr of each pair of captions, divided by 10: float64 [S, S]."""
    counts = [cider_scorer.precook(caption, _ORDERS) for caption in group]
    columns = {gram: column for column, gram in enumerate(set().union(*counts))}
    weights = np.zeros((len(group), len(columns)))  # [S, G]
    for row, grams in enumerate(counts):
        for gram, count in grams.items():
            idf = math.log(images) - math.log(max(1, frequencies.get(gram, 0)))
            weights[row, columns[gram]] = count * idf
    orders = np.array([len(gram) for gram in columns], int)
    kernel = np.zeros((len(group), len(group)))
    for order in range(1, _ORDERS + 1):
        vectors = weights[:, orders == order]
        norms = np.linalg.norm(vectors, axis=1, keepdims=True)
        vectors = vectors / np.where(norms > 0, norms, 1.0)
        kernel += vectors @ vectors.T / _ORDERS
    return kernel


def measure(
    captions: Mapping[int, Sequence[str]],
    references: Mapping[int, Sequence[str]],
    scorer: CocoScorer,
    training: Iterable[str] = (),
) -> dict[str, dict[str, float]]:
    """Measures how diverse the captions of each image are, and how good the best of them is.

    Args:
      captions: image id -> at least two captions, not tokenized.
      references: image id -> references, not tokenized.
      scorer: the scorer that tokenizes the captions and computes their scores.
      training: the captions that the model was trained on, not tokenized. Without them, "novel %"
        is left out.

    Returns:
      A dictionary of three dictionaries.

      * ``"diversity"``: name of a measure -> value. The names are "distinct %" (share of different
        captions of an image, mean over images), "novel %" (see `novel_share`), "Div-1", "Div-2",
        "mBLEU-1" ... "mBLEU-4" and "self-CIDEr". "Div-1", "Div-2" and "self-CIDEr" are from 0 to 1,
        the others from 0 to 100.
      * ``"oracle"``: key of a score, such as "CIDEr" -> the score of the best caption of an image,
        mean over images, times 100. The best score is the highest one, for CHAIRi and CHAIRs the
        lowest one.
      * ``"mean"``: key of a score -> the mean score of the captions of an image, mean over images,
        times 100.
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
    oracle = {}
    mean = {}
    for key in keys:
        best = min if key in LOWER else max
        oracle[key] = float(np.mean([best(values[key]) for values in scores.values()]))
        mean[key] = float(np.mean([np.mean(values[key]) for values in scores.values()]))
    return {"diversity": corpus, "oracle": oracle, "mean": mean}


def summarize(
    captions: Mapping[int, Sequence[str]],
    references: Mapping[int, Sequence[str]],
    scorer: CocoScorer,
    training: Sequence[str] = (),
) -> tuple[dict[str, Any], str]:
    """Measures the diversity of captions as far as the data allow.

    If there are several images with several captions each, all values of `measure` are computed.
    Otherwise only "novel %" is computed, for the first caption of each image, from `training`. If
    `training` is empty, too, nothing is computed, and the returned text says what is missing.

    Args:
      captions, references, scorer, training: as in `measure`, but images may have one caption.

    Returns:
      The values in nested dictionaries as `measure` returns them, which can be written as JSON; and
      a text that shows the values.
    """
    if all(len(group) > 1 for group in captions.values()) and len(references) > 1:
        values = measure(captions, references, scorer, training)
        count = f"{sum(map(len, captions.values()))} captions of {len(captions)} images"
        notes = [f"note: {note}" for note in scorer.notes]
        return values, "\n".join([count, *_rows(**values), *notes])
    if not training:
        return {}, (
            "note: `diversity` needs several images with several captions each, or the captions "
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


def _rows(diversity: dict, oracle: dict, mean: dict) -> Iterator[str]:
    """Yields the lines of the result of `measure` as text."""
    for key, value in diversity.items():
        digits = 1 if key.endswith("%") or key.startswith("mBLEU") else 3
        yield f"{key:<12} {value:8.{digits}f}"
    yield f"{'':<12} {'mean':>8} {'oracle':>8}"
    for key, best in oracle.items():
        yield f"{key:<12} {mean[key]:8.2f} {best:8.2f}"
