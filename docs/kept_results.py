"""Makes the tables of docs/truth.md from the results in docs/results.

`python docs/tables.py` writes them into the page. The results are files of
`python -m tfcap.benchmark --what=quality`, see docs/quality.md.
"""

import dataclasses
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
PHOTOGRAPHS, DRAWINGS, LONGER = "flickr8k_lite", "shapes", "shapes_long"
# The studies with another width or number of regions than `PHOTOGRAPHS`, by the title of a column.
SIZES = {
    "width 192, 49 regions": PHOTOGRAPHS,
    "width 96": "flickr8k_lite_width96",
    "16 regions": "flickr8k_lite_grid4",
}
_DEFAULT = jobs.RATES[0], jobs.DROPOUTS[0]
_SIZED = ("xlan_row1", "xlan_row2", "xlan", "updown")
# The systems that still rose at the end of `DRAWINGS`.
_RISING = ("aoanet", "xtransformer", "expansionnet_base", "expansionnet", "mrnn_recurrent")
# What each study trained, by the directory of its results.
OPTIONS = {
    PHOTOGRAPHS: jobs.Options("", KEYS, 192, examples=90_000, scst_examples=100_000, tune=True),
    DRAWINGS: jobs.Options("", KEYS, 128, examples=200_000, scst_examples=0),
    LONGER: jobs.Options("", _RISING, 128, examples=400_000, scst_examples=0),
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
    columns = {f"{point[0]:g}, {point[1]:g}": _at(PHOTOGRAPHS, *point) for point in options}
    return _differences(claims_about(list(best(PHOTOGRAPHS))), columns)


def _at(study: str, rate: float, dropout: float) -> dict[str, list[Scores]]:
    """The scores of the systems of a study with these options, after cross-entropy, seed 1."""
    wanted = [jobs.Job(row, "xe", rate, dropout) for row in KEYS]
    return {job.row: [scores(study, job)] for job in wanted if job in kept(study)}


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
    columns = {title: _at(study, *_DEFAULT) for title, study in SIZES.items()}
    return _differences(claims_about(_SIZED) + [("xlan", "xlan_row1")], columns, intervals=True)


def summary() -> str:
    """A table of the claims of the papers on all data, with the best options of each system."""
    columns = {"photographs": _seeds(PHOTOGRAPHS), "drawings": _seeds(DRAWINGS)}
    pairs = claims_about(KEYS) + [("xlan", "xlan_row1")]
    return _differences(pairs, columns, intervals=True)


def _seeds(study: str) -> dict[str, list[Scores]]:
    """The scores of the seeds of each system, after cross-entropy."""
    lines = _lines(study).items()
    return {row: line.scores for (row, *kind), line in lines if kind == ["xe", False]}


def _differences(
    pairs: Iterable[tuple[str, str]],
    columns: Mapping[str, Mapping[str, list[Scores]]],
    intervals: bool = False,
) -> str:
    """A table of differences in CIDEr; bold if the interval does not contain 0.

    Args:
      pairs: rows, the one that should score higher first.
      columns: title of a column -> row -> scores of each seed.
      intervals: whether the intervals are in the table.
    """
    rows = [tables.cells(("claim", *columns)), "|" + "---|" * (1 + len(columns))]
    for above, below in pairs:
        cells = [f"{ROWS[above].name} is above {ROWS[below].name}"]
        for known in columns.values():
            both = above in known and below in known
            cells.append(_change(known[below], known[above], intervals) if both else "")
        rows.append(tables.cells(tuple(cells)))
    return "\n".join(rows) + "\n"


def _change(below: list[Scores], above: list[Scores], interval: bool) -> str:
    change = bootstrap.differences_of_seeds(below, above)["CIDEr"]
    text = tables.short(change.value, "+")
    if interval:
        text += f" ({tables.short(change.low, '+')} to {tables.short(change.high, '+')})"
    return text if change.verdict == "not significant" else f"**{text}**"


def longer() -> str:
    """A table of the drawings with twice as many captions, and of the rise of CIDEr at the end."""
    head = ("system", "CIDEr, 200,000 captions", "last sixth")
    head += ("CIDEr, 400,000 captions", "last sixth", "difference in CIDEr")
    rows = [tables.cells(head), "|" + "---|" * len(head)]
    short, long = _seeds(DRAWINGS), _seeds(LONGER)
    for row in short:
        cells = [ROWS[row].name, f"{_mean(short[row]):.1f}", _rise(DRAWINGS, row)]
        if row in long:
            cells += [f"{_mean(long[row]):.1f}", _rise(LONGER, row)]
            cells += [_change(short[row], long[row], interval=True)]
        rows.append(tables.cells((*cells, *[""] * (len(head) - len(cells)))))
    return "\n".join(rows) + "\n"


def _mean(seeds: list[Scores]) -> float:
    return sum(one.corpus["CIDEr"] for one in seeds) / len(seeds)


def _rise(study: str, row: str) -> str:
    """The change in CIDEr in the last sixth of training: the mean, the lowest and the highest seed.

    It is that of the images that choose, between the last two of the six validations.
    """
    found = []
    for job in _lines(study)[row, "xe", False].jobs:
        curve = {int(step): value for step, value in kept(study)[job]["curve"].items()}
        sixths = [curve[step] for step in sorted(curve) if step % min(curve) == 0]
        found.append(sixths[-1] - sixths[-2])
    mean = sum(found) / len(found)
    return "{} ({} to {})".format(*(tables.short(x, "+") for x in (mean, min(found), max(found))))


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
    return _compared((_line(study, above), _line(study, below)) for above, below in pairs)


def across() -> str:
    """A table of systems with 400,000 drawings against systems with half as many."""
    pairs = [("xtransformer", "transformer"), ("expansionnet", "transformer")]
    long, short = ", 400,000 captions,", ", 200,000 captions"
    return _compared((_line(LONGER, a, long), _line(DRAWINGS, b, short)) for a, b in pairs)


def _line(study: str, row: str, suffix: str = "") -> tables.System:
    line = _lines(study)[row, "xe", False]
    return dataclasses.replace(line, name=line.name + suffix)


def _compared(pairs: Iterable[tuple[tables.System, tables.System]]) -> str:
    rows = [tables.difference(above, below) for above, below in pairs]
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
    "summary": summary,
    "tuning": tuning,
    "points": points,
    "sizes": sizes,
    "size_claims": size_claims,
    "tuned": functools.partial(table, PHOTOGRAPHS),
    "tuned_seeds": functools.partial(seeds, PHOTOGRAPHS),
    "tuned_claims": functools.partial(claims, PHOTOGRAPHS),
    "self_critical": functools.partial(table, PHOTOGRAPHS, stage="scst"),
    "self_critical_claims": functools.partial(claims, PHOTOGRAPHS, stage="scst"),
    "drawings": functools.partial(table, DRAWINGS),
    "drawings_seeds": functools.partial(seeds, DRAWINGS),
    "drawings_claims": functools.partial(claims, DRAWINGS),
    "drawings_further": functools.partial(further, DRAWINGS, _FURTHER),
    "longer": longer,
    "longer_seeds": functools.partial(seeds, LONGER),
    "longer_claims": functools.partial(claims, LONGER),
    "longer_across": across,
}
