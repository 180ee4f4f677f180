"""Reads `experiments/published.yaml`: the published scores, and the recipe of each row."""

import dataclasses
import functools
import pathlib
from collections.abc import Mapping
from typing import Any

import yaml

FILE = pathlib.Path(__file__).parents[1] / "experiments" / "published.yaml"
STAGES = {"xe": "cross-entropy", "scst": "self-critical training"}
LEFT_OUT = "-"  # the source has no such score
UNREAD = "?"  # nobody here has read the score


@dataclasses.dataclass(frozen=True)
class Row:
    """A row of a table of published scores."""

    source: str  # a key of `sources` in the file
    table: str  # its number in a paper, or what it is about
    stage: str  # `xe` or `scst`, after which the scores were measured
    name: str
    scores: Mapping[str, str]  # metric -> value as text; `-` if the source gives none, or `?`
    recipes: tuple[str, ...] = ()  # those that train it, such as `coco/xlan_xe`
    how: str = ""  # how the recipe is used, a key of `how`; empty if it is only trained
    reason: str = ""  # why there is no recipe, a key of `reasons`

    @property
    def place(self) -> str:
        """The source and its table, as in `X-LAN paper, table 1`."""
        table = f"table {self.table}" if self.table.isdecimal() else self.table
        return f"{self.source}, {table}"

    @property
    def known(self) -> dict[str, str]:
        """The scores that are numbers."""
        return {name: v for name, v in self.scores.items() if v not in (LEFT_OUT, UNREAD)}

    @property
    def text(self) -> str:
        """The known scores as the header of a recipe has them: `B@1 78.0, CIDEr 122.0`."""
        return ", ".join(f"{name} {value}" for name, value in self.known.items())


@functools.cache
def content() -> dict[str, Any]:
    """Returns the content of the file."""
    return yaml.safe_load(FILE.read_text(encoding="utf-8"))


@functools.cache
def rows() -> tuple[Row, ...]:
    """Returns the rows of all tables, in the order of the file."""
    match = []
    for table in content()["tables"]:
        metrics = [name.replace("_", " ") for name in table["columns"].split()]
        for row in table["rows"]:
            scores = dict(zip(metrics, row["scores"].split(), strict=True))
            match.append(
                Row(
                    source=table["source"],
                    table=str(table["table"]),
                    stage=table["stage"],
                    name=row["row"],
                    scores=scores,
                    recipes=tuple(row.get("recipe", "").split()),
                    how=row.get("how", ""),
                    reason=row.get("reason", ""),
                )
            )
    return tuple(match)


def expected(recipe: str) -> str:
    """Returns the scores that the header of a recipe must have; empty without a known score.

    Args:
      recipe: its name without the ending, such as `coco/xlan_xe`.
    """
    places: dict[str, list[str]] = {}
    for row in rows():
        if recipe in row.recipes and row.known:
            places.setdefault(row.text, []).append(f"{row.place}, {row.name}")
    return " ".join(f"{'; '.join(where)}: {text}." for text, where in places.items())
