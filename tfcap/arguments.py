"""The arguments of a command as a frozen dataclass, from which its flags and its function follow.

    @arguments
    class Export:
        export_dir: str = argument("Directory to write.")
        last: int = argument("Average so many last checkpoints.", default=0, least=0)

    @takes(Export)
    def export(args: Export) -> str:
        \"\"\"Exports a run.\"\"\"

    export(export_dir="served", last=2)

`tfcap.cli.define` makes `--export_dir` and `--last` of the fields, with these texts as their help.
The function takes the fields as arguments, so that `help()`, editors and type checkers know them.
"""

import dataclasses
import functools
import inspect
import textwrap
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, ParamSpec, TypeVar

if TYPE_CHECKING:
    from typing_extensions import dataclass_transform  # of `typing` from Python 3.11
else:

    def dataclass_transform(**_):
        return lambda function: function


P = ParamSpec("P")
Arguments = TypeVar("Arguments")
Result = TypeVar("Result")


class Flag(NamedTuple):
    """What a field says of the flag of a command.

    Attributes:
      help: the text of `--help`, and of `help()`.
      choices: the values that the flag accepts; empty for any.
      least, most: the smallest and the largest number that the flag accepts; None for any.
      many: "" for one value; "commas" for values with commas between them; "repeated" for a flag
        that can be given several times.
      name: the name of the flag, where it is not that of the field; "-" for no flag.
    """

    help: str
    choices: Sequence[str]
    least: float | None
    most: float | None
    many: str
    name: str


def argument(
    help: str,
    *,
    default: Any = dataclasses.MISSING,
    choices: Sequence[str] = (),
    least: float | None = None,
    most: float | None = None,
    many: str = "",
    name: str = "",
    kw_only: bool = True,
) -> Any:
    """Returns the field of an argument.

    Args:
      help, choices, least, most, many, name: see `Flag`.
      default: the default; a field without one must be given.
      kw_only: whether the function takes the argument only by its name.
    """
    flag = Flag(help, choices, least, most, many, name)
    return dataclasses.field(default=default, kw_only=kw_only, metadata={"flag": flag})


@dataclass_transform(frozen_default=True, kw_only_default=True, field_specifiers=(argument,))
def arguments(cls: type[Arguments]) -> type[Arguments]:
    """Makes a frozen dataclass of a class whose fields are arguments."""
    return dataclasses.dataclass(frozen=True, kw_only=True)(cls)


def takes(
    cls: Callable[P, Arguments],
) -> Callable[[Callable[[Arguments], Result]], Callable[P, Result]]:
    """Makes of a function of one `cls` a function of the fields of `cls`."""

    def decorate(function: Callable[[Arguments], Result]) -> Callable[P, Result]:
        @functools.wraps(function)
        def call(*args: P.args, **kwargs: P.kwargs) -> Result:
            return function(cls(*args, **kwargs))

        returned = inspect.signature(function).return_annotation
        signature = inspect.signature(cls).replace(return_annotation=returned)
        vars(call)["__signature__"] = signature
        call.__doc__ = _described(inspect.getdoc(function) or "", cls)
        del vars(call)["__wrapped__"]  # its argument is none of the caller's
        return call

    return decorate


def flags_of(cls: Any) -> dict[dataclasses.Field, Flag]:
    """Returns what each field with a help text says of its flag, in the order of the fields."""
    found = {field: field.metadata.get("flag") for field in dataclasses.fields(cls)}
    return {field: flag for field, flag in found.items() if flag is not None}


def _described(text: str, cls: Any) -> str:
    """Returns a docstring with the section `Args:` after its first paragraphs."""
    listed = ["Args:"]
    for field, flag in flags_of(cls).items():
        line = f"{field.name}: {flag.help}"
        listed += textwrap.wrap(line, 98, initial_indent="  ", subsequent_indent="    ")
    before, *after = text.partition("\nReturns:\n")
    return "\n".join([before.rstrip(), "", *listed]) + "".join(["\n", *after] if after[0] else [])
