"""Writes the tables of the pages: `python docs/tables.py`, after a change of what they show.

A table stands between `<!-- table NAME -->` and `<!-- end -->`. Published scores come from
`experiments/published.yaml`, those of recipes also from the headers in `experiments/`, results from
the CSV files in `docs/results`, and the configuration keys from the docstrings of
`tfcap/configs/schema.py`, of the models and of the decoding options. The table of keys is not
stored: `conf.py` writes it when the site is built.
"""

import csv
import dataclasses
import functools
import inspect
import pathlib
import re

import published
import yaml

from tfcap import configs, models
from tfcap.models.captioner import options_of

DOCS = pathlib.Path(__file__).resolve().parent
RECIPES = DOCS.parent / "experiments"
FOLDERS = ("flickr8k", "coco", "flickr30k", "iapr", "msrvtt", "gif", "shapes")
ENTRY = re.compile(r"(\*{0,2}\w+): (.*)")
NUMBER = re.compile(r"[+-]?[\d.]*|[–?-]")
SHOWN = ("B@1", "B@4", "METEOR", "ROUGE-L", "CIDEr", "SPICE")  # scores in the tables of recipes


def described(docstring: str, section: str) -> dict[str, str]:
    """The entries `name: text` of a section of a Google-style docstring."""
    lines = inspect.cleandoc(docstring).splitlines()
    if f"{section}:" not in lines:
        return {}
    found: dict[str, str] = {}
    name = ""
    rest = lines[lines.index(f"{section}:") + 1 :]
    indents = [len(line) - len(line.lstrip()) for line in rest if line.strip()]
    for line in rest:
        indent = len(line) - len(line.lstrip())
        if line.strip() and indent == 0:
            break
        entry = ENTRY.match(line.strip())
        if entry and indent == indents[0]:
            name, found[entry[1]] = entry[1], entry[2]
        elif line.strip():
            found[name] += " " + line.strip()
    return found


