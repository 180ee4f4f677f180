"""Reads `experiments/published.yaml`: the published scores, and the recipe of each row."""

import dataclasses
import functools
from collections.abc import Mapping
from typing import Any

import yaml

from tfcap import recipes

FILE = "published.yaml"
STAGES = {"xe": "cross-entropy", "scst": "self-critical training"}
LEFT_OUT = "-"  # the source has no such score


@dataclasses.dataclass(frozen=True)
class Row:
    """A row of a table of published scores.

    Attributes:
      source: name of the source, a key of `sources` in the file.
      table: its number in a paper, or what it is about.
      stage: `xe` or `scst`, after which the scores were measured.
      name: the row's own name.
      scores: metric -> value as text; `-` if the source gives none.
      recipes: the recipes that train it, such as `coco/xlan_xe`; empty if there is none.
      how: how the recipe is used, a key of `how` in the file; empty if it is only trained.
      reason: why there is no recipe, a key of `reasons` in the file; empty if there is one.
    """

    source: str
    table: str
    stage: str
    name: str
    scores: Mapping[str, str]
    recipes: tuple[str, ...] = ()
    how: str = ""
    reason: str = ""

    @property
    def place(self) -> str:
        """The source and its table, as in `X-LAN paper, table 1`."""
        table = f"table {self.table}" if self.table.isdecimal() else self.table
        return f"{self.source}, {table}"

    @property
    def known(self) -> dict[str, str]:
        """The scores that are numbers."""
        return {name: v for name, v in self.scores.items() if v != LEFT_OUT}

    @property
    def text(self) -> str:
        """The known scores as the header of a recipe has them: `B@1 78.0, CIDEr 122.0`."""
        return ", ".join(f"{name} {value}" for name, value in self.known.items())


@functools.cache
def content() -> dict[str, Any]:
    """Returns the content of the file."""
    with open(recipes.directory() / FILE, encoding="utf-8") as file:
        return yaml.safe_load(file)


@functools.cache
def rows() -> tuple[Row, ...]:
    """Returns the rows of all tables, in the order of the file."""
    found = []
    for table in content()["tables"]:
        metrics = [name.replace("_", " ") for name in table["columns"].split()]
        for row in table["rows"]:
            scores = dict(zip(metrics, row["scores"].split(), strict=True))
            found.append(
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
    return tuple(found)


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
