"""Reranks the hypotheses of a split, says how ranks change, and scores several settings.

Letters: k neighbours, m best.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from tfcap.data.prepared import PreparedData
from tfcap.metrics.coco import CocoScorer
from tfcap.metrics.results import Hypotheses
from tfcap.reranking.consensus import Consensus, Ranked
from tfcap.reranking.split import sweep_split

METRICS = ("BLEU", "CIDEr")  # of a sweep; they are fast
SHOWN = ("BLEU-4", "CIDEr")


class Reranked(NamedTuple):
    """The captions of a split in their new order.

    Attributes:
      hypotheses: the captions and their new scores.
      ranks_before: image id -> the rank of each caption before, from 1.
      sweep: the rows of `score_sweep`.
    """

    hypotheses: Hypotheses
    ranks_before: dict[int, list[int]]
    sweep: list[dict[str, Any]]


def rerank(
    reranker: Consensus,
    data: PreparedData,
    split: str,
    captions: Mapping[int, Sequence[str]],
    references: Mapping[int, Sequence[str]],
    batch_size: int,
    max_regions: int | None = None,
    oracle: bool = False,
    settings: Sequence[tuple[int, int]] = (),
) -> Reranked:
    """Reranks the captions of a split, and prints how ranks change and the table of a sweep.

    Args:
      reranker, data, split, captions, batch_size, max_regions: as of `split.sweep_split`.
      references: the references of the images that have any.
      oracle: whether the image's own references rank, the oracle of the paper.
      settings: further pairs (k, m), whose first captions are scored.

    Raises:
      ValueError: there are no captions.
    """
    if not captions:
        raise ValueError(
            f"Reranking needs captions of at least one image of split {split}. Received: none. "
            "Give a file of captions that is not empty."
        )
    if max(map(len, captions.values())) < 2:
        print("note: --rerank has no effect, because each image has one caption. Give --beam.")
    rows: list[dict[str, Any]] = []
    if oracle:
        own = [references.get(image, []) for image in captions]
        ranked = dict(zip(captions, reranker.oracle(list(captions.values()), own), strict=True))
    else:
        setting = (reranker.neighbours, reranker.best)
        every = sweep_split(
            reranker,
            data,
            split,
            captions,
            list(dict.fromkeys([setting, *settings])),
            batch_size,
            max_regions,
        )
        ranked = every[setting]
        if settings and references:
            rows = score_sweep({pair: every[pair] for pair in settings}, references)
            print(format_sweep(rows))
    print(describe_ranks(ranked.values()))
    found = Hypotheses(
        {image: one.captions for image, one in ranked.items()},
        {image: one.scores.tolist() for image, one in ranked.items()},
    )
    return Reranked(found, {image: ranks_before(one) for image, one in ranked.items()}, rows)


def score_sweep(
    found: Mapping[tuple[int, int], Mapping[int, Ranked]],
    references: Mapping[int, Sequence[str]],
) -> list[dict[str, Any]]:
    """Scores the first caption of each image for each pair (k, m).

    Args:
      found: from `sweep_split`.
      references: the references of the scored images.

    Returns:
      For each pair `neighbours` (k), `best` (m), BLEU-4 and CIDEr.
    """
    rows = []
    with CocoScorer(METRICS) as scorer:
        for (k, m), ranked in found.items():
            captions = {image: ranked[image].captions[0] for image in references}
            corpus = scorer.score(references, captions).corpus
            scores = {name: corpus[name] for name in SHOWN if name in corpus}
            rows.append({"neighbours": k, "best": m, **scores})
    return rows


def format_sweep(rows: Sequence[Mapping[str, Any]]) -> str:
    """Returns the rows of `score_sweep` as a table."""
    names = [name for name in SHOWN if name in rows[0]]
    lines = [f"{'k':>5} {'m':>5} " + " ".join(f"{name:>7}" for name in names)]
    for row in rows:
        scores = " ".join(f"{row[name]:7.1f}" for name in names)
        lines.append(f"{row['neighbours']:5d} {row['best']:5d} {scores}")
    return "\n".join(lines)


def ranks_before(ranked: Ranked) -> list[int]:
    """Returns the rank of each caption before reranking; ranks begin at 1."""
    return [int(place) + 1 for place in ranked.order]


def describe_ranks(every: Iterable[Ranked]) -> str:
    """Returns a line with the ranks that the first captions had before reranking."""
    counts = Counter(ranks_before(ranked)[0] for ranked in every)
    images = sum(counts.values())
    shares = ", ".join(f"{rank}: {100 * counts[rank] / images:.1f} %" for rank in sorted(counts))
    return f"ranks of the first captions before reranking: {shares}"
