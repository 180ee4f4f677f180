"""Captions pictures with a portable export, without TensorFlow.

Letters: B pictures, K captions of a picture, H and W height and width of a picture.
"""

import os
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import numpy as np

from tfcap import pretrained
from tfcap.captioning.inputs import Content, View, views_of
from tfcap.captioning.results import CaptionedBatch
from tfcap.images import readable, refusal
from tfcap.serving.standalone import caption as standalone

if TYPE_CHECKING:
    from tfcap.captioning.runtimes import TrainedRun

_MOST_THREADS = 8  # each has a copy of the weights in memory


class PortableModel:
    """Captions pictures with a portable export; a `Runtime`.

    The directory of a pretrained model is also that of its run. Then the run is loaded for what an
    export cannot do.

    Args:
      directory: a directory that `tfcap.export` wrote with `format=litert` or `format=onnx`.

    Raises:
      ValueError: the directory is damaged, reads ready-made features, or the package that runs its
        file is missing.
    """

    reads_clips = False

    def __init__(self, directory: str):
        self.directory = directory
        self._run: TrainedRun | None = None
        try:
            self._captioner = standalone.Captioner(directory)
        except ImportError as error:
            raise ValueError(
                f"{directory} needs a package that cannot be imported: {error}. Run: pip install "
                "ai-edge-litert, or onnxruntime for an ONNX file."
            ) from error
        except Exception as error:  # a damaged file raises errors of all kinds
            reason = (str(error).splitlines() or [type(error).__name__])[0]
            raise ValueError(
                f"The export {directory} cannot be loaded: {reason}. Export the run again; for a "
                "pretrained model, install tfcap again."
            ) from error
        self._card = self._captioner.card
        self.views: int = self._card.get("views", 1)
        self._loading = threading.Lock()
        if "regions" in self._card:
            raise ValueError(
                f"The export {directory} reads features, not pictures. Use the script caption.py "
                "in it."
            )

    def __str__(self) -> str:
        decoding = self.decoding
        beam = decoding["search"] == "beam"
        how = f"beam {decoding['beam']}" if beam else f"{decoding['samples']} samples"
        name = pretrained.shown(os.path.join(self.directory, self._card["file"]))
        return f"{self._card['model']} of {name}, {how}"

    @property
    def exported(self) -> bool:
        return not has_run(self.directory)

    @property
    def samples(self) -> bool:
        return self._card["samples"] is not None

    @property
    def calibrated(self) -> bool:
        return "confidence" in self._card

    @property
    def threads(self) -> int:
        return 1 if self._card["file"].endswith(".onnx") else min(cores(), _MOST_THREADS)

    @property
    def decoding(self) -> dict[str, Any]:
        return self._card["decoding"]

    @property
    def trained(self) -> "TrainedRun":
        if self.exported:
            raise ValueError(
                f"{self.directory} is an export, which only captions pictures. For anything else "
                "load the run directory that it was exported from."
            )
        with self._loading:
            if self._run is None:
                from tfcap import runs
                from tfcap.captioning.runtimes import TrainedRun

                self._run = TrainedRun(runs.load(self.directory))
        return self._run

    def prepare(self, content: Content) -> np.ndarray:
        """Decodes a picture and resizes it; see `Runtime.prepare`.

        Returns the pixels, float32 in the shape that the file reads.
        """
        views = [self._resized(view) for view in views_of(content, self.views)]
        return views[0] if self.views == 1 else standalone.stacked(views, self._card)

    def _resized(self, content: View) -> np.ndarray:
        if isinstance(content, np.ndarray):
            return standalone.resized(content, self._card)
        content = readable(content)
        try:
            picture = standalone.pixels(content)
        except ValueError:
            raise ValueError(refusal(content)) from None
        return standalone.resized(picture, self._card)

    def caption(self, prepared: Sequence[np.ndarray], seeds: Sequence[int]) -> CaptionedBatch:
        """Captions a batch of prepared pictures, see `Runtime.caption`."""
        if self._card["file"].endswith(".onnx"):
            results = self._captioner.caption(np.stack(prepared), seeds=seeds)
        elif len(prepared) == 1:  # a thread would have memory of its own
            results = self._one(prepared[0], seeds[0])
        else:
            with ThreadPoolExecutor(min(len(prepared), self.threads)) as pool:
                results = [one for [one] in pool.map(self._one, prepared, seeds)]
        return CaptionedBatch(
            [[" ".join(words) for words in result["words"]] for result in results],
            [np.array(result["scores"]) for result in results],
            [""] * len(results),
            [[tuple(row) for row in result["log_probs"]] for result in results],
            confidences=[result["confidences"] for result in results] if self.calibrated else None,
        )

    def shown(self, caption: str) -> str:
        """Returns a caption as people write it, see `Runtime.shown`."""
        return self._captioner.joined(caption.split())

    def _one(self, picture: np.ndarray, seed: int) -> list[dict[str, list]]:
        return self._captioner.caption(picture[None], seeds=[seed])


def cores() -> int:
    """The number of processor cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def has_run(directory: str | os.PathLike) -> bool:
    """True if a directory holds a run, perhaps beside a portable export."""
    return os.path.isfile(os.path.join(directory, "params.yaml"))
