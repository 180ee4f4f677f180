"""The table and the claims: which runs are in a line, and what is compared."""

import numpy as np

from tfcap.measure.quality import jobs, tables
from tfcap.metrics.results import Scores

DEFAULT = (0.002, 0.1)


def scores(mean):
    values = mean + np.array([-1.0, 0.0, 1.0] * 5)
    return Scores({"CIDEr": mean}, {i: {"CIDEr": float(v)} for i, v in enumerate(values)})


def study(*named):
    """Scores and results of jobs: (row, stage, seeds, mean)."""
    found = {jobs.Job(row, stage, *DEFAULT, seeds): mean for row, stage, seeds, mean in named}
    results = {
        job: {"parameters": 2e6, "cpu_minutes": 1.5, "scores": {"CIDEr": mean}}
        for job, mean in found.items()
    }
    return {job: scores(mean) for job, mean in found.items()}, results


def cells(text):
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines()[2:]]


EVERY = (
    ("updown", "xe", (1,), 40.0),
    ("xlan", "xe", (1,), 43.0),
    ("xlan", "xe", (2,), 45.0),
    ("xlan", "scst", (1,), 50.0),
    ("xlan", "xe", (1, 2), 47.0),
)


def test_a_line_has_the_seeds_of_the_chosen_options():
    judged, results = study(*EVERY)
    judged[jobs.Job("xlan", "xe", 0.001, 0.3)] = scores(99.0)  # another point of the tuning
    lines = tables.systems(judged, {})
    rows = cells(tables.table(lines, results, {}))
    assert [(row[0], row[2], row[7]) for row in rows] == [
        ("Up-Down", "1", "40.0"),
        ("X-LAN", "2", "44.0"),
        ("X-LAN, 2 seeds together", "2", "47.0"),
        ("X-LAN, self-critical", "1", "50.0"),
    ]
    assert rows[0][1:5] == ["2.00 M", "1", "0.002, 0.1 (default)", "1.5"]
    best = {"xlan": jobs.Job("xlan", "xe", 0.001, 0.3)}
    results[best["xlan"]] = {**results[jobs.Job("xlan", "xe", *DEFAULT)], "scores": {"CIDEr": 99}}
    rows = cells(tables.table(tables.systems(judged, best), results, best))
    assert [(row[0], row[3], row[7]) for row in rows] == [
        ("Up-Down", "0.002, 0.1 (default)", "40.0"), ("X-LAN", "0.001, 0.3", "99.0")
    ]  # fmt: skip


def test_claims_are_told_with_differences_and_verdicts():
    judged, _ = study(*EVERY)
    rows = cells(tables.claims_table(tables.systems(judged, {})))
    assert [(row[0], row[1], row[3], row[4]) for row in rows] == [
        ("X-LAN is above Up-Down", "+4.0", "2 and 1", "holds"),
        ("X-LAN, self-critical is above X-LAN", "+6.0", "1 and 2", "holds"),
        ("X-LAN, 2 seeds together is above the best of X-LAN", "+2.0", "1 and 1", "holds"),
    ]
    judged, _ = study(("updown", "xe", (1,), 45.0), ("xlan", "xe", (1,), 44.0))
    (row,) = cells(tables.claims_table(tables.systems(judged, {})))
    assert row[1:] == ["-1.0", "-1.0 to -1.0", "1 and 1", "the opposite holds"]
    judged, _ = study(("updown", "xe", (1,), 45.0), ("xlan", "xe", (1,), 45.0 - 1e-9))
    (row,) = cells(tables.claims_table(tables.systems(judged, {})))
    assert row[1:3] == ["+0.0", "+0.0 to +0.0"]
    judged, _ = study(("updown", "xe", (1,), 45.0))
    assert tables.claims_table(tables.systems(judged, {})) == ""
