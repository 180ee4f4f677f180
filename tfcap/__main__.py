"""Runs a command by its name: `tfcap train ...` is `python -m tfcap.train ...`.

    tfcap             lists the commands
    tfcap train       runs the command, with its flags
    tfcap --version   prints the version

A command is a module of the package that runs as a script. The first line of its docstring is its
description.
"""

import ast
import pathlib
import runpy
import sys

from tfcap import __version__, cli, errors

_SCRIPT = '\nif __name__ == "__main__":\n'


def commands() -> dict[str, str]:
    """Returns the commands: name of a command, such as "train" -> its description in one line."""
    descriptions = {}
    for path in sorted(pathlib.Path(__file__).parent.glob("*.py")):
        source = path.read_text(encoding="utf-8")
        if _SCRIPT in source and path.stem != "__main__":
            text = ast.get_docstring(ast.parse(source)) or ""
            descriptions[path.stem] = (
                text.partition("\n")[0].partition(": `python -m")[0].rstrip(".")
            )
    return descriptions


def page() -> str:
    """Returns the text that `tfcap --help` prints: the commands with their descriptions."""
    descriptions = commands()
    width = 2 + max(map(len, descriptions))
    return "\n".join(
        [
            f"tfcap {__version__}: image captioning on Keras 3 and TensorFlow",
            "",
            "Commands:",
            *(f"  {name:{width}}{text}" for name, text in descriptions.items()),
            "",
            "`tfcap COMMAND --help` lists the flags of a command.",
            "`python -m tfcap.COMMAND` runs the same command.",
        ]
    )


def main() -> None:
    """Runs the program `tfcap`.

    The first word of the command line is the name of a command. The other words are its flags.
    """
    name, *rest = sys.argv[1:] or ["--help"]
    if name in ("--help", "-h", "help"):
        print(page())
        return
    if name == "--version":
        print(f"tfcap {__version__}")
        return
    names = commands()
    if name not in names:
        hint = errors.did_you_mean(name, names)
        cli.fail(f"There is no command {name}.{hint} `tfcap --help` lists the commands.", 2)
    sys.argv[1:] = rest
    runpy.run_module(f"tfcap.{name}", run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
