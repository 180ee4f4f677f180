"""Scores captions on the second half of `val`, on which no options are chosen."""

import os
import types
from collections.abc import Mapping
from typing import Any

from tfcap.data.prepared import PreparedData
from tfcap.metrics import coco, results

METRICS = ("BLEU", "METEOR", "CIDEr")


class Judge:
    """Scores the captions of the second half of `val`; options are chosen on the first half.

    Use it as a context manager: METEOR runs in a process of its own.

    Attributes:
      half: number of images in the first half.
      data: what identifies this data: its words, its captions, and the width and the backbone of
        its features. Ready-made features of one width count as the same.

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
        known = data.fingerprint
        self.data = {
            "vocab_sha256": known["vocab_sha256"],
            "references_sha256": [
                data.split(split).get("references_sha256") for split in ("train", "val")
            ],
            "features": {key: known["features"][key] for key in ("dim", "max_regions")},
            "backbone": known["backbone"],
        }
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
        """Scores a result file with the captions of `val`; later calls return the same scores.

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

    def read(self, result: Mapping[str, Any]) -> results.Scores:
        """Returns the CIDEr that the result of a job holds; the captions are not read.

        Args:
          result: with `scores`, and in `images` the score of each judged image in order.

        Raises:
          ValueError: the result has another number of images.
        """
        values = result["images"]["CIDEr"]
        if len(values) != len(self._references):
            raise ValueError(
                f"A result must have the scores of {len(self._references)} images. Received: "
                f"{len(values)}. Remove it, or choose another --out."
            )
        images = {
            image: {"CIDEr": value} for image, value in zip(self._references, values, strict=True)
        }
        return results.Scores({"CIDEr": result["scores"]["CIDEr"]}, images)
