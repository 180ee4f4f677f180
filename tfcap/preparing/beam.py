"""The pipeline of Apache Beam that makes shards. Importing this module imports Beam."""

import contextlib
import io
import re
from collections.abc import Iterator, Sequence
from typing import Any

import apache_beam as beam
from apache_beam.metrics import Metrics
from apache_beam.options.pipeline_options import PipelineOptions, StandardOptions
from apache_beam.utils.shared import Shared

from tfcap import cli
from tfcap.cli import did_you_mean
from tfcap.preparing.engines import Named, Work

# The last line of a traceback, to which Beam adds the name of the step.
_RAISED = re.compile(r"^(?:\w+\.)*(?:Value|Usage)Error: (.+?)(?: \[while running.*)?$", re.M)

# Runners whose options are all known here. The job server of Flink, Spark and others has more.
_KNOWING = ("", "direct", "bundlebaseddirect", "switchingdirect", "fnapi", "prism", "dataflow")


def check(options: Sequence[str]) -> None:
    """Raises an error for options that Beam does not know. Beam itself only prints a warning.

    Raises:
      UsageError: an option does not exist, or has a wrong value.
    """
    output = io.StringIO()
    try:
        with contextlib.redirect_stderr(output):  # Beam's parser prints all of its options
            given = PipelineOptions(list(options))
            runner = given.view_as(StandardOptions).runner or ""
            names = list(given.get_all_options(retain_unknown_options=True))
    except SystemExit:
        reason = output.getvalue().rpartition("error: ")[2].strip()
        raise cli.UsageError(
            f"The options of Beam after -- must have values that Beam reads. Received: {reason}."
        ) from None
    for before, word in zip(["", *options], options, strict=False):
        if not word.startswith("-") and (not before.startswith("-") or "=" in before):
            raise cli.UsageError(f"The options after -- must begin with --. Received: {word}.")
    known = PipelineOptions([]).get_all_options()
    unknown = [name for name in names if name not in known]
    if not unknown or runner.lower().removesuffix("runner") not in _KNOWING:
        return
    remedy = did_you_mean(unknown[0], known) or " Leave it out."
    raise cli.UsageError(
        f"The options after -- must be options of Beam. Received: --{unknown[0]}.{remedy}"
    )


class _Do(beam.DoFn):
    """Calls a worker with each task; all threads of a process share one worker."""

    def __init__(self, worker: Work):
        self._worker, self._shared = worker, Shared()
        self._done = Metrics.counter("tfcap", "tasks")

    def setup(self) -> None:
        given = self._worker
        self._worker = self._shared.acquire(lambda: given)

    def process(self, task: Any) -> Iterator[str]:  # Beam reads the annotations
        self._worker(task)
        self._done.inc()
        yield task.name


def run(worker: Work, tasks: Sequence[Named], options: Sequence[str]) -> None:
    """Runs a worker over tasks and waits for the end of the pipeline.

    Args:
      worker: a callable that is pickled; processes of Beam call it with each task.
      tasks: the tasks, which become a part of the pipeline.
      options: options of Beam.

    Raises:
      ValueError: the worker has raised one; the message is that of the worker.
    """
    try:
        with beam.Pipeline(options=PipelineOptions(list(options))) as pipeline:
            # Without the shuffle a runner may fuse all tasks into one piece of work.
            _ = pipeline | beam.Create(tasks) | beam.Reshuffle() | beam.ParDo(_Do(worker))
    except Exception as error:  # runners wrap what a worker raises, or have only its text
        name = "ValueError: " if isinstance(error, ValueError) else ""
        found = _RAISED.findall(f"{name}{error}")
        if not found:
            raise
        raise ValueError(found[-1]) from error
