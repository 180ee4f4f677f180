"""The pipeline of Apache Beam that writes shards. Importing this module imports Beam."""

import contextlib
import io
import os
import pickle
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import apache_beam as beam
import tensorflow as tf
from apache_beam.metrics import Metrics
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.utils.shared import Shared

from tfcap import cli, files
from tfcap.preparing.engines import Named, Work

LIST = ".tasks.pickle"  # in --out while the pipeline runs
# The last line of a traceback, to which Beam adds the name of the step.
_RAISED = re.compile(r"^(?:\w+\.)*(?:Value|Usage)Error: (.+?)(?: \[while running.*)?$", re.M)


class Tasks:
    """Runs work over a list of tasks.

    The list of pictures of a large data set is longer than the 10 MB that Dataflow accepts as part
    of a pipeline. So it is written into a file, and the pipeline holds the place of each task.

    Args:
      options: options of Beam.
      folder: a directory that all workers see.
    """

    def __init__(self, options: Sequence[str], folder: str):
        output = io.StringIO()
        try:
            with contextlib.redirect_stderr(output):  # Beam's parser prints all of its options
                self._options = PipelineOptions(list(options))
                self._options.get_all_options(retain_unknown_options=True)
        except SystemExit:
            reason = output.getvalue().rpartition("error: ")[2].strip()
            raise cli.UsageError(f"Apache Beam cannot read its options: {reason}.") from None
        self._path = os.path.join(folder, LIST)

    def run(self, work: Work, tasks: Iterable[Named]) -> list[str]:
        """Returns the names of the tasks when the pipeline has ended."""
        names, places = [], []
        with files.replacing(self._path) as temporary, open(temporary, "wb") as file:
            for task in tasks:
                names.append(task.name)
                places.append(file.tell())
                pickle.dump(task, file)
        try:
            with beam.Pipeline(options=self._options) as pipeline:
                # Without the shuffle a runner may fuse all tasks into one piece of work.
                places_of_tasks = pipeline | beam.Create(places) | beam.Reshuffle()
                _ = places_of_tasks | beam.ParDo(_Do(work, self._path))
        except Exception as error:  # runners wrap what a worker raises, or have only its text
            name = "ValueError: " if isinstance(error, ValueError) else ""
            found = _RAISED.findall(f"{name}{error}")
            if not found:
                raise
            raise ValueError(found[-1]) from error
        finally:
            files.remove(self._path)
        return names


class _Do(beam.DoFn):
    """Calls the work with each task; all threads of a process share it."""

    def __init__(self, work: Work, path: str):
        self._work, self._path, self._shared = work, path, Shared()
        self._done = Metrics.counter("tfcap", "tasks")

    def setup(self) -> None:
        given = self._work
        self._work = self._shared.acquire(lambda: given)

    def process(self, place: int) -> Iterator[Any]:  # Beam reads the annotations
        with tf.io.gfile.GFile(self._path, "rb") as file:
            file.seek(place)
            task = pickle.load(file)
        self._work(task)
        self._done.inc()
        yield task.name
