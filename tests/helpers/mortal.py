"""Work for processes that end: importable, because new processes have to find it."""

import os
import pathlib
import signal
from typing import NamedTuple


class Number(NamedTuple):
    """A task: 7 kills its process, and a negative number is an error."""

    number: int

    @property
    def name(self) -> str:
        return str(self.number)


class Mortal:
    """Writes the id of its process into a file for each task."""

    def __init__(self, folder):
        self.folder = pathlib.Path(folder)

    def __call__(self, task):
        if task.number == 7:
            os.kill(os.getpid(), signal.SIGKILL)
        if task.number < 0:
            raise ValueError(f"a bad number: {task.number}")
        (self.folder / task.name).write_text(str(os.getpid()))
