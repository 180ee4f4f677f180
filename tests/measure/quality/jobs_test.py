"""The order of the jobs of a study, and what each of them waits for."""

import dataclasses

import pytest

from tfcap.measure.quality import jobs

DEFAULT = (0.002, 0.1)


def options(**changes):
    rows = ("mrnn", "xlan")
    return jobs.Options("data", rows, **{"seeds": 2, "scst_examples": 100} | changes)


def finished(planned, **scores):
    """A score for each planned job; `scores` has those of rows."""
    return {job: scores.get(job.row, 1.0) for job in planned}


def test_each_row_runs_once_before_the_tuning_begins():
    planned = jobs.plan(options(tune=True), {})
    assert [(job.row, job.rate, job.dropout) for job in planned[:4]] == [
        ("mrnn", *DEFAULT), ("xlan", *DEFAULT), ("mrnn", 0.002, 0.3), ("xlan", 0.002, 0.3)
    ]  # fmt: skip
    assert len(planned) == len(set(planned)) == 12
    assert {(job.rate, job.dropout) for job in planned if job.row == "xlan"} == {
        (rate, dropout) for rate in (0.0005, 0.001, 0.002) for dropout in (0.1, 0.3)
    }
    assert {(job.stage, job.seeds) for job in planned} == {("xe", (1,))}


def test_the_other_seeds_have_the_best_options_of_their_row():
    first = jobs.plan(options(tune=True), {})
    scores = finished(first) | {jobs.Job("xlan", "xe", 0.001, 0.3): 5.0}
    scores.pop(jobs.Job("mrnn", "xe", 0.0005, 0.3))  # its tuning has not ended
    planned = jobs.plan(options(tune=True), scores)
    assert planned[:12] == first
    assert planned[12:] == [
        jobs.Job("xlan", "xe", 0.001, 0.3, (2,)),
        jobs.Job("xlan", "scst", 0.001, 0.3, (1,)),
    ]


def test_self_critical_runs_and_ensembles_wait_for_their_runs():
    of = options()
    assert jobs.plan(of, {}) == [jobs.Job("mrnn", "xe", *DEFAULT), jobs.Job("xlan", "xe", *DEFAULT)]
    scores = finished(jobs.plan(of, {}))
    scores = finished(jobs.plan(of, scores))
    assert [(job.row, job.stage, job.seeds) for job in jobs.plan(of, scores)[2:]] == [
        ("mrnn", "xe", (2,)), ("xlan", "xe", (2,)), ("xlan", "scst", (1,)), ("xlan", "scst", (2,)),
        ("mrnn", "xe", (1, 2)), ("xlan", "xe", (1, 2)),
    ]  # fmt: skip
    last = jobs.plan(of, finished(jobs.plan(of, scores)))[-1]
    assert (last.row, last.stage, last.seeds) == ("xlan", "scst", (1, 2))
    assert not any(job.stage == "scst" for job in jobs.plan(options(scst_examples=0), scores))
    assert len(jobs.plan(options(seeds=1), scores)) == 3  # one seed has no ensemble


def test_nothing_is_built_on_a_failed_run():
    scores = finished(jobs.plan(options(), {}), xlan=jobs.FAILED)
    assert {job.row for job in jobs.plan(options(), scores)[2:]} == {"mrnn"}
    scores = finished(jobs.plan(options(), finished(jobs.plan(options(), {}))))
    scores[jobs.Job("mrnn", "xe", *DEFAULT, (2,))] = jobs.FAILED
    assert all(job.row == "xlan" for job in jobs.plan(options(), scores) if len(job.seeds) > 1)


@pytest.mark.parametrize("field", ["row", "stage", "rate", "dropout", "seeds"])
def test_each_job_has_files_of_its_own(field):
    job = jobs.Job("mrnn", "xe", *DEFAULT)
    other = {"row": "xlan", "stage": "scst", "rate": 0.5, "dropout": 0.5, "seeds": (1, 2)}
    assert dataclasses.replace(job, **{field: other[field]}).name != job.name
    assert job.name == "mrnn_xe_lr0.002_dropout0.1_seed1"
