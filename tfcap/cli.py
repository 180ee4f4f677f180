"""What the commands share: how they start and end, and common flags.

A command is a module with the functions `_define_flags`, `_run` and `main`. Its flags are defined
when it runs, not when it is imported: a program may import several commands, and their flags have
names in common. TensorFlow is imported after the flags are checked, so that an error about a flag
comes at once.

Exit codes:

* 0: done.
* 2: wrong usage or configuration.
* 3: bad data, a missing file, a full disk, not enough memory.
* 75: SIGTERM ended training after a checkpoint, or a worker was lost; the same command resumes.
* 130: Ctrl-C.
* 141: standard output was closed, as in `command | head`.
"""

import dataclasses
import errno
import importlib
import importlib.abc
import importlib.machinery
import inspect
import os
import re
import sys
import typing
from collections.abc import Callable, Iterable, Sequence
from types import ModuleType
from typing import Any, NoReturn

from absl import app, flags, logging

from tfcap import pretrained, progress
from tfcap.arguments import argument, arguments, flags_of
from tfcap.decoding import options
from tfcap.errors import Interrupted, UsageError, did_you_mean, escaped

flags.DEFINE_bool("debug", False, "Show the traceback of errors that otherwise have one line.")
flags.DEFINE_multi_string(
    "import",
    [],
    "Module of Python to import first, which may register a system of your own; repeatable.",
)
_ARGUMENT = "argument"  # attribute of a flag: the name of the argument that it sets
flags.disclaim_key_flags()  # the functions below define flags of the command that calls them


def fail(message: object, code: int) -> NoReturn:
    """Prints an error as one line on standard error, and ends the process.

    Args:
      message: the error or its text. Arguments in backticks become flags, see `with_flags`.
      code: the exit code of the process.
    """
    text = with_flags(" ".join(str(message).split()))
    print(f"error: {text}", file=sys.stderr, flush=True)
    sys.exit(code)


def run(main: Callable[..., None]) -> None:
    """Runs a command: parses its flags, calls `main`, and turns expected errors into one line.

    An expected error ends the process with an exit code, see `guard`.

    Args:
      main: the function that does the work of the command. If it has a parameter, it gets a list:
        the name of the program, then the words of the command line that are not flags. If it has no
        parameter, such words are an error.
    """
    progress.show_messages(with_flags)
    for module in flags.FLAGS.flags_by_module_dict():  # --help shows the key flags
        if module.startswith("tfcap."):
            flags.adopt_module_key_flags(sys.modules[module])

    def call(argv: list[str]) -> None:
        if not flags.FLAGS["verbosity"].present:  # official.core and orbit log every step
            logging.set_verbosity(logging.WARNING)
        for module in flags.FLAGS["import"].value:
            _import(module)
        if not flags.FLAGS["import"].value and "keras" not in sys.modules:
            sys.meta_path.insert(0, _KerasAlone())
        if inspect.signature(main).parameters:
            main(argv)
        elif argv[1:]:
            raise UsageError(
                f"{argv[1]!r} is not a flag. This command takes only flags, which begin with --; "
                "--help lists them."
            )
        else:
            main()

    def work() -> None:
        try:
            app.run(call, flags_parser=_parse)
        finally:
            sys.stdout.flush()

    try:
        guard(work)
    finally:
        try:
            sys.stdout.flush()
        except OSError:  # told already; Python would try again at the end, and tell it again
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


class _KerasAlone(importlib.abc.MetaPathFinder):
    """Imports Keras as if libraries were not installed that it imports wherever they are.

    No command uses them through Keras, but a module that `--import` names may. To import them takes
    a second and 130 MB. Other modules than Keras can import them.
    """

    _UNUSED = ("matplotlib", "pandas", "sklearn")

    def find_spec(self, name, path, target=None):
        """Finds Keras, also the older one that TF Model Garden imports."""
        if name not in ("keras", "tf_keras"):
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path, target)
        if spec is None or spec.loader is None:
            return spec
        execute = spec.loader.exec_module

        def without_unused(module: ModuleType) -> None:
            hidden = [unused for unused in self._UNUSED if unused not in sys.modules]
            sys.modules.update(dict.fromkeys(hidden))  # type: ignore[arg-type]
            try:
                execute(module)
            finally:
                for unused in hidden:
                    sys.modules.pop(unused, None)

        spec.loader.exec_module = without_unused  # type: ignore[method-assign]
        return spec


