"""Makes the tables of docs/truth.md from the results in docs/results.

`python docs/tables.py` writes them into the page. The results are files of
`python -m tfcap.benchmark --what=quality --tune`, see docs/quality.md.
"""

import functools
import json
import pathlib
import re
from typing import Any

from tfcap.measure.quality import jobs, tables
from tfcap.measure.quality.rows import KEYS, ROWS
from tfcap.measure.quality.rows import claims as claims_about
from tfcap.metrics import bootstrap
from tfcap.metrics.results import Scores

FOLDER = pathlib.Path(__file__).resolve().parent / "results" / "flickr8k_lite"
OPTIONS = jobs.Options("data", KEYS, width=192, examples=90_000, scst_examples=0, tune=True)
Results = dict[jobs.Job, dict[str, Any]]


def job_of(name: str) -> jobs.Job:
    """The job whose result is in the file NAME.json."""
    found = re.fullmatch(r"(\w+)_(xe|scst)_lr([\d.]+)_dropout([\d.]+)_seed([\d+]+)", name)
    row, stage, rate, dropout, seeds = found.groups()
    return jobs.Job(row, stage, float(rate), float(dropout), tuple(map(int, seeds.split("+"))))


@functools.cache
def kept() -> Results:
    """The kept results, in the order of the systems, of the options and of the seeds."""
    found = {job_of(path.stem): json.loads(path.read_text()) for path in FOLDER.glob("*.json")}
    places = {key: number for number, key in enumerate(KEYS)}
    order = sorted(found, key=lambda job: (places[job.row], -job.rate, job.dropout, job.seeds))
    return {job: found[job] for job in order}


def best() -> dict[str, jobs.Job]:
    """The best run of each system of which all options were tried."""
    chosen = {job: result["chosen"] for job, result in kept().items()}
    return {job.row: job for job in jobs.best(OPTIONS, chosen)}


def tuning() -> str:
    """A table with a row for each point of the tuning."""
    rows = ["| system | rate, dropout | CIDEr, images that choose | CIDEr, images that judge |"]
    rows.append("|" + "---|" * 4)
    for job, result in kept().items():
        if job.seeds == (1,):
            rows.append(
                f"| {ROWS[job.row].name} | {job.rate:g}, {job.dropout:g} "
                f"| {result['chosen']:.1f} | {result['scores']['CIDEr']:.1f} |"
            )
    return "\n".join(rows) + "\n"


def _scores(job: jobs.Job) -> Scores:
    result = kept()[job]
    images = {image: {"CIDEr": one} for image, one in enumerate(result["images"]["CIDEr"])}
    return Scores({"CIDEr": result["scores"]["CIDEr"]}, images)


def points() -> str:
    """A table of the claims of the papers with the same options for both systems, seed 1.

    A difference is bold if its interval does not contain 0.
    """
    options = [(rate, dropout) for rate in jobs.RATES for dropout in jobs.DROPOUTS]
    head = ["claim", *(f"{rate:g}, {dropout:g}" for rate, dropout in options)]
    rows = [tables.cells(tuple(head)), "|" + "---|" * len(head)]
    for above, below in claims_about(list(best())):
        cells = [f"{ROWS[above].name} is above {ROWS[below].name}"]
        for point in options:
            pair = [_scores(jobs.Job(row, "xe", *point)) for row in (below, above)]
            change = bootstrap.differences_of_seeds(pair[:1], pair[1:])["CIDEr"]
            text = tables.short(change.value, "+")
            cells.append(text if change.verdict == "not told apart" else f"**{text}**")
        rows.append(tables.cells(tuple(cells)))
    return "\n".join(rows) + "\n"


def _tuned() -> dict[tuple, tables.System]:
    return tables.systems({job: _scores(job) for job in kept() if job.row in best()}, best())


def tuned() -> str:
    """The table of the systems of which all options were tried, with the best options."""
    return tables.table(_tuned(), kept(), best()) + "\n"


def seeds() -> str:
    """A table of the scores of each seed, for systems with more than one."""
    rows = ["| system | rate, dropout | CIDEr of seeds 1, 2 and 3 |", "|" + "---|" * 3]
    for (_, _, together), system in _tuned().items():
        if len(system.jobs) > 1 and not together:
            values = ", ".join(f"{one.corpus['CIDEr']:.1f}" for one in system.scores)
            first = system.jobs[0]
            rows.append(f"| {system.name} | {first.rate:g}, {first.dropout:g} | {values} |")
    return "\n".join(rows) + "\n"


def claims() -> str:
    """The claims of the papers about the systems of which all options were tried."""
    return tables.claims_table(_tuned()) + "\n"


TABLES = {
    "tuning": tuning,
    "points": points,
    "tuned": tuned,
    "tuned_seeds": seeds,
    "tuned_claims": claims,
}
