"""Captions the pictures of several requests together."""

import queue
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import TYPE_CHECKING, NamedTuple

from tfcap.captioning.image_captioner import Prepared, caption_batch
from tfcap.captioning.results import Caption, Failure

if TYPE_CHECKING:
    from tfcap.captioning.runtimes import Runtime


class _Waiting(NamedTuple):
    """A picture that waits for its captions, its random seed, and where they go."""

    picture: Prepared
    seed: int
    result: "Future[Caption | Failure]"


class Batches:
    """Captions pictures from several threads, in batches of what waits.

    A batch is taken as soon as a worker is free, so a picture that comes alone does not wait for
    others. Its captions do not depend on the other pictures of its batch.

    Args:
      runtime: the loaded model.
      batch_size: the largest number of pictures in a batch.
      workers: number of threads, each with a batch of its own.
      observe: a function that is called with the number of pictures of each batch.
    """

    def __init__(
        self,
        runtime: "Runtime",
        batch_size: int,
        workers: int = 1,
        observe: Callable[[int], None] = lambda size: None,
    ):
        self._runtime = runtime
        self._batch_size = batch_size
        self._observe = observe
        self._waiting = queue.SimpleQueue[_Waiting]()
        for _ in range(workers):
            threading.Thread(target=self._work, daemon=True).start()

    def submit(self, picture: Prepared, seed: int) -> "Future[Caption | Failure]":
        """Lets a picture wait for the next batch.

        Args:
          picture: the picture, a result of `image_captioner.prepare`.
          seed: its random seed, for sampled captions only.

        Returns:
          The future caption. If it is cancelled before its batch begins, the picture is left out.
        """
        waiting = _Waiting(picture, seed, Future())
        self._waiting.put(waiting)
        return waiting.result

    def _work(self) -> None:
        while True:
            batch = [self._waiting.get()]
            while len(batch) < self._batch_size:
                try:
                    batch.append(self._waiting.get_nowait())
                except queue.Empty:
                    break
            if batch := [one for one in batch if one.result.set_running_or_notify_cancel()]:
                self._observe(len(batch))
                self._caption(batch)

    def _caption(self, batch: Sequence[_Waiting]) -> None:
        try:
            results = caption_batch(
                self._runtime, [one.picture for one in batch], [one.seed for one in batch]
            )
        except Exception as error:
            if len(batch) == 1:
                batch[0].result.set_exception(error)
            else:  # the fault of one picture, or too little memory, must not spoil the others
                for one in batch:
                    self._caption([one])
            return
        for one, result in zip(batch, results, strict=True):
            one.result.set_result(result)
