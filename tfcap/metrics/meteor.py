"""Computes METEOR with the jar of pycocoevalcap, in a process that stays alive between calls.

The jar needs five to twelve seconds to load its paraphrase table and then scores thousands of
captions per second, so one process serves a whole training. pycocoevalcap's own `Meteor` uses the
same protocol but is not safe: after an error its lock stays locked and its destructor waits for the
lock for ever, it never reads stderr, and it waits for answers without a time limit.

Paper: Denkowski and Lavie, "Meteor Universal", WMT 2014. Called as pycocoevalcap does: English,
`-norm`, default weights.
"""

import collections
import io
import pathlib
import queue
import threading
import weakref
from collections.abc import Sequence
from typing import IO

import numpy as np
from pycocoevalcap.meteor import meteor as official

from tfcap.metrics import java as java_lib

_DIRECTORY = pathlib.Path(official.__file__).parent
_HEAP_GB = 2
_STDERR_CHUNKS = 64  # number of chunks of 1 KiB kept of the error output


class Meteor:
    """A METEOR process that starts at the first use and is restarted once if it ends.

    Args:
        java: The Java to use.
        timeout: Seconds without an answer after which the process is stopped. They include the
            loading, which takes longer on a slow machine.
    """

    def __init__(self, java: java_lib.Java, timeout: float = 120.0):
        self._java = java
        self._timeout = timeout
        self._process: java_lib.Process | None = None

    @property
    def pid(self) -> int | None:
        """The process id; None without a process."""
        return self._process.pid if self._process else None

    def start(self) -> None:
        """Starts the process if there is none, and returns while it loads.

        Raises:
            JavaError: The process cannot be started.
        """
        if self._process is not None:
            return
        command = self._java.command(
            "-jar", official.METEOR_JAR, "-", "-", "-stdio", "-l", "en", "-norm", heap_gb=_HEAP_GB
        )
        self._process = java_lib.launch(command, cwd=_DIRECTORY)
        self._answers: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._errors: collections.deque[bytes] = collections.deque(maxlen=_STDERR_CHUNKS)
        # Two threads always read both pipes, because a full pipe would block the process.
        threading.Thread(
            target=_read_answers, args=(self._process.stdout, self._answers), daemon=True
        ).start()
        self._drain = threading.Thread(
            target=_read_errors, args=(self._process.stderr, self._errors), daemon=True
        )
        self._drain.start()
        # Runs at `close`, when this object is deleted, and when the interpreter ends.
        self._finalizer = weakref.finalize(self, java_lib.stop, self._process)

    def close(self) -> None:
        """Ends the process; a later `score` starts a new one."""
        if self._process is not None:
            self._finalizer()
            self._process = None

    def score(
        self, references: Sequence[Sequence[str]], hypotheses: Sequence[str]
    ) -> tuple[float, list[float]]:
        """Scores tokenized captions.

        Args:
            references: For each image its reference captions, at least one.
            hypotheses: For each image the caption to score; an empty caption scores 0.

        Returns:
            The corpus score and the score of each image, 0 to 1.

        Raises:
            JavaError: The process failed twice in a row; the message has its reason.
        """
        return self.evaluate(self.statistics(references, hypotheses))

    def statistics(
        self, references: Sequence[Sequence[str]], hypotheses: Sequence[str]
    ) -> list[str]:
        """Returns METEOR's counts for each image, as the line of numbers that the jar writes.

        `evaluate` scores such lines; `counts_to_add` makes counts of them that can be added.
        Arguments and errors are those of `score`.
        """
        requests = [
            " ||| ".join(["SCORE", *map(_field, captions), _field(hypothesis)])
            for captions, hypothesis in zip(references, hypotheses, strict=True)
        ]
        return self._insist(requests, len(requests))

    def evaluate(self, statistics: Sequence[str]) -> tuple[float, list[float]]:
        """Returns the score of the sum of all statistics, and the score of each.

        Raises:
            JavaError: The process failed twice in a row; the message has its reason.
        """
        answers = self._insist([" ||| ".join(["EVAL", *statistics])], len(statistics) + 1)
        try:
            *each, corpus = map(float, answers)
        except ValueError as error:
            self.close()
            raise java_lib.JavaError(
                f"METEOR must answer with numbers. Received: {error}"
            ) from error
        return corpus, each

    def _insist(self, requests: Sequence[str], answers: int) -> list[str]:
        """Calls `_exchange`, and once more with a new process if the first call fails."""
        try:
            self.start()
            return self._exchange(requests, answers)
        except java_lib.JavaError:
            # A process may have been killed from outside, for example for its memory.
            self.start()
            return self._exchange(requests, answers)

    def _exchange(self, requests: Sequence[str], answers: int) -> list[str]:
        """Sends all requests and returns the answers; after any error the process is ended."""
        try:
            return self._answered(requests, answers)
        except BaseException:  # also Ctrl-C: the answers that are left belong to these requests
            self.close()
            raise

    def _answered(self, requests: Sequence[str], answers: int) -> list[str]:
        process = self._process
        assert process is not None, "start comes first"
        # Another thread writes, so that a process that stopped reading cannot block this one.
        threading.Thread(target=_write, args=(process.stdin, requests), daemon=True).start()
        received = []
        for _ in range(answers):
            try:
                line = self._answers.get(timeout=self._timeout)
            except queue.Empty:
                raise java_lib.JavaError(
                    f"METEOR did not answer within {self._timeout:g} s"
                ) from None
            if line is None:
                self._drain.join(timeout=1.0)
                reason = java_lib.reason(b"".join(self._errors))
                raise java_lib.JavaError(f"the METEOR process ended: {reason}")
            received.append(line.decode("utf-8", "replace").strip())
            if received[-1].startswith("Error"):
                raise java_lib.JavaError(f"METEOR refused a line: {received[-1][:200]}")
        return received


def counts_to_add(statistics: Sequence[str]) -> np.ndarray:
    """Returns the counts of each image, float64 [N, 23], so that sums over images can be scored.

    The score of a set of images is that of the sum of their counts. The jar itself adds no chunk
    for a caption that matches its reference perfectly, in one chunk. Its line says 1 chunk all the
    same, so this is 0 here.

    Args:
        statistics: The lines of `Meteor.statistics`.
    """
    counts = np.array([line.split() for line in statistics], float)
    # The number of words of the caption and of its reference, and how many of them match.
    words, chunks, matches = counts[:, :2], counts[:, 20], counts[:, 21:]
    chunks[(chunks == 1) & (matches == words).all(axis=1)] = 0
    return counts


def _field(caption: str) -> str:
    # A separator inside a caption would split it. pycocoevalcap removes it from hypotheses only.
    return caption.replace("|||", "").replace("  ", " ")


def _write(stream: IO[bytes], requests: Sequence[str]) -> None:
    try:
        stream.write("".join(f"{line}\n" for line in requests).encode())
        stream.flush()
    except (OSError, ValueError):
        pass  # The process has ended; the reader of the answers reports it.


def _read_answers(stream: IO[bytes], answers: queue.SimpleQueue) -> None:
    with stream:
        for line in stream:
            answers.put(line)
    answers.put(None)


def _read_errors(stream: io.BufferedReader, errors: collections.deque) -> None:
    with stream:
        while chunk := stream.read1(1024):
            errors.append(chunk)
