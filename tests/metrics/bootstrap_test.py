"""The bootstrap equals literal loops and pycocoevalcap, and its intervals have their level."""

import numpy as np
import pytest
from pycocoevalcap.bleu.bleu import Bleu

from tfcap.metrics import bootstrap, coco
from tfcap.metrics import java as java_lib
from tfcap.metrics.results import Scores


def mean_scores(values, key="CIDEr"):
    """Scores whose corpus score is the mean over images."""
    each = {image: {key: float(value)} for image, value in enumerate(values)}
    return Scores({key: float(np.mean(values))}, each)


@pytest.fixture(scope="module")
def scorer(java):
    with coco.CocoScorer(("BLEU", "ROUGE-L", "CIDEr"), java=java.path) as fast:
        yield fast


@pytest.fixture(scope="module")
def scores(scorer, references, predictions):
    return scorer.score(references, predictions)


def test_draws_equal_those_of_a_plain_loop():
    generator = np.random.default_rng(4)
    literal = []
    for _ in range(50):
        counts = [0] * 7
        for _ in range(7):
            counts[generator.integers(7)] += 1
        literal.append(counts)
    np.testing.assert_array_equal(np.concatenate(list(bootstrap.draws(7, 50, 4))), literal)


def test_intervals_and_differences_equal_a_literal_loop():
    rng = np.random.default_rng(0)
    first, second = rng.normal(50, 20, (2, 30)), rng.normal(55, 20, (3, 30))
    counts = np.concatenate(list(bootstrap.draws(30, 200, 3)))
    seeds = np.random.default_rng([3, 1])
    drawn = [seeds.integers(len(runs), size=(len(runs), 200)) for runs in (first, second)]
    means, changes = [], []
    for sample, row in enumerate(counts):
        scores = [
            np.mean([np.sum(row * runs[run]) / 30 for run in chosen[:, sample]])
            for runs, chosen in zip((first, second), drawn, strict=True)
        ]
        means.append(scores[0])
        changes.append(scores[1] - scores[0])
    runs = [[mean_scores(values) for values in system] for system in (first, second)]
    options = {"samples": 200, "level": 90.0, "seed": 3}
    interval = bootstrap.intervals(runs[0], **options)["CIDEr"]
    np.testing.assert_allclose(
        [interval.value, interval.low, interval.high],
        [first.mean(), *np.percentile(means, [5, 95])],
    )
    change = bootstrap.differences(*runs, **options)["CIDEr"]
    np.testing.assert_allclose(
        [change.value, change.low, change.high],
        [second.mean() - first.mean(), *np.percentile(changes, [5, 95])],
    )
    assert change.wins == np.mean(np.array(changes) > 0)
    assert change.p == pytest.approx(min(1, 2 * (1 + np.sum(np.array(changes) <= 0)) / 201))


def test_rounding_is_neither_a_win_nor_a_loss():
    """One of 200 captions is better: a third of the resamples do not draw it, and are a tie."""
    rng = np.random.default_rng(0)
    first = rng.normal(50, 20, 200)
    second = first.copy()
    second[0] += 50
    one, two = mean_scores(first), mean_scores(second)
    one.corpus["CIDEr"] += 7e-15  # pycocoevalcap sums in another order
    two.corpus["CIDEr"] -= 7e-15
    drawn = np.mean(np.concatenate(list(bootstrap.draws(200, 500, 1)))[:, 0] > 0)
    for scores, other, sign in ((one, two, 1), (two, one, -1)):
        result = bootstrap.differences(scores, other, samples=500)
        change = result["CIDEr"]
        assert change.wins == pytest.approx(0.5 + sign * drawn / 2)
        assert change.p > 0.5 and change.verdict == "not significant"
        assert 0.0 in (change.low, change.high)


