"""How varied captions are: over a data set, and among several captions of one image.

A falling share of distinct captions over a data set means collapse. Several captions of an image
(samples, beams, the references of people) are compared by

* *Div-1, Div-2*: distinct n-grams of the captions of an image over their words. Shetty et al.,
  "Speaking the same language", ICCV 2017, after Li et al., "A diversity-promoting
  objective function", NAACL 2016. Both divide by words, Div-2 too.
* *mBLEU-n*: BLEU of a caption with the other captions of its image as references; low is varied.
  Shetty et al. 2017 again. It is a BLEU of the corpus for the first captions of all images, for the
  second ones and so on, and then the mean.
* *self-CIDEr*: Wang and Chan, "Describing like humans", CVPR 2019. Captions of an image as vectors
  whose products are their CIDEr; 0 if they are all the same, 1 if they share nothing.
* *oracle*: the mean over images of the best score that any caption of the image has.

Here captions are tokenized: words separated by single spaces, `coco.CocoScorer.tokenize`.
Letters: B images, S captions of an image, G n-grams.
"""

import collections
import dataclasses
import math
from collections.abc import Iterable, Mapping, Sequence

import numpy as np
from pycocoevalcap.bleu import bleu_scorer
from pycocoevalcap.cider import cider_scorer

from tfcap.metrics import results, tokenizer
from tfcap.metrics.coco import CocoScorer

_ORDERS = 4

Sets = Mapping[int, Sequence[str]]  # image id -> its captions, tokenized


def distinct_share(predictions: Mapping[int, str]) -> float:
    """Returns the share of captions that are different from each other, in percent.

    Args:
        predictions: Image id -> caption. Captions that differ in white space only are the same.

    Returns:
        100 if no two images share a caption, 100 / n if all n have the same one.

    Raises:
        ValueError: There are no predictions.
    """
    if not predictions:
        raise ValueError("no predictions to compare; received an empty mapping")
    distinct = {tokenizer.one_line(caption) for caption in predictions.values()}
    return 100.0 * len(distinct) / len(predictions)


def novel_share(captions: Iterable[str], training: Iterable[str]) -> float:
    """Returns the share of captions that are no training caption word for word, in percent.

    Args:
        captions: Of a model, tokenized; each counts, equal ones too.
        training: Those it was trained on, tokenized alike.

    Raises:
        ValueError: There are no captions.
    """
    captions, seen = list(captions), set(training)
    if not captions:
        raise ValueError("no captions to compare with the training captions")
    return 100.0 * sum(caption not in seen for caption in captions) / len(captions)


def div(captions: Sets, order: int) -> float:
    """Div-1 or Div-2: mean over images of distinct n-grams over words; 1 is the most varied.

    Args:
        captions: At least one caption per image. An image without a word counts 0.
        order: n.

    Raises:
        ValueError: There are no captions.
    """
    _check(captions, fewest=1)
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
    """mBLEU-1 ... 4, times 100: BLEU of captions against the others of their image.

    Args:
        captions: At least two per image. Where images have different numbers of captions, round j
            is about the images that have a caption j, and rounds count by their images.

    Raises:
        ValueError: An image has only one caption.
    """
    _check(captions, fewest=2)
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
    """Diversity of the captions of each image by the eigenvalues of their CIDEr.

    K [S, S] holds the CIDEr of every two captions of an image, without its factor 10: the mean
    over n = 1 ... 4 of the cosine of their n-gram counts weighted by ln N - ln df. With its
    eigenvalues l_1 >= ... >= l_S the diversity is -log_S(sqrt(l_1) / sum of the sqrt(l_i)); the
    roots are the singular values of the captions' vectors. CIDEr is meant and not CIDEr-D, which
    clips and so is no product of vectors; the public evaluation code does the same.

    Args:
        captions: At least two per image.
        references: Image id -> reference captions, the N images that document frequencies are
            counted in; the images of the data set scored, so that a value belongs to a data set.

    Returns:
        Image id -> diversity, 0 to 1. Captions without any weighted n-gram are all the same: 0.

    Raises:
        ValueError: An image has only one caption, or there are fewer than two reference images.
    """
    _check(captions, fewest=2)
    if len(references) < 2:
        raise ValueError("self-CIDEr needs references of at least two images for its weights")
    frequencies: collections.Counter = collections.Counter()
    for group in references.values():
        frequencies.update({gram for caption in group for gram in cider_scorer.precook(caption)})
    return {
        image: _spread(_kernel(group, frequencies, len(references)))
        for image, group in captions.items()
    }


