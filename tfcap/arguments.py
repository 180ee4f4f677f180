"""Declares the arguments of a command once, for its flags and for its Python function.

The arguments are the fields of a frozen dataclass:

    @arguments
    class Export:
        export_dir: str = argument("Directory to write.")
        last: int = argument("Average so many last checkpoints.", default=0, least=0)

    @takes(Export)
    def export(args: Export) -> str:
        \"\"\"Exports a run.\"\"\"

    export(export_dir="served", last=2)

`tfcap.cli.define` makes the flags `--export_dir` and `--last` from the fields. The help text of a
flag is the text of its field. `export` takes the fields as its arguments: `help()`, editors and
type checkers show their names, types, defaults and texts. In such a text another argument stands in
backticks, as in `last` or `format=run`. `--help` shows it as a flag: `--last` or `--format=run`.
"""

import dataclasses
import functools
import inspect
import re
import textwrap
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, ParamSpec, TypeVar

from tfcap.errors import UsageError

if TYPE_CHECKING:
    from typing_extensions import dataclass_transform  # of `typing` from Python 3.11
else:

    def dataclass_transform(**_):
        return lambda function: function


_SECTION = r"\n(?=(?:Returns|Yields|Raises|Example):\n)"  # of a docstring, after `Args:`
P = ParamSpec("P")
Arguments = TypeVar("Arguments")
Result = TypeVar("Result")


class Flag(NamedTuple):
    """How the command line shows one argument of a command.

    Attributes:
      help: the text of `--help` and of `help()`.
      python: a sentence that only `help()` shows, about values that only Python code can pass.
      choices: the values that the flag accepts; empty accepts any value.
      least, most: the smallest and the largest number that the flag accepts; None sets no limit.
      many: "" for one value; "commas" for a list of values with commas between them; "repeated" for
        a flag that can be given several times.
      name: the name of the flag; "" for the name of the argument; "-" if the argument has no flag
        and only the Python function takes it.
    """

    help: str
    python: str
    choices: Sequence[str]
    least: float | None
    most: float | None
    many: str
    name: str


def argument(
    help: str,
    *,
    default: Any = dataclasses.MISSING,
    python: str = "",
    choices: Sequence[str] = (),
    least: float | None = None,
    most: float | None = None,
    many: str = "",
    name: str = "",
    kw_only: bool = True,
) -> Any:
    """Declares one argument of a command, in a class with the decorator `arguments`.

    Args:
      help, python, choices, least, most, many, name: see `Flag`.
      default: the default value; an argument without a default is required.
      kw_only: whether the function takes the argument only by its name; if False, it takes the
        argument by its position, too.

    Returns:
      A dataclass field.
    """
    flag = Flag(help, python, choices, least, most, many, name)
    return dataclasses.field(default=default, kw_only=kw_only, metadata={"flag": flag})


@dataclass_transform(frozen_default=True, kw_only_default=True, field_specifiers=(argument,))
def arguments(cls: type[Arguments]) -> type[Arguments]:
    """Class decorator: makes a frozen dataclass, whose fields are the arguments of a command.

    Args:
      cls: the class. Each of its fields has a type, and the result of `argument` as its value.
    """
    return dataclasses.dataclass(frozen=True, kw_only=True)(cls)


def takes(
    cls: Callable[P, Arguments],
) -> Callable[[Callable[[Arguments], Result]], Callable[P, Result]]:
    """Returns a decorator, after which callers pass the fields of `cls` as separate arguments.

    The function that is decorated has one parameter, an object of `cls`. For example,
    `def export(args: Export)` with the decorator `@takes(Export)` is called as
    `export(export_dir="served")`. The call raises UsageError if an argument has a value that its
    flag does not accept.

    Args:
      cls: a class made by `arguments`.
    """

    def decorate(function: Callable[[Arguments], Result]) -> Callable[P, Result]:
        @functools.wraps(function)
        def call(*args: P.args, **kwargs: P.kwargs) -> Result:
            values = cls(*args, **kwargs)
            check(values)
            return function(values)

        returned = inspect.signature(function).return_annotation
        signature = inspect.signature(cls).replace(return_annotation=returned)
        vars(call)["__signature__"] = signature
        call.__doc__ = _described(inspect.getdoc(function) or "", cls)
        del vars(call)["__wrapped__"]  # its argument is none of the caller's
        return call

    return decorate


def flags_of(cls: Any) -> dict[dataclasses.Field, Flag]:
    """Returns the flag of each field of `cls`, in the order in which `cls` takes its arguments.

    Fields that were not declared with `argument` are left out.

    Args:
      cls: a class made by `arguments`.
    """
    fields = {field.name: field for field in dataclasses.fields(cls)}
    ordered = [fields[name] for name in inspect.signature(cls).parameters]
    return {f: f.metadata["flag"] for f in ordered if "flag" in f.metadata}


def check(args: Any) -> None:
    """Raises UsageError if an argument has a value that its flag does not accept.

    Args:
      args: an object of a class made by `arguments`.
    """
    for field, flag in flags_of(type(args)).items():
        value = getattr(args, field.name)
        if value is None:
            continue
        if flag.choices and not flag.many and value not in flag.choices:
            allowed = f"one of {', '.join(flag.choices)}"
        elif flag.least is not None and value < flag.least:
            allowed = f"at least {flag.least:.12g}"
        elif flag.most is not None and value > flag.most:
            allowed = f"at most {flag.most:.12g}"
        else:
            continue
        raise UsageError(f"`{field.name}={value}` must be {allowed}.")


def _described(docstring: str, cls: Any) -> str:
    """Returns the docstring with a section `Args:` of the fields of `cls`."""
    lines = ["Args:"]
    for field, flag in flags_of(cls).items():
        text = f"{field.name}: {flag.help} {flag.python}".rstrip()
        lines += textwrap.wrap(text, 98, initial_indent="  ", subsequent_indent="    ")
    before, *sections = re.split(_SECTION, docstring)
    return "\n".join([before.rstrip(), "", *lines, *("\n" + section for section in sections)])
