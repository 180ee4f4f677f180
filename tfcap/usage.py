"""Prints the page of `--help`: what the command does, an example, and all of its flags."""

import os
import select
import shutil
import sys
import textwrap
from collections.abc import Sequence
from typing import Any

from absl import flags

ASKS = ("--help", "-help", "-h", "-?", "--helpshort", "-helpshort")
_TYPES = {
    "string": "TEXT",
    "int": "NUMBER",
    "float": "NUMBER",
    "comma separated list of strings": "A,B,...",
}
_WIDEST = 100  # characters of a line


def asked(argv: Sequence[str]) -> bool:
    """Returns whether the command line asks for help. Words after `--` are not flags."""
    given = list(argv[1:])
    return any(word in ASKS for word in (given[: given.index("--")] if "--" in given else given))


def page(description: str, given: flags.FlagValues) -> str:
    """Returns the page of help.

    Args:
      description: the docstring of the command; it holds an example.
      given: all flags. Those of absl itself are not shown: `--helpfull` lists them.
    """
    width = min(_WIDEST, shutil.get_terminal_size((_WIDEST, 24)).columns)
    parts = [description.strip(), "", "Flags:"]
    modules = given.flags_by_module_dict()
    for module in sorted(modules, key="tfcap.console".__eq__):  # the flags of all commands are last
        if not module.startswith("absl."):
            parts += [line for flag in modules[module] for line in _lines(flag, width)]
    return "\n".join([*parts, "  --helpfull", "      Also list the flags of the logging library."])


def _lines(flag: flags.Flag, width: int) -> list[str]:
    """Returns the lines of a flag: its name, values and default; below them what it is for."""
    kind = flag.flag_type()
    if isinstance(flag.parser, flags.EnumParser):
        value = " " + "|".join(flag.parser.enum_values)
    elif flag.boolean:
        value = ""
    else:
        value = " " + _TYPES.get(kind.removeprefix("multi "), kind)
    notes = ["repeatable"] if kind.startswith("multi") else []
    if flag.default not in (None, "", []):
        default = flag.default
        shown = ",".join(default) if isinstance(default, list) else str(default).lower()
        notes.append(f"default: {shown if not isinstance(default, str) else default}")
    head = f"  --{'[no]' if flag.boolean else ''}{flag.name}{value}"
    head += f"  ({', '.join(notes)})" if notes else ""
    # absl adds the values of an enumeration to the text, and that a flag can be repeated.
    text = flag.help.partition(";\n")[0].removeprefix(f"<{value.strip()}>: ")
    indent: dict[str, Any] = {"subsequent_indent": " " * 6, "break_on_hyphens": False}
    return [
        *textwrap.wrap(head, width, **indent),
        *textwrap.wrap(text, width, initial_indent=" " * 6, **indent),
    ]


def show(description: str) -> None:
    """Prints the page of help for the flags that are defined."""
    try:
        print(page(description, flags.FLAGS), flush=True)
    except BrokenPipeError:
        output_is_closed()


def output_is_closed() -> bool:
    """Returns whether the reader of standard output has gone, as in `command | head`.

    If so, later output is discarded, because Python would report a second error when it ends.
    """
    try:
        sys.stdout.flush()
        output = select.poll()
        output.register(sys.stdout, 0)  # a failed `print` of a long text leaves nothing to flush
        closed = bool(output.poll(0))
    except BrokenPipeError:
        closed = True
    if closed:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return closed
