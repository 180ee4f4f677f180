"""The result of one check. `examine` runs a check so that its failure does not stop the others."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

OK, WARNING, PROBLEM = "ok", "warning", "problem"
STATUSES = (OK, WARNING, PROBLEM)
_UNEXPECTED = "Look at the file that is named here. If it is intact, report this line as a fault."


@dataclasses.dataclass(frozen=True)
class Finding:
    """The result of one check.

    Attributes:
      status: one of `STATUSES`.
      text: what was found, in one line.
      remedy: what to do, often a command; empty where nothing is to be done, or where the text,
        an error message of another part of the package, ends with the remedy.
      area: what was checked: machine, data, run or export. `examine` fills it in.
      check: the name of the check. `examine` fills it in.
    """

    status: str
    text: str
    remedy: str = ""
    area: str = ""
    check: str = ""

    def __str__(self):
        remedy = f" Remedy: {self.remedy}" if self.remedy else ""
        return f"{self.status:<9}{self.area:<9}{self.check:<18}{self.text}{remedy}"


def ok(text: str) -> Finding:
    """Returns a finding that reports no fault."""
    return Finding(OK, text)


def warning(text: str, remedy: str) -> Finding:
    """Returns a finding that does not prevent further work, with its remedy."""
    return Finding(WARNING, text, remedy)


def problem(text: str, remedy: str) -> Finding:
    """Returns a finding of a fault that must be repaired, with its remedy."""
    return Finding(PROBLEM, text, remedy)


def examine(
    area: str, check: str, function: Callable[..., Finding], *arguments: Any, remedy: str = ""
) -> Finding:
    """Runs a check; an error in it becomes a problem.

    Args:
      area: machine, data, run or export.
      check: the name of the check.
      function: returns the finding.
      *arguments: the arguments of `function`.
      remedy: the remedy for an error. Without it, the message of a ValueError holds the remedy.
    """
    try:
        finding = function(*arguments)
    except (ValueError, OSError) as error:  # as in `cli.run`: bad data, missing files
        finding = problem(one_line(error), remedy)
    except Exception as error:
        text = f"The check failed: {type(error).__name__}: {one_line(error)}"
        finding = problem(text, remedy or _UNEXPECTED)
    return dataclasses.replace(finding, area=area, check=check)


def one_line(error: Exception, limit: int = 400) -> str:
    """Returns the message of an error in one line of at most `limit` characters."""
    text = " ".join(str(error).split()) or type(error).__name__
    return text if len(text) <= limit else text[: limit - 1] + "…"


def some(items: Sequence[Any], shown: int = 3) -> str:
    """Lists the first items: `a, b, c and 4 more`."""
    more = f" and {len(items) - shown} more" if len(items) > shown else ""
    return ", ".join(map(str, items[:shown])) + more


def count(number: int, what: str) -> str:
    """Returns `1 shard` or `3 shards`."""
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


def summary(findings: Sequence[Finding]) -> str:
    """Counts the findings in one line: `12 checks: 10 ok, 1 warning, 1 problem`."""
    counts = {status: sum(f.status == status for f in findings) for status in STATUSES}
    words = [f"{counts[OK]} ok", count(counts[WARNING], WARNING), count(counts[PROBLEM], PROBLEM)]
    return f"{count(len(findings), 'check')}: {', '.join(words)}"