def _kernel(group: Sequence[str], frequencies: Mapping[tuple, int], images: int) -> np.ndarray:
    """CIDEr of every two captions, over 10: float64 [S, S]."""
    counts = [cider_scorer.precook(caption, _ORDERS) for caption in group]
    columns = {gram: column for column, gram in enumerate(set().union(*counts))}
    weights = np.zeros((len(group), len(columns)))  # [S, G]
    for row, found in enumerate(counts):
        for gram, count in found.items():
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
    """All of the above for several captions per image.

    Attributes:
        captions: Their number.
        corpus: "distinct %" (within its image, mean over images), "novel %" (only with training
            captions), "Div-1", "Div-2", "mBLEU-1" ... "mBLEU-4", "self-CIDEr".
        oracle: Key of a score -> mean over images of the best caption's, times 100.
        mean: The same of the mean caption.
        best: Key of a score -> image id -> position of its best caption, the first of equals.
    """

    captions: int
    corpus: dict[str, float]
    oracle: dict[str, float]
    mean: dict[str, float]
    best: dict[str, dict[int, int]]


def measure(
    captions: Mapping[int, Sequence[str]],
    references: Mapping[int, Sequence[str]],
    scorer: CocoScorer,
    training: Iterable[str] = (),
) -> Diversity:
    """Computes every score of this module.

    Args:
        captions: Image id -> two or more captions, as written; as many for some images as you
            like.
        references: Image id -> reference captions of the same images, as written.
        scorer: Tokenizes, and computes the oracle of its metrics.
        training: Captions that the model was trained on, as written; none leaves "novel %" out.

    Raises:
        ValueError: Other images, or an image with fewer than two captions.
    """
    results.check_ids(references, captions)
    _check(captions, fewest=2)
    gold = scorer.tokenize_references(references)
    flat = iter(scorer.tokenize([caption for group in captions.values() for caption in group]))
    cut = {image: [next(flat) for _ in group] for image, group in captions.items()}
    corpus = {"distinct %": 100.0 * float(np.mean([len({*g}) / len(g) for g in cut.values()]))}
    training = list(training)
    if training:
        words = scorer.tokenize(training)
        corpus["novel %"] = novel_share((c for group in cut.values() for c in group), words)
    corpus |= {f"Div-{order}": div(cut, order) for order in (1, 2)}
    corpus |= {f"mBLEU-{order}": score for order, score in enumerate(mbleu(cut), 1)}
    corpus["self-CIDEr"] = float(np.mean(list(self_cider(cut, gold).values())))
    scores, keys = _all_scores(captions, references, scorer)
    return Diversity(
        captions=sum(map(len, captions.values())),
        corpus=corpus,
        oracle={key: float(np.mean([max(s[key]) for s in scores.values()])) for key in keys},
        mean={key: float(np.mean([np.mean(s[key]) for s in scores.values()])) for key in keys},
        best={key: {i: int(np.argmax(s[key])) for i, s in scores.items()} for key in keys},
    )


def _all_scores(
    captions: Mapping[int, Sequence[str]], references: Mapping[int, Sequence[str]], scorer
) -> tuple[dict[int, dict[str, list[float]]], list[str]]:
    """Image id -> key -> the score of each of its captions; and the keys."""
    found: dict[int, dict[str, list[float]]] = {
        image: collections.defaultdict(list) for image in captions
    }
    for number in range(max(map(len, captions.values()))):
        # An image with fewer captions shows its last one again, which is not recorded.
        shown = {image: group[min(number, len(group) - 1)] for image, group in captions.items()}
        scores = scorer.score(references, shown)
        for image, group in captions.items():
            if number < len(group):
                for key in scores.corpus:
                    found[image][key].append(scores.per_image[image][key])
    return found, list(scores.corpus)


def format_table(diversity: Diversity) -> str:
    """Returns it as text: a line per score."""
    lines = [f"{diversity.captions} captions of {len(next(iter(diversity.best.values())))} images"]
    for key, value in diversity.corpus.items():
        digits = 1 if key.endswith("%") or key.startswith("mBLEU") else 3
        lines.append(f"{key:<10} {value:8.{digits}f}")
    lines.append(f"{'':<10} {'mean':>8} {'oracle':>8}")
    for key, best in diversity.oracle.items():
        lines.append(f"{key:<10} {diversity.mean[key]:8.2f} {best:8.2f}")
    return "\n".join(lines)


def _check(captions: Mapping[int, Sequence[str]], fewest: int) -> None:
    if not captions:
        raise ValueError("no captions to compare; received an empty mapping")
    for image, group in captions.items():
        if isinstance(group, str) or len(group) < fewest:
            raise ValueError(
                f"image {image} needs {fewest} or more captions to be compared with each other; "
                f"received {group!r:.100}"
            )
