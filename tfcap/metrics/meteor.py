"""METEOR through the jar of pycocoevalcap, in a process that stays alive between calls.

The jar needs five to twelve seconds to load its paraphrase table and then scores thousands of
captions a second, so one process serves a whole training. pycocoevalcap's own `Meteor` speaks the
same protocol but cannot be used safely: after any error its lock stays taken and its destructor
waits for that lock for ever, it never reads stderr, and it waits for answers without limit.

Paper: Denkowski and Lavie, "Meteor Universal", WMT 2014. Called as pycocoevalcap does: English,
`-norm`, default weights.
"""

import collections
import pathlib
import queue
import subprocess
import threading
import weakref
from collections.abc import Sequence
from typing import IO

from pycocoevalcap.meteor import meteor as official

from tfcap.metrics import java as java_lib

_DIRECTORY = pathlib.Path(official.__file__).parent
_HEAP_GB = 2
_STDERR_CHUNKS = 64  # Kept of the error output, 1 KiB each.


class Meteor:
    """A METEOR process, started at the first use and restarted once if it dies.

    Args:
        java: The Java to use.
        timeout: Seconds of silence after which the process is given up. Loading counts, so leave
            room for a slow machine.
    """

    def __init__(self, java: java_lib.Java, timeout: float = 120.0):
        self._java = java
        self._timeout = timeout
        self._process: subprocess.Popen | None = None

    @property
    def pid(self) -> int | None:
        """Process id while a process is held, else None."""
        return self._process.pid if self._process else None

    def start(self) -> None:
        """Starts the process if there is none; returns at once, while it loads.

        Raises:
            JavaError: It cannot be started.
        """
        if self._process is not None:
            return
        command = self._java.command(
            "-jar", official.METEOR_JAR, "-", "-", "-stdio", "-l", "en", "-norm", heap_gb=_HEAP_GB
        )
        self._process = java_lib.launch(command, cwd=_DIRECTORY)
        self._answers: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._errors: collections.deque[bytes] = collections.deque(maxlen=_STDERR_CHUNKS)
        # Someone must always read both pipes: a full one would stop the process for good.
        threading.Thread(
            target=_read_answers, args=(self._process.stdout, self._answers), daemon=True
        ).start()
        self._drain = threading.Thread(
            target=_read_errors, args=(self._process.stderr, self._errors), daemon=True
        )
        self._drain.start()
        # Runs at close, when this object is forgotten and at the end of the interpreter.
        self._finalizer = weakref.finalize(self, java_lib.stop, self._process)

    def close(self) -> None:
        """Ends the process; a later `score` starts another."""
        if self._process is not None:
            self._finalizer()
            self._process = None

    def score(
        self, references: Sequence[Sequence[str]], hypotheses: Sequence[str]
    ) -> tuple[float, list[float]]:
        """Scores tokenized captions.

        Args:
            references: For each image its reference captions, at least one.
            hypotheses: For each image the caption to score; may be empty (scores 0).

        Returns:
            The corpus score and the score of each image, 0 to 1.

        Raises:
            JavaError: The process failed twice in a row; the message has its reason.
        """
        return self.evaluate(self.statistics(references, hypotheses))

    def statistics(
        self, references: Sequence[Sequence[str]], hypotheses: Sequence[str]
    ) -> list[str]:
        """Returns what METEOR counted for each image, as the line of numbers that it writes.

        The counts of several images, added number by number, are those of the images together:
        `evaluate` scores such a sum as it scores one image. Arguments and errors as of `score`.
        """
        requests = [
            " ||| ".join(["SCORE", *map(_field, captions), _field(hypothesis)])
            for captions, hypothesis in zip(references, hypotheses, strict=True)
        ]
        return self._insist(requests, len(requests))

    def evaluate(self, statistics: Sequence[str]) -> tuple[float, list[float]]:
        """Returns the score of all the statistics together, and the score of each.

        Raises:
            JavaError: The process failed twice in a row; the message has its reason.
        """
        answers = self._insist([" ||| ".join(["EVAL", *statistics])], len(statistics) + 1)
        try:
            *each, corpus = map(float, answers)
        except ValueError as error:
            self.close()
            raise java_lib.JavaError(f"METEOR answered no number: {error}") from error
        return corpus, each

    def _insist(self, requests: Sequence[str], answers: int) -> list[str]:
        """`_exchange`, a second time if the first fails."""
        try:
            self.start()
            return self._exchange(requests, answers)
        except java_lib.JavaError:
            # A process killed from outside (say for memory) shall cost seconds, not the score.
            self.close()
        try:
            self.start()
            return self._exchange(requests, answers)
        except java_lib.JavaError:
            self.close()
            raise

    def _exchange(self, requests: Sequence[str], answers: int) -> list[str]:
        """Sends all requests and returns the lines that came back, or kills and raises."""
        # Written beside reading, so that a process that stopped reading cannot block us.
        threading.Thread(target=_write, args=(self._process.stdin, requests), daemon=True).start()
        received = []
        for _ in range(answers):
            try:
                line = self._answers.get(timeout=self._timeout)
            except queue.Empty:
                java_lib.stop(self._process)
                raise java_lib.JavaError(
                    f"METEOR did not answer within {self._timeout:g} s"
                ) from None
            if line is None:
                self._drain.join(timeout=1.0)
                told = java_lib.reason(b"".join(self._errors))
                raise java_lib.JavaError(f"the METEOR process ended: {told}")
            received.append(line.decode("utf-8", "replace").strip())
            if received[-1].startswith("Error"):
                raise java_lib.JavaError(f"METEOR refused a line: {received[-1][:200]}")
        return received


def _field(caption: str) -> str:
    # The separator inside a caption would make two of it (pycocoevalcap: hypotheses only).
    return caption.replace("|||", "").replace("  ", " ")


def _write(stream: IO[bytes], requests: Sequence[str]) -> None:
    try:
        stream.write("".join(f"{line}\n" for line in requests).encode())
        stream.flush()
    except (OSError, ValueError):
        pass  # The process is gone; whoever waits for the answers is told.


def _read_answers(stream: IO[bytes], answers: queue.SimpleQueue) -> None:
    with stream:
        for line in stream:
            answers.put(line)
    answers.put(None)


def _read_errors(stream: IO[bytes], errors: collections.deque) -> None:
    with stream:
        while chunk := stream.read1(1024):
            errors.append(chunk)
