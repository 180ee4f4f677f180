"""Makes the tables of docs/truth.md from the results in docs/results.

`python docs/tables.py` writes them into the page. The results are files of
`python -m tfcap.benchmark --what=quality`, see docs/quality.md.
"""

import functools
import json
import pathlib
import re
from collections.abc import Iterable, Mapping
from typing import Any

from tfcap.measure.quality import jobs, tables
from tfcap.measure.quality.rows import KEYS, ROWS
from tfcap.measure.quality.rows import claims as claims_about
from tfcap.metrics import bootstrap
from tfcap.metrics.results import Scores

RESULTS = pathlib.Path(__file__).resolve().parent / "results"
PHOTOGRAPHS, DRAWINGS = "flickr8k_lite", "shapes"
# The studies with another width or number of regions than `PHOTOGRAPHS`, by the title of a column.
SIZES = {
    "width 192, 49 regions": PHOTOGRAPHS,
    "width 96": "flickr8k_lite_width96",
    "16 regions": "flickr8k_lite_grid4",
}
_DEFAULT = jobs.RATES[0], jobs.DROPOUTS[0]
_SIZED = ("xlan_row1", "xlan_row2", "xlan", "updown")
# What each study trained, by the directory of its results.
OPTIONS = {
    PHOTOGRAPHS: jobs.Options("", KEYS, 192, examples=90_000, scst_examples=100_000, tune=True),
    DRAWINGS: jobs.Options("", KEYS, 128, examples=200_000, scst_examples=0),
    **{
        study: jobs.Options("", _SIZED, width, examples=90_000, scst_examples=0)
        for study, width in zip(list(SIZES.values())[1:], (96, 192), strict=True)
    },
}
Results = dict[jobs.Job, dict[str, Any]]


def job_of(name: str) -> jobs.Job:
    """The job whose result is in the file NAME.json."""
    found = re.fullmatch(r"(\w+)_(xe|scst)_lr([\d.]+)_dropout([\d.]+)_seed([\d+]+)", name)
    row, stage, rate, dropout, seeds = found.groups()
    return jobs.Job(row, stage, float(rate), float(dropout), tuple(map(int, seeds.split("+"))))


@functools.cache
def kept(study: str) -> Results:
    """The kept results of a study, in the order of the systems, of the options and of the seeds."""
    paths = (RESULTS / study).glob("*.json")
    found = {job_of(path.stem): json.loads(path.read_text()) for path in paths}
    places = {key: number for number, key in enumerate(KEYS)}
    order = sorted(found, key=lambda job: (places[job.row], -job.rate, job.dropout, job.seeds))
    return {job: found[job] for job in order}


def best(study: str) -> dict[str, jobs.Job]:
    """The best run of each system of which all options of the study were tried."""
    chosen = {job: result["chosen"] for job, result in kept(study).items()}
    return {job.row: job for job in jobs.best(OPTIONS[study], chosen)}


def tuning() -> str:
    """A table with a row for each point of the tuning."""
    rows = ["| system | rate, dropout | CIDEr, images that choose | CIDEr, images that judge |"]
    rows.append("|" + "---|" * 4)
    for job, result in kept(PHOTOGRAPHS).items():
        if job.stage == "xe" and job.seeds == (1,):
            rows.append(
                f"| {ROWS[job.row].name} | {job.rate:g}, {job.dropout:g} "
                f"| {result['chosen']:.1f} | {result['scores']['CIDEr']:.1f} |"
            )
    return "\n".join(rows) + "\n"


def scores(study: str, job: jobs.Job) -> Scores:
    """The CIDEr of a job, of all images that judge and of each."""
    result = kept(study)[job]
    images = {image: {"CIDEr": one} for image, one in enumerate(result["images"]["CIDEr"])}
    return Scores({"CIDEr": result["scores"]["CIDEr"]}, images)


def points() -> str:
    """A table of the claims of the papers with the same options for both systems, seed 1."""
    options = [(rate, dropout) for rate in jobs.RATES for dropout in jobs.DROPOUTS]
    columns = {f"{rate:g}, {dropout:g}": (PHOTOGRAPHS, rate, dropout) for rate, dropout in options}
    return _differences(claims_about(list(best(PHOTOGRAPHS))), columns)


def sizes() -> str:
    """A table of the scores with other widths and numbers of regions, seed 1."""
    rows = [tables.cells(("system", *SIZES)), "|" + "---|" * (1 + len(SIZES))]
    for key in _SIZED:
        results = [kept(study).get(jobs.Job(key, "xe", *_DEFAULT)) for study in SIZES.values()]
        values = (f"{one['scores']['CIDEr']:.1f}" if one else "" for one in results)
        rows.append(tables.cells((ROWS[key].name, *values)))
    return "\n".join(rows) + "\n"


