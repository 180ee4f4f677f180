"""Scores captions on the half of `val` that chose nothing."""

import os
import types

from tfcap.data.prepared import PreparedData
from tfcap.metrics import coco, results

METRICS = ("BLEU", "METEOR", "CIDEr")


class Judge:
    """Scores the captions of the second half of `val`; the first half chooses.

    Use it as a context manager: METEOR runs in a process of its own.

    Attributes:
      half: number of images that choose.

    Args:
      data_dir: the prepared directory.

    Raises:
      ValueError: the directory is bad, or its `val` has no captions in one of the halves.
    """

    def __init__(self, data_dir: str):
        data = PreparedData.load(data_dir)
        ids = data.index("val").id.tolist()
        self.half = len(ids) // 2
        captions = data.references("val")
        self._references = {image: captions[image] for image in ids[self.half :] if captions[image]}
        if not self._references or not any(captions[image] for image in ids[: self.half]):
            raise ValueError(
                f"The split val of {data_dir} must have captions in both halves. Received: "
                f"{len(ids)} images. Prepare more images for val."
            )
        self._scorer = coco.CocoScorer(METRICS)
        self._known: dict[str, results.Scores] = {}

    def __enter__(self) -> "Judge":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: types.TracebackType | None,
    ) -> None:
        self._scorer.close()

    def scores(self, path: str | os.PathLike) -> results.Scores:
        """Scores a result file with the captions of `val`; a file is scored once.

        Raises:
          ValueError: the file is bad, or an image has no caption in it.
        """
        path = os.fspath(path)
        if path not in self._known:
            captions = results.load_results(path)
            judged = {image: captions[image] for image in captions if image in self._references}
            results.check_ids(self._references, judged)
            self._known[path] = self._scorer.score(self._references, judged)
        return self._known[path]