def _import(module: str) -> None:
    """Imports a module of the user, which may lie in the working directory."""
    if not all(map(str.isidentifier, module.split("."))):
        raise UsageError(
            f"--import={module} must be the name of a Python module: mymodels, not mymodels.py."
        )
    if os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())
    try:
        importlib.import_module(module)
    except ModuleNotFoundError as error:
        raise UsageError(
            f"--import={module}: {error}. Install {error.name}, or run the command in the "
            "directory that holds it."
        ) from None


def guard(work: Callable[[], None]) -> None:
    """Calls a function, and ends the process with one line of text if it raises an expected error.

    The exit codes of expected errors are

    * 2 for a UsageError;
    * 3 for other ValueErrors, for OSErrors, for a full disk, and if there is not enough memory;
    * 130 for Ctrl-C;
    * 141 if standard output is closed;
    * the code in an `Interrupted`.

    Other errors are raised. With the flag `--debug`, errors with the exit code 3 are raised, too.

    Args:
      work: the function.
    """
    try:
        work()
    except UsageError as error:
        fail(error, 2)
    except BrokenPipeError:
        sys.exit(141)
    except Interrupted as error:
        fail(error, error.code)
    except KeyboardInterrupt:
        fail("Interrupted.", 130)
    except Exception as error:
        line = _exhausted(error) or (isinstance(error, ValueError | OSError) and str(error))
        if flags.FLAGS["debug"].value or not line:
            raise
        fail(line, 3)


def _exhausted(error: BaseException) -> str:
    """Returns one line if the error means a full disk or too little memory, else "".

    TensorFlow raises several types of its own for these errors.
    """
    text = str(error)
    tensorflow = type(error).__module__.startswith("tensorflow")
    path = re.search(r"[^\s:;]*(?=[:;] (No space left on device|Disk quota exceeded))", text)
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        return f"The disk is full: {error.filename or 'the output'} cannot be written."
    if path and tensorflow:
        return f"The disk is full: {path[0] or 'the output'} cannot be written."
    reason = re.search(r"(?i)(OOM when|out of memory|failed to allocate)[^\n]{0,200}", text)
    if isinstance(error, MemoryError) or (reason and tensorflow):
        return (
            f"There is not enough memory ({reason[0] if reason else 'Python has none left'}). Take "
            "a smaller batch, beam or model; task.micro_batches divides a training step."
        )
    return ""


def _parse(argv: list[str]) -> list[str]:
    """Parses the flags. A wrong flag prints one line; absl would print the whole help."""
    try:
        return flags.FLAGS([argv[0], *map(_with_home, argv[1:])])
    except flags.UnrecognizedFlagError as error:
        modules = flags.FLAGS.flags_by_module_dict().items()
        names = [f.name for m, of_module in modules if not m.startswith("absl.") for f in of_module]
        hint = did_you_mean(error.flagname, names)
        if "decoding" in names and (keys := options.meant(error.flagname)):
            changes = ",".join(key if "=" in key else f"{key}=VALUE" for key in keys)
            hint = f" Write --decoding={changes}."
        fail(f"Unknown flag --{error.flagname}.{hint} --help lists the flags.", 2)
    except flags.Error as error:
        fail(f"{error}. --help lists the flags.", 2)
    except SystemExit:  # absl has printed the page of --help, which it counts as an error
        sys.exit(0)


def _with_home(word: str) -> str:
    """Replaces `~` after `=`, `,` or `:` by the home directory, which a shell does not do."""
    return re.sub(r"(?:^|(?<=[=,:]))~[\w.-]*(?=/|$)", lambda m: os.path.expanduser(m[0]), word)


def define(cls: type) -> None:
    """Defines a flag for each argument of a command.

    Args:
      cls: the class of the arguments, with the decorator `tfcap.arguments.arguments`.
    """
    hints = typing.get_type_hints(cls)
    for field, flag in flags_of(cls).items():
        if (name := flag.name or field.name) == "-":
            continue
        default = None if field.default is dataclasses.MISSING else field.default
        kinds = {hints[field.name], *typing.get_args(hints[field.name])}
        bounds = {"lower_bound": flag.least, "upper_bound": flag.most}
        if flag.many == "commas":
            flags.DEFINE_list(name, list(default or ()), flag.help)
        elif flag.many == "repeated":
            flags.DEFINE_multi_string(name, list(default or ()), flag.help)
        elif flag.choices:
            flags.DEFINE_enum(name, default, list(flag.choices), flag.help)
        elif bool in kinds:
            flags.DEFINE_bool(name, default, flag.help)
        elif str in kinds:
            flags.DEFINE_string(name, default, flag.help)
        elif int in kinds:
            flags.DEFINE_integer(name, default, flag.help, **bounds)
        else:
            flags.DEFINE_float(name, default, flag.help, **bounds)
        vars(flags.FLAGS[name])[_ARGUMENT] = field.name
    for name in flags.FLAGS:  # all names are known now
        if _ARGUMENT in vars(flags.FLAGS[name]):  # not a flag of absl
            flags.FLAGS[name].help = with_flags(flags.FLAGS[name].help)