def size_claims() -> str:
    """A table of the claims about X-LAN with other widths and numbers of regions, seed 1."""
    columns = {title: (study, *_DEFAULT) for title, study in SIZES.items()}
    return _differences(claims_about(_SIZED) + [("xlan", "xlan_row1")], columns, intervals=True)


def _differences(
    pairs: Iterable[tuple[str, str]],
    columns: Mapping[str, tuple[str, float, float]],
    intervals: bool = False,
) -> str:
    """A table of differences in CIDEr, seed 1; bold if the interval does not contain 0.

    Args:
      pairs: rows, the one that should score higher first.
      columns: the study, the rate and the dropout by the title of a column.
      intervals: whether the intervals are in the table.
    """
    rows = [tables.cells(("claim", *columns)), "|" + "---|" * (1 + len(columns))]
    for above, below in pairs:
        cells = [f"{ROWS[above].name} is above {ROWS[below].name}"]
        for study, *point in columns.values():
            pair = [jobs.Job(row, "xe", *point) for row in (below, above)]
            known = set(pair) <= set(kept(study))
            cells.append(_change(study, *pair, intervals) if known else "")
        rows.append(tables.cells(tuple(cells)))
    return "\n".join(rows) + "\n"


def _change(study: str, below: jobs.Job, above: jobs.Job, interval: bool) -> str:
    change = bootstrap.differences_of_seeds([scores(study, below)], [scores(study, above)])["CIDEr"]
    text = tables.short(change.value, "+")
    if interval:
        text += f" ({tables.short(change.low, '+')} to {tables.short(change.high, '+')})"
    return text if change.verdict == "not told apart" else f"**{text}**"


def _lines(study: str) -> dict[tuple, tables.System]:
    """The lines of the tables of a study: every system with its best options."""
    chosen = best(study)
    each = {job: scores(study, job) for job in kept(study) if job.row in chosen}
    return tables.systems(each, chosen)


def table(study: str, stage: str = "xe") -> str:
    """The scores of all systems of a study with their best options."""
    lines = {key: line for key, line in _lines(study).items() if key[1] == stage}
    return tables.table(lines, kept(study), best(study)) + "\n"


def seeds(study: str) -> str:
    """A table of the scores of each seed, for systems with more than one."""
    rows = ["| system | rate, dropout | CIDEr of seeds 1, 2 and 3 |", "|" + "---|" * 3]
    for (_, stage, together), system in _lines(study).items():
        if len(system.jobs) > 1 and stage == "xe" and not together:
            values = ", ".join(f"{one.corpus['CIDEr']:.1f}" for one in system.scores)
            first = system.jobs[0]
            rows.append(f"| {system.name} | {first.rate:g}, {first.dropout:g} | {values} |")
    return "\n".join(rows) + "\n"


def further(study: str, pairs: Iterable[tuple[str, str]]) -> str:
    """A table of further differences of a study: the first row of a pair minus the second."""
    lines = _lines(study)
    rows = [tables.difference(*(lines[row, "xe", False] for row in pair)) for pair in pairs]
    head = tables.cells(("comparison", "difference in CIDEr", "95 % interval", "seeds", "result"))
    return "\n".join([head, "|" + "---|" * 5, *rows]) + "\n"


def claims(study: str, stage: str = "xe") -> str:
    """The claims of the papers about the systems of a study with their best options."""
    head, line, *rows = tables.claims_table(_lines(study)).splitlines()
    kind = [row for row in rows if (", self-critical" in row) == (stage == "scst")]
    return "\n".join([head, line, *kind]) + "\n"


# What the page says about drawings besides the claims.
_FURTHER = (
    ("xlan", "xlan_row1"),
    ("xlan", "xlan_row2"),
    ("aoanet", "attention_lstm"),
    ("aoanet", "xlan_row1"),
    ("aoanet", "xlan_row2"),
)
TABLES = {
    "tuning": tuning,
    "points": points,
    "sizes": sizes,
    "size_claims": size_claims,
    "tuned": functools.partial(table, PHOTOGRAPHS),
    "tuned_seeds": functools.partial(seeds, PHOTOGRAPHS),
    "tuned_claims": functools.partial(claims, PHOTOGRAPHS),
    "self_critical": functools.partial(table, PHOTOGRAPHS, "scst"),
    "self_critical_claims": functools.partial(claims, PHOTOGRAPHS, "scst"),
    "drawings": functools.partial(table, DRAWINGS),
    "drawings_seeds": functools.partial(seeds, DRAWINGS),
    "drawings_claims": functools.partial(claims, DRAWINGS),
    "drawings_further": functools.partial(further, DRAWINGS, _FURTHER),
}