def test_bleu_of_a_resample_equals_bleu_of_the_repeated_captions(
    scorer, scores, references, predictions
):
    gold = scorer.tokenize_references(references)
    cut = dict(zip(gold, scorer.tokenize([predictions[i] for i in gold]), strict=True))
    for counts in np.concatenate(list(bootstrap.draws(len(gold), 5, 2))):
        drawn = [i for i, times in zip(gold, counts, strict=True) for _ in range(int(times))]
        expected, _ = Bleu(4).compute_score(
            {row: gold[i] for row, i in enumerate(drawn)},
            {row: [cut[i]] for row, i in enumerate(drawn)},
            verbose=0,
        )
        result = bootstrap.bleu(counts[None] @ scores.statistics["BLEU"])
        np.testing.assert_allclose(result[0], 100 * np.array(expected), rtol=1e-12)


def test_bleu_of_short_and_empty_captions():
    counts = np.array([[3, 6, 3, 2, 1, 0, 2, 1, 0, 0], [0.0, 5] + [0] * 8])
    result = bootstrap.bleu(counts)
    assert result[0, 0] == pytest.approx(100 * 2 / 3 * np.exp(1 - 2), rel=1e-6)
    np.testing.assert_array_equal(result[1], 0.0)


def test_meteor_is_computed_from_sums_or_from_its_mean_over_images():
    counts = np.array([[1.0, 4.0], [3.0, 4.0], [8.0, 8.0], [0.0, 1.0]])
    each = {image: {"METEOR": 100 * right / words} for image, (right, words) in enumerate(counts)}
    scores = Scores({"METEOR": 100 * 12 / 17}, each, statistics={"METEOR": counts})

    def ratio(sums):
        return list(100 * sums[:, 0] / sums[:, 1])

    def broken(sums):
        raise java_lib.JavaError("gone")

    drawn = np.concatenate(list(bootstrap.draws(4, 100, 1))) @ counts
    exact = bootstrap.intervals(scores, samples=100, meteor_of=ratio)["METEOR"]
    assert (exact.low, exact.high) == pytest.approx(tuple(np.percentile(ratio(drawn), [2.5, 97.5])))
    bare = bootstrap.intervals(scores, samples=100)
    assert bootstrap.intervals(scores, samples=100, meteor_of=broken) == bare
    means = np.concatenate(list(bootstrap.draws(4, 100, 1))) @ [25, 75, 100, 0] / 4
    moved = np.percentile(means, [2.5, 97.5]) - 50 + 100 * 12 / 17
    assert (bare["METEOR"].low, bare["METEOR"].high) == pytest.approx(tuple(moved))
    assert bare["METEOR"].value == exact.value == scores.corpus["METEOR"]


def test_images_are_paired_by_id_and_not_by_position(scores):
    backwards = dict(reversed(scores.per_image.items()))
    counts = {name: table[::-1] for name, table in scores.statistics.items()}
    other = Scores(scores.corpus, backwards, statistics=counts)
    result = bootstrap.differences(scores, other, samples=20)
    for key, change in result.items():
        assert (change.low, change.high) == pytest.approx((0, 0), abs=1e-9), key


def test_intervals_hold_the_true_mean_at_their_level():
    """With 300 test sets of 80 images, about 90 % of the 90 % intervals hold the true mean."""
    rng = np.random.default_rng(7)
    held = caught = 0
    for trial in range(300):
        hard = rng.exponential(30, 80)  # Some images are difficult for both systems.
        first = mean_scores(hard + rng.normal(0, 5, 80))
        second = mean_scores(hard + 2.0 + rng.normal(0, 5, 80))
        alone = bootstrap.intervals(first, samples=200, level=90, seed=trial)["CIDEr"]
        held += alone.low <= 30 <= alone.high
        change = bootstrap.differences(first, second, samples=200, level=90, seed=trial)
        caught += change["CIDEr"].low <= 2.0 <= change["CIDEr"].high
        # The paired interval is narrower than half of either single interval.
        assert change["CIDEr"].high - change["CIDEr"].low < (alone.high - alone.low) / 2
    assert 0.83 < held / 300 < 0.95
    assert 0.83 < caught / 300 < 0.95
