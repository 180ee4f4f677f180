"""Scores of groups of images, such as in-domain, near-domain and out-domain of nocaps."""

from collections.abc import Mapping, Sequence

from pycocoevalcap.cider import cider

from tfcap.metrics import bootstrap
from tfcap.metrics.coco import CocoScorer
from tfcap.metrics.results import Scores


def score_domains(
    scores: Scores,
    references: Mapping[int, Sequence[str]],
    predictions: Mapping[int, str],
    domains: Mapping[int, str],
    scorer: CocoScorer,
) -> dict[str, dict[str, float]]:
    """Scores each domain as a set of its own, as if its images were in files of their own.

    So the document frequencies of CIDEr are those of the references of the domain, and the score of
    all images is not the mean over the domains. No caption is scored again by METEOR or SPICE.

    Args:
      scores: the scores of all images, the result of `scorer.score(references, predictions)`.
      references: image id -> references, not tokenized.
      predictions: image id -> caption, not tokenized.
      domains: image id -> name of the domain. Images without a domain are left out.
      scorer: the scorer that computed `scores`.

    Returns:
      Name of the domain -> key of the score, such as "CIDEr" -> score of the domain, times 100. The
      key "images" has the number of images. The domains are in alphabetical order.
    """
    gold = scorer.tokenize_references(references)
    tokens = scorer.tokenize([predictions[image] for image in gold])
    captions = {image: [text] for image, text in zip(gold, tokens, strict=True)}
    result = {}
    for domain in sorted(set(domains.values())):
        images = [image for image in scores.per_image if domains.get(image) == domain]
        if not images:
            continue
        values = bootstrap.score_images(scores, images, meteor_of=scorer.meteor_of)
        if "CIDEr" in values:
            texts = [{image: own[image] for image in images} for own in (gold, captions)]
            values["CIDEr"] = 100.0 * float(cider.Cider().compute_score(*texts)[0])
        result[domain] = {"images": len(images), **values}
    return result
