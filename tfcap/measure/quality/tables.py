"""Writes the table of a study: scores with intervals, and what the papers claim."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from tfcap.measure.quality.jobs import DROPOUTS, RATES, Job
from tfcap.measure.quality.rows import ROWS, claims
from tfcap.metrics import bootstrap
from tfcap.metrics.results import Scores

Results = Mapping[Job, Mapping[str, Any]]
_STAGES = {"xe": "", "scst": ", self-critical"}


@dataclasses.dataclass(frozen=True)
class System:
    """A line of the table.

    Attributes:
      name: its name.
      jobs: the run of each seed, or one ensemble.
      scores: the scores of each on the half of `val` that judges.
    """

    name: str
    jobs: list[Job]
    scores: list[Scores]


def systems(scores: Mapping[Job, Scores], best: Mapping[str, Job]) -> dict[tuple, System]:
    """Returns the lines of the table by row, stage and whether it is an ensemble.

    Args:
      scores: the scores of each finished job.
      best: the run of each row that the tuning chose; a row without one has its default run.
    """
    found = {}
    for stage, suffix in _STAGES.items():
        for together in (False, True):
            for key, row in ROWS.items():
                chosen = best.get(key, Job(key, "xe", RATES[0], DROPOUTS[0]))
                jobs = [
                    job
                    for job in scores
                    if (job.row, job.stage, len(job.seeds) > 1) == (key, stage, together)
                    and (job.rate, job.dropout) == (chosen.rate, chosen.dropout)
                ]
                name = row.name + suffix
                if jobs and together:
                    name += f", {len(jobs[0].seeds)} seeds together"
                if jobs:
                    each = [scores[job] for job in jobs]
                    found[key, stage, together] = System(name, jobs, each)
    return found


def table(lines: Mapping[tuple, System], results: Results, best: Mapping[str, Job]) -> str:
    """Writes the scores of all systems as a Markdown table."""
    head = ("system", "parameters", "seeds", "rate, dropout", "minutes", "BLEU-4", "METEOR")
    rows = [cells((*head, "CIDEr", "95 % interval")), "|" + "---|" * (len(head) + 2)]
    for (key, _, together), system in lines.items():
        first = system.jobs[0]
        values = [results[job] for job in system.jobs]
        mean = {
            name: f"{sum(value['scores'][name] for value in values) / len(values):.1f}"
            for name in ("BLEU-4", "METEOR", "CIDEr")
            if all(name in value["scores"] for value in values)
        }
        interval = bootstrap.intervals_of_seeds(system.scores)["CIDEr"]
        seeds = len(first.seeds) if together else len(values)
        tuned = "" if key in best else " (default)"
        rows.append(
            cells(
                (
                    system.name,
                    f"{values[0]['parameters'] / 1e6:.2f} M",
                    str(seeds),
                    f"{first.rate:g}, {first.dropout:g}{tuned}",
                    f"{sum(value['cpu_minutes'] for value in values) / len(values):.1f}",
                    *(mean.get(name, "") for name in ("BLEU-4", "METEOR", "CIDEr")),
                    f"{short(interval.low)} to {short(interval.high)}",
                )
            )
        )
    return "\n".join(rows)


def claims_table(lines: Mapping[tuple, System]) -> str:
    """Writes the differences in CIDEr that the papers claim; empty if there are none."""
    pairs = []
    for stage in _STAGES:
        trained = [key for key, its, together in lines if its == stage and not together]
        pairs += [((a, stage, False), (b, stage, False)) for a, b in claims(trained)]
    pairs += [((key, "scst", False), (key, "xe", False)) for key in ROWS]
    rows = []
    for above, below in pairs:
        if above in lines and below in lines:
            rows.append(difference(lines[above], lines[below]))
    for (key, stage, together), system in lines.items():
        if together:
            members = lines[key, stage, False]
            scores = max(members.scores, key=lambda one: one.corpus["CIDEr"])
            best = System(f"the best of {members.name}", [], [scores])
            rows.append(difference(system, best))
    if not rows:
        return ""
    head = ("claim", "difference in CIDEr", "95 % interval", "seeds", "result")
    return "\n".join([cells(head), "|" + "---|" * len(head), *rows])


def difference(above: System, below: System) -> str:
    """Writes the line of `claims_table` about two systems."""
    change = bootstrap.differences_of_seeds(below.scores, above.scores)["CIDEr"]
    return cells(
        (
            f"{above.name} is above {below.name}",
            short(change.value, "+"),
            f"{short(change.low, '+')} to {short(change.high, '+')}",
            f"{len(above.scores)} and {len(below.scores)}",
            {"higher": "holds", "lower": "the opposite holds"}.get(change.verdict, change.verdict),
        )
    )


def short(value: float, sign: str = "-") -> str:
    """Returns one decimal; a number that rounds to zero has no minus."""
    return f"{round(value, 1) + 0.0:{sign}.1f}"


def cells(values: tuple[str, ...]) -> str:
    """Returns a line of a Markdown table."""
    return f"| {' | '.join(values)} |"
