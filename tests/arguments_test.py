"""The fields of a class make the arguments of a function, its help, and the flags of a command."""

import ast
import dataclasses
import importlib
import inspect
import pathlib
import re

import pytest
from absl import flags
from helpers import commands

import tfcap
from tfcap import cli, errors
from tfcap.arguments import argument, arguments, flags_of, takes


@arguments
class Common:
    seed: int = argument("Random seed.", default=1, least=0, most=9)


@arguments
class Draw(Common):
    out: str = argument("File to write, with `kind=circle` a picture.", kw_only=False)
    kind: str = argument("Shape; `seed` places it.", default="square", choices=["square", "circle"])
    names: list[str] | None = argument(
        "Names; see `out`.", default=("a", "b"), many="commas", name="labels"
    )
    also: list[str] | None = argument("Further files.", default=(), many="repeated")
    bold: bool = argument("Thick lines.", default=False)
    width: float | None = argument("Width of a line.", default=None, least=0.5)
    title: str | None = argument("Title.", default=None)
    show: bool = argument("Whether to print it.", default=False, name="-")


@takes(Draw)
def draw(args: Draw) -> Draw:
    """Draws a shape.

    The shape is small.

    Returns:
      The arguments.
    """
    return args


class Command:
    """What a module of a command has."""

    def _define_flags():
        cli.define(Draw)

    def _run():
        Command.values = cli.values(Draw)
        Command.changed = cli.values(Draw, given_only=True)


def test_the_function_takes_the_fields():
    assert draw("a.png", kind="circle") == Draw("a.png", kind="circle", seed=1)
    with pytest.raises(TypeError, match="out"):
        draw()
    with pytest.raises(TypeError, match="positional"):
        draw("a.png", "circle")
    with pytest.raises(dataclasses.FrozenInstanceError):
        draw("a.png").seed = 2


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"kind": "star"}, "`kind=star` must be one of square, circle"),
        ({"seed": -1}, "`seed=-1` must be at least 0"),
        ({"seed": 10}, "`seed=10` must be at most 9"),
        ({"width": 0.25}, "`width=0.25` must be at least 0.5"),
    ],
)
def test_the_function_refuses_what_the_flags_refuse(values, message):
    with pytest.raises(errors.UsageError, match=message):
        draw("a.png", **values)


def test_help_shows_the_fields_in_the_order_of_the_signature():
    signature = inspect.signature(draw)
    names = ["out", "seed", "kind", "names", "also", "bold", "width", "title", "show"]
    assert list(signature.parameters) == [field.name for field in flags_of(Draw)] == names
    assert signature.parameters["out"].kind is inspect.Parameter.POSITIONAL_OR_KEYWORD
    assert signature.return_annotation is Draw
    before, after = draw.__doc__.split("\n\nArgs:\n")
    assert before == "Draws a shape.\n\nThe shape is small."
    described, returned = after.split("\n\n")
    assert [line.split(":")[0].strip() for line in described.splitlines()] == names
    assert "  kind: Shape; `seed` places it." in described
    assert returned == "Returns:\n  The arguments."


def test_the_flags_have_the_names_defaults_and_texts_of_the_fields():
    names = {"out", "seed", "kind", "labels", "also", "bold", "width", "title"}
    assert set(commands.defined(Command)) == names
    values = commands.parse(Command, "--out=a.png")
    assert values["kind"].help == "<square|circle>: Shape; --seed places it."
    assert values["labels"].help == "Names; see --out."
    assert values["out"].help == "File to write, with --kind=circle a picture."
    assert values.labels == ["a", "b"] and values.also == [] and values.width is None


@pytest.mark.parametrize("word", ["--kind=star", "--seed=10", "--seed=x", "--width=0.1", "--show"])
def test_wrong_values_of_flags_are_refused(word):
    with pytest.raises(flags.Error):
        commands.parse(Command, word)


def test_the_values_of_the_flags_are_the_arguments():
    words = ["--out=a.png", "--labels=x,y", "--also=1", "--also=2", "--bold", "--width=2"]
    commands.run_here(Command, *words)
    wanted = {"out": "a.png", "names": ["x", "y"], "also": ["1", "2"], "bold": True, "width": 2.0}
    assert Command.changed == wanted
    assert Command.values == wanted | {"seed": 1, "kind": "square", "title": None}
    with pytest.raises(ValueError, match="--out is missing"):
        commands.run_here(Command)


def test_messages_name_the_flags_of_the_arguments():
    def run():
        raise ValueError(f"Leave out `names=a`, `bold` and `other` of {cli.with_flags('`seed`')}.")

    class Failing(Command):
        _run = run

    with pytest.raises(ValueError, match="out --labels=a, --bold and `other` of --seed"):
        commands.run_here(Failing, "--out=a")
    assert cli.with_flags("`bold`") == "`bold`"
    assert cli.with_flags("`splits=a` of tfcap.prepare") == "--splits=a of tfcap.prepare"


def test_a_message_of_a_layer_or_model_names_no_flag():
    """The options of a model are keys; a flag of the same name means something else."""
    names = set()
    for path in pathlib.Path(tfcap.__file__).parent.glob("*.py"):
        module = importlib.import_module(f"tfcap.{path.stem}")
        if hasattr(module, "_define_flags"):
            names |= set(commands.defined(module))
    assert {"regions", "max_length", "beam"} <= names
    root = pathlib.Path(tfcap.__file__).parent
    paths = [path for room in ("layers", "models") for path in (root / room).glob("*.py")]
    raised = [
        ast.unparse(node)
        for path in paths
        for node in ast.walk(ast.parse(path.read_text("utf-8")))
        if isinstance(node, ast.Raise)
    ]
    assert len(raised) > 10
    assert not [text for text in raised if set(re.findall(r"`(\w+)", text)) & names]