def table(header: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    """A Markdown table; columns of numbers are aligned at the right."""
    columns = list(zip(*rows, strict=True)) or [()] * len(header)
    lines = ["---:" if all(map(NUMBER.fullmatch, column)) else "---" for column in columns]
    return "".join("| " + " | ".join(cells) + " |\n" for cells in [header, lines, *rows])


def default(value) -> str:
    """A default value as YAML writes it."""
    if isinstance(value, bool) or value is None:
        return {True: "`true`", False: "`false`", None: "none"}[value]
    if isinstance(value, list | tuple):
        return ", ".join(f"`{item}`" for item in value) or "none"
    return f"`{value}`" if value != "" else "empty"


def meaning(text: str) -> str:
    """A description as a cell of a table."""
    return text.replace("|", "\\|").rstrip(".")


def group(path: str, config) -> str:
    """The section of one group of keys."""
    cls = type(config)
    meanings: dict[str, str] = {}
    for base in reversed(cls.__mro__):
        meanings |= described(base.__doc__ or "", "Attributes")
    rows = []
    for field in dataclasses.fields(config):
        value = getattr(config, field.name)
        if field.name not in meanings:
            continue  # a key of TF Model Garden that its documentation leaves out
        is_group = dataclasses.is_dataclass(value)
        shown = "a group" if is_group else default(value)
        rows.append((f"`{field.name}`", shown, meaning(meanings[field.name])))
    first = inspect.cleandoc(cls.__doc__ or "").split("\n\n")[0].replace("\n", " ")
    return f"## `{path}`\n\n{first}\n\n{table(('key', 'default', 'meaning'), rows)}"


def system(name: str, cls) -> str:
    """The section of the options of one captioning system."""
    meanings: dict[str, str] = {}
    for base in reversed(cls.__mro__):
        meanings |= described(base.__doc__ or "", "Args")
    rows = [
        (f"`{option}`", default(value), meaning(meanings.get(option, "")))
        for option, _, value in options_of(cls)
    ]
    first = inspect.cleandoc(cls.__doc__).split("\n\n")[0].replace("\n", " ")
    return f"## `task.model.{name}`\n\n{first}\n\n{table(('key', 'default', 'meaning'), rows)}"


def keys() -> str:
    """All configuration keys, a section for each group."""
    task = configs.Task()
    sections = [
        group("task", task),
        group("task.backbone", task.backbone),
        group("task.train_data and task.validation_data", task.train_data),
        group("task.decoding", task.decoding),
        group("task.scheduled_sampling", task.scheduled_sampling),
        group("task.teacher", task.teacher),
        group("task.self_critical", task.self_critical),
        group("task.self_critical.reward", task.self_critical.reward),
        group("trainer", configs.Trainer()),
        group("trainer.optimizer_config", configs.Optimizer()),
        group("trainer.optimizer_config.schedule", configs.Schedule()),
        group("runtime", configs.Runtime()),
        *(system(name, cls) for name, cls in models.MODELS.items()),
    ]
    return "\n".join(sections)


def header(path: pathlib.Path) -> dict[str, str]:
    """The first lines of a recipe: its title and the entries `Name:  text` of the header."""
    entries, name = {"title": ""}, "title"
    for line in path.read_text(encoding="utf-8").splitlines():
        if not line.startswith("#"):
            break
        # A line that is indented goes on with the entry before it, whatever it contains.
        entry = re.match(r"# ([A-Z][a-z]+(?: released)?): *(.*)", line)
        line = line[1:].strip()
        if entry:
            name, line = entry[1], entry[2]
        elif not line:
            name = "rest"
        entries[name] = f"{entries.get(name, '')} {line}".strip()
    return entries


def link(recipe: str, text: str = "") -> str:
    """A link to a recipe, such as `coco/xlan_xe`."""
    return f"[{text or recipe}](../experiments/{recipe}.yaml)"


def scores(recipe: str) -> dict[str, str]:
    """The scores of a recipe: one published row, if possible one with CIDEr, or measured here."""
    rows = [row.known for row in published.rows() if recipe in row.recipes]
    measured = re.findall(r"(\S+) (\d+\.\d)", header(RECIPES / f"{recipe}.yaml")["Expected"])
    rows.append(dict(reversed(measured)))  # the first of each
    return max(rows, key=lambda row: ("CIDEr" in row, bool(set(SHOWN) & row.keys())))


def recipes_of(folder: str) -> str:
    """The table of the recipes in one folder."""
    rows = [("recipe", "what it trains", *SHOWN, "time")]
    for path in sorted((RECIPES / folder).glob("*.yaml")):
        recipe, entries = f"{folder}/{path.stem}", header(path)
        values = (scores(recipe).get(name, "–") for name in SHOWN)
        title = re.sub(r" on (COCO|Flickr8k)( \([^)]*\))?", "", entries["title"])
        rows.append((link(recipe, path.stem), title, *values, entries.get("Time", "")))
    filled = [column for column in zip(*rows, strict=True) if set(column[1:]) - {"", "–"}]
    names, *cells = zip(*filled, strict=True)
    return table(names, cells)


# Experiment, recipe on Flickr8k if there is one, recipe of cross-entropy with most scores.
SYSTEMS = (
    ("xlan", "flickr8k/xlan_xe", "coco/xlan_xe"),
    ("xtransformer", "flickr8k/xtransformer_xe", "coco/xtransformer_xe"),
    ("expansionnet", "", "coco/expansionnet_stage2_xe"),
    ("expansionnet_v2", "", ""),
    ("mrnn", "flickr8k/mrnn_xe", "coco/mrnn_xe"),
    ("mrnn_shared", "", "coco/mrnn_shared_xe"),
    ("updown", "flickr8k/updown_xe", "coco/updown_xe"),
    ("attention_lstm", "", "coco/attention_lstm_xe"),
    ("aoanet", "", "coco/aoanet_xe"),
    ("att2in", "", "coco/att2in_xe"),
    ("lstm_a", "", "coco/lstm_a_xe"),
    ("gcn_lstm", "", "coco/gcn_lstm_xe"),
    ("hip", "", "coco/hip_xe"),
    ("lbpf", "", "coco/lbpf_xe"),
    ("rfnet", "", "coco/rfnet_xe"),
    ("sgae", "", "coco/sgae_xe"),
    ("show_tell", "", "coco/show_tell_xe"),
    ("transformer", "", "coco/transformer_xe"),
    ("ort", "", "coco/ort_xe"),
    ("m2", "", "coco/m2_xe"),
)


def cider(recipe: str) -> str:
    """The CIDEr of a recipe, with a link to it."""
    if not recipe:
        return "–"
    return link(recipe, scores(recipe)["CIDEr"])


def systems() -> str:
    """A table with a row for each system: what was measured, and what is published."""
    rows = [(f"`{name}`", cider(small), cider(paper)) for name, small, paper in SYSTEMS]
    return table(("`--experiment`", "CIDEr on Flickr8k", "CIDEr on COCO, published"), rows)


def way(row: published.Row) -> str:
    """The recipes of a row and how they are used, or why there is none, in a word."""
    return ", ".join([*map(link, row.recipes), *filter(None, (row.how, row.reason))])


def published_rows() -> str:
    """A section for each source, with a Markdown table for each of its tables.

    The scores of 5 and of 40 references, in columns such as `CIDEr c40`, have a table each.
    """
    text, source = "", ""
    rows = iter(published.rows())
    for content in published.content()["tables"]:
        part = [next(rows) for _ in content["rows"]]
        if part[0].source != source:
            source = part[0].source
            text += f"### {source}\n\n"
        title = f"{part[0].place}, {published.STAGES[content['stage']]}"
        columns: dict[str, list[str]] = {}
        for name in part[0].scores:
            columns.setdefault(re.search(r"( c\d+)?$", name)[0], []).append(name)
        for references, names in columns.items():
            note = f" {content['note']}" if "note" in content else ""
            text += f"**{title}{references.replace(' ', ', ')}.**{note}\n\n"
            cells = [(r.name, *(r.scores[n] for n in names), way(r)) for r in part]
            header = ("row", *(name.removesuffix(references) for name in names), "recipe")
            text += table(header, cells).replace(f"| {published.LEFT_OUT} ", "| – ") + "\n"
    return text.rstrip() + "\n"


def sources() -> str:
    """What the sources are, with links to their tables."""
    rows = []
    for source, title in published.content()["sources"].items():
        anchor = re.sub(r"[^\w -]", "", source).lower().replace(" ", "-")
        rows.append((f"[{source}](#{anchor})", title))
    return table(("source", "what it is"), rows)


def words() -> str:
    """How recipes are used for rows that are more than one model, and why rows have none."""
    content = published.content()
    return table(("word", "meaning"), [*(content["how"] | content["reasons"]).items()])


def left_out() -> str:
    """What the sources have beside the rows of scores."""
    return "".join(f"- {text}\n" for text in published.content()["left_out"])


def data_sets() -> str:
    """The published data sets, with the command that prepares each."""
    rows = []
    for row in yaml.safe_load((DOCS / "data_sets.yaml").read_text(encoding="utf-8")):
        command = f"`python -m tfcap.prepare {row['flags']} --out data/mine`"
        more = "; ".join(row[key] for key in ("counts", "note") if key in row)
        rows.append((row["name"], row["files"], command, row["splits"], more))
    header = ("data set", "what to download", "command", "splits", "what to expect")
    return table(header, rows)


def stored(path: str) -> str:
    """The table of a CSV file beside the pages."""
    with open(DOCS / path, encoding="utf-8", newline="") as file:
        names, *rows = (tuple(cell.replace("|", "\\|") for cell in row) for row in csv.reader(file))
    return table(names, rows)


TABLES = {
    "keys": keys,
    "systems": systems,
    "rows": published_rows,
    "sources": sources,
    "words": words,
    "left_out": left_out,
    "data_sets": data_sets,
    **{folder: functools.partial(recipes_of, folder) for folder in FOLDERS},
}


def fill(text: str) -> str:
    """A page with its tables."""

    def filled(found: re.Match) -> str:
        name = found[2]
        content = TABLES[name]() if name in TABLES else stored(name)
        return f"{found[1]}\n\n{content}\n<!-- end -->"

    return re.sub(r"(<!-- table (\S+) -->)\n.*?<!-- end -->", filled, text, flags=re.S)


def main() -> None:
    """Writes the tables into the pages."""
    for path in DOCS.glob("*.md"):
        text = path.read_text(encoding="utf-8")
        if path.stem != "configuration" and (new := fill(text)) != text:
            path.write_text(new, encoding="utf-8")


if __name__ == "__main__":
    main()
