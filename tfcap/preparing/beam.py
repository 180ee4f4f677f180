"""The pipeline of Apache Beam that writes shards. Importing this module imports Beam."""

import contextlib
import io
import pickle
import re
from collections.abc import Iterable, Iterator, Sequence

import apache_beam as beam
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.utils.shared import Shared

from tfcap import errors
from tfcap.preparing.engines import Engine, NamedTask, Work

# The last line of a traceback, to which Beam adds the name of the step.
_RAISED = re.compile(r"^(?:\w+\.)*(?:Value|Usage)Error: (.+?)(?: \[while running.*)?$", re.M)


def engine(options: Sequence[str]) -> Engine:
    """Returns an engine that writes shards with a pipeline of Apache Beam.

    Args:
      options: command-line options of Beam, such as `--runner=FlinkRunner`.

    Returns:
      A function of `work` and the tasks. It calls the function `work` with each task, on the
      workers of the pipeline. When all tasks are finished, it yields their names.

    Raises:
      UsageError: Beam cannot read the options.
    """
    output = io.StringIO()
    try:
        with contextlib.redirect_stderr(output):  # Beam's parser prints all of its options
            parsed = PipelineOptions(list(options))
            parsed.get_all_options(retain_unknown_options=True)
    except SystemExit:
        reason = output.getvalue().rpartition("error: ")[2].strip()
        raise errors.UsageError(
            f"Apache Beam cannot read its options: {reason}. Correct or leave out that option."
        ) from None

    def run(work: Work, tasks: Iterable[NamedTask]) -> Iterator[str]:
        listed = list(tasks)
        try:
            with beam.Pipeline(options=parsed) as pipeline:
                # Without the shuffle a runner may fuse all tasks into one piece of work.
                pickled = pipeline | beam.Create(map(pickle.dumps, listed)) | beam.Reshuffle()
                _ = pickled | beam.ParDo(_Do(work))
        except Exception as error:  # runners wrap what a worker raises, or have only its text
            name = "ValueError: " if isinstance(error, ValueError) else ""
            messages = _RAISED.findall(f"{name}{error}")
            if not messages:
                raise
            raise ValueError(messages[-1]) from error
        yield from (task.name for task in listed)

    return run


class _Do(beam.DoFn):
    """A Beam step that calls `work` with each task; all threads of a process share `work`."""

    def __init__(self, work: Work):
        self._work = work
        self._shared = Shared()

    def setup(self) -> None:
        work = self._work
        self._work = self._shared.acquire(lambda: work)

    def process(self, pickled: bytes) -> None:
        self._work(pickle.loads(pickled))
