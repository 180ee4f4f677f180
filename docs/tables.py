"""The tables of the pages on configuration keys, recipes and published scores.

The keys come from the docstrings of `tfcap/configs/schema.py`, of the models and of the decoding
options, the scores of recipes from the headers in `experiments/`, and published scores from
`experiments/published.yaml`. `conf.py` puts a table in the place of `<!-- table NAME -->` when the
site is built.
"""

import dataclasses
import functools
import inspect
import pathlib
import re

import published

from tfcap import configs, models
from tfcap.models.captioner import options_of

DOCS = pathlib.Path(__file__).resolve().parent
RECIPES = DOCS.parent / "experiments"
FOLDERS = ("flickr8k", "coco", "flickr30k", "iapr", "msrvtt", "gif", "shapes")
ENTRY = re.compile(r"(\*?\w+): (.*)")


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
    """A Markdown table."""
    lines = [header, tuple("---" for _ in header), *rows]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in lines) + "\n"


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


def experiment(entries: dict[str, str]) -> str:
    """The experiment of the training command in a header."""
    return re.search(r"--experiment=(\w+)", entries["Command"])[1]


def links(entries: dict[str, str], folder: str) -> str:
    """The expected scores of a header, with links to the recipes that they name."""
    text = entries["Expected"].replace("|", "\\|")
    if not text.startswith(tuple(published.content()["sources"])):
        text = text[:1].upper() + text[1:]
    return re.sub(r"\b(\w+\.yaml)\b", rf"[\1](../experiments/{folder}/\1)", text)


def recipes_of(folder: str) -> str:
    """The section of the recipes in one folder."""
    rows = []
    for path in sorted((RECIPES / folder).glob("*.yaml")):
        entries = header(path)
        time = entries.get("Time") or entries.get("Hours") or ""
        place = f"experiments/{folder}/{path.name}"
        rows.append(
            (
                f"[{path.stem}](../{place})",
                f"`{experiment(entries)}`",
                entries["title"].rstrip("."),
                links(entries, folder),
                time,
            )
        )
    return table(("recipe", "`--experiment`", "what it trains", "scores", "time"), rows)


# Experiment, recipe on Flickr8k if there is one, recipe of cross-entropy with most scores.
SYSTEMS = (
    ("xlan", "flickr8k/xlan_xe.yaml", "coco/xlan_xe.yaml"),
    ("xtransformer", "flickr8k/xtransformer_xe.yaml", "coco/xtransformer_xe.yaml"),
    ("expansionnet", "", "coco/expansionnet_stage2_xe.yaml"),
    ("expansionnet_v2", "", ""),
    ("mrnn", "flickr8k/mrnn_xe.yaml", "coco/mrnn_xe.yaml"),
    ("mrnn_shared", "", "coco/mrnn_shared_xe.yaml"),
    ("updown", "flickr8k/updown_xe.yaml", "coco/updown_xe.yaml"),
    ("attention_lstm", "", "coco/attention_lstm_xe.yaml"),
    ("aoanet", "", "coco/aoanet_xe.yaml"),
    ("att2in", "", "coco/att2in_xe.yaml"),
    ("lstm_a", "", "coco/lstm_a_xe.yaml"),
    ("gcn_lstm", "", "coco/gcn_lstm_xe.yaml"),
    ("show_tell", "", "coco/show_tell_xe.yaml"),
    ("transformer", "", "coco/transformer_xe.yaml"),
)


def cider(recipe: str) -> str:
    """The first CIDEr in the header of a recipe, with a link to it."""
    if not recipe:
        return "–"
    found = re.search(r"CIDEr ([\d.]+\d)", header(RECIPES / recipe)["Expected"])
    return f"[{found[1] if found else 'not given'}](../experiments/{recipe})"


def systems() -> str:
    """A table with a row for each system: what was measured, and what is published."""
    rows = [(f"`{name}`", cider(small), cider(paper)) for name, small, paper in SYSTEMS]
    return table(("`--experiment`", "CIDEr on Flickr8k", "CIDEr on COCO, published"), rows)


def way(row: published.Row) -> str:
    """How a row is made: its recipes and how they are used, or why there is none."""
    if row.reason:
        return published.content()["reasons"][row.reason]
    names = [f"[{name}](../experiments/{name}.yaml)" for name in row.recipes]
    return ", ".join(names) + (f" ([{row.how}](#how-a-recipe-is-used))" if row.how else "")


def flags(recipe: str) -> str:
    """The flags of the training command in the header of a recipe, without the directory."""
    command = header(RECIPES / f"{recipe}.yaml")["Command"]
    given = re.findall(r"(--(?:experiment|config_file)=)(?:experiments/)?(\S+)", command)
    return "`" + " ".join(name + value for name, value in given) + "`"


def every_row() -> str:
    """The table of all published rows."""
    rows = [
        (
            row.place,
            meaning(row.name),
            published.STAGES[row.stage],
            row.text,
            way(row),
            "; ".join(map(flags, row.recipes)),
        )
        for row in published.rows()
    ]
    last = ("recipe, or why there is none", "flags of `python -m tfcap.train`")
    return table(("table", "row", "after", "scores", *last), rows)


def counted() -> str:
    """How many rows each source has, and how many of them have a recipe."""
    rows = []
    for source, title in published.content()["sources"].items():
        own = [row for row in published.rows() if row.source == source]
        numbers = (len(own), sum(bool(row.recipes) for row in own))
        rows.append((source, title, *map(str, numbers)))
    total = [sum(int(row[column]) for row in rows) for column in (2, 3)]
    rows.append(("all", "", *map(str, total)))
    return table(("source", "what it is", "rows", "with a recipe"), rows)


def uses() -> str:
    """How recipes are used for rows that are more than one trained model."""
    return table(("name", "what to do"), [*published.content()["how"].items()])


def notes() -> str:
    """What each table is about."""
    rows = []
    for content in published.content()["tables"]:
        place = published.Row(content["source"], str(content["table"]), "", "", {}).place
        if "note" in content:
            rows.append((place, published.STAGES[content["stage"]], content["note"]))
    return table(("table", "after", "note"), rows)


def left_out() -> str:
    """What the sources have beside the rows of scores."""
    return "".join(f"- {text}\n" for text in published.content()["left_out"])


TABLES = {
    "keys": keys,
    "systems": systems,
    "rows": every_row,
    "sources": counted,
    "uses": uses,
    "notes": notes,
    "left_out": left_out,
    **{folder: functools.partial(recipes_of, folder) for folder in FOLDERS},
}


def fill(text: str) -> str:
    """A page with its tables."""
    return re.sub(r"<!-- table (\w+) -->", lambda found: TABLES[found[1]](), text)