def values(cls: type, given_only: bool = False, **missing: Any) -> dict[str, Any]:
    """Returns the arguments of a command, from the command line or their defaults: name -> value.

    Args:
      cls: the class of the arguments, whose flags `define` has defined.
      given_only: True leaves out arguments whose flags are not on the command line.
      missing: values for arguments without a default, used if their flags are not on the command
        line.

    Raises:
      UsageError: an argument without a default has no flag on the command line and no value in
        `missing`.
    """
    result = {}
    for field, flag in flags_of(cls).items():
        if (name := flag.name or field.name) == "-":
            continue
        value = flags.FLAGS[name].value or missing.get(field.name, flags.FLAGS[name].value)
        required = field.default is dataclasses.MISSING and field.name not in missing
        if required and not value:
            raise UsageError(f"--{name} is missing. --help says what it is.")
        if flags.FLAGS[name].present or not given_only:
            result[field.name] = value
    return result


def with_flags(text: str) -> str:
    """Translates a message of the library for the command line: arguments become flags.

    The argument `last=3` in backticks becomes --last=3 without backticks. An argument of another
    command becomes a flag, too, if the name of that command follows, as in "`splits` of
    tfcap.prepare". All other names in backticks stay as they are.

    Args:
      text: the message.
    """
    if "`" not in text:
        return text
    names = {vars(flags.FLAGS[name]).get(_ARGUMENT, name): name for name in flags.FLAGS}

    def flag(match: re.Match) -> str:
        if match[1] in names:
            return f"--{names[match[1]]}{match[2]}"
        return f"--{match[1]}{match[2]}" if match[3] else match[0]

    return re.sub(r"`(\w+)((?:=[^`]*)?)`(?=( of tfcap\.)?)", flag, text)


def say_loading(models: Iterable[str]) -> None:
    """Prints that models are being loaded, which takes seconds.

    It prints to standard error, and only if that is a terminal.

    Args:
      models: the names or directories of the models.
    """
    if sys.stderr.isatty():
        print(f"loading {' + '.join(map(escaped, models))} ...", file=sys.stderr, flush=True)


def model_name(*directories: str) -> str:
    """Returns a short name for the models in these directories: those of the directories."""
    return " + ".join(os.path.basename(os.path.abspath(path)) for path in directories)


MODEL_DIR = (
    "Directory of a training run, or the name of a pretrained model: "
    f"{', '.join(pretrained.names())}. Several models form an ensemble."
)


@arguments
class RunArguments:
    """Base class with the arguments of every command that loads trained models."""

    model_dir: str | Sequence[str] = argument(MODEL_DIR, default=(), many="repeated")
    checkpoint: str = argument("Checkpoint to load: best, latest, or a path.", default="best")
    dtype: str = argument(
        "Precision of the captioner. bfloat16 is faster where the processor has units for it; few "
        "captions change.",
        default="float32",
        choices=["float32", "bfloat16"],
    )


@arguments
class DecodingArguments:
    """Base class with the arguments of every command that decodes captions."""

    beam: int | None = argument(
        "Beam width; by default that of the configuration of the run.", default=None, least=1
    )
    decoding: str = argument(
        "Changes to the decoding that the run is configured with: a preset "
        f"({', '.join(options.PRESETS)}), keys of task.decoding as in search=sample,top_p=0.9, or "
        "a preset followed by keys.",
        default="",
    )


@arguments
class SeedArguments:
    """Base class that adds the argument `seed` to the commands that may sample captions."""

    seed: int = argument("Random seed for sampling.", default=1, least=0, most=options.LARGEST_SEED)


@arguments
class WordingArguments:
    """Base class with the arguments of every command that gives captions to other programs."""

    sentence: bool = argument(
        "Begin captions with a capital; end them with a full stop.", default=False
    )
    min_confidence: float | None = argument(
        "A picture whose caption has a lower confidence, 0 to 1, gets an empty caption. The run "
        "must be calibrated (tfcap.calibrate).",
        default=None,
        least=0,
        most=1,
    )
    unsure: bool = argument(
        "Put 'unsure:' before captions below `min_confidence`, instead of leaving them empty.",
        default=False,
    )

    def check_unsure(self) -> None:
        """Raises UsageError for `unsure` without `min_confidence`."""
        if self.unsure and self.min_confidence is None:
            raise UsageError("`unsure` needs `min_confidence`. Give both, or leave out `unsure`.")
