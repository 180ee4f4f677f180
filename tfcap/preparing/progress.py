"""Shows how far prepare is: a line of progress, and a line for each finished shard."""

import time
from collections.abc import Mapping
from typing import Any

from tfcap import console
from tfcap.preparing.notes import print_problem


class Progress:
    """Shows how many images are finished, and how many in a second. It is a `work.Watcher`.

    Args:
      images: how many images are in shards that are not finished.
      shards: how many shards the data set has.
      finished: how many of them are finished.

    Attributes:
      done: images that this run has processed.
      start: when it began, seconds of `time.monotonic`.
    """

    def __init__(self, images: int, shards: int, finished: int):
        self.images, self.shards, self.finished = images, shards, finished
        self.done, self.start = 0, time.monotonic()
        self._line = console.Line()

    def rate(self) -> float:
        """Returns images per second of this run."""
        return self.done / max(time.monotonic() - self.start, 1e-3)

    def image(self) -> None:
        """Counts an image and shows the line of progress, if it is due."""
        self.done += 1
        self._show()

    def problem(self, text: str) -> None:
        """Prints a line about an image that is skipped."""
        self._line.clear()
        print_problem(text)

    def shard(self, known: Mapping[str, Any], images: int = 0) -> None:
        """Counts a finished shard and prints a line about it.

        Args:
          known: the description of the shard.
          images: how many images it has, if `image` was not called for each.
        """
        self.finished += 1
        self.done += images
        if self._line.visible:
            self._line.clear()
            self._show()
        else:
            print(f"{known['file']}: {known['records']} images, {self.rate():.0f}/s", flush=True)

    def end(self) -> None:
        """Removes the line of progress."""
        self._line.clear()

    def _show(self) -> None:
        if self._line.is_due:
            seconds = time.monotonic() - self.start
            pace = console.pace(self.done, self.images, seconds, "images")
            shards = f"{self.finished} of {self.shards} shards"
            self._line.show(f"{shards}: {self.done} of {self.images}, {pace}")
