"""Captions pictures with an exported SavedModel, by TensorFlow alone.

Letters: B pictures, K captions of a picture, H and W height and width of a picture.
"""

from collections.abc import Sequence
from typing import Any, NoReturn

import numpy as np
import tensorflow as tf

from tfcap.captioning.inputs import FrameFolder
from tfcap.picture_files import clip_refusal, refusal


class ExportedModel:
    """The SavedModel that `tfcap.export` wrote.

    Args:
      path: the directory of one version.

    Raises:
      ValueError: it cannot be read, or it takes no pictures.
    """

    exported = True
    reranker = None

    def __init__(self, path: str):
        self.path = path
        try:
            self._loaded: Any = tf.saved_model.load(path)
        except (tf.errors.OpError, OSError, ValueError) as error:
            reason = str(error).splitlines()[0]
            raise ValueError(
                f"{path} is no SavedModel that can be loaded: {reason}. Export the run again."
            ) from error
        self._function = self._loaded.signatures.get("serving_default")
        inputs = self._function.structured_input_signature[1] if self._function else {}
        if "image_bytes" not in inputs:
            raise ValueError(
                f"{path} must have a signature serving_default with the input image_bytes. "
                f"Received: the inputs {', '.join(inputs) or 'none'}. Export a run that was "
                "trained on pictures."
            )
        self._samples = "seed" in inputs
        self.reads_clips = hasattr(self._loaded, "frames")  # see `runs.server.CaptionServer`

    def __str__(self) -> str:
        return f"the SavedModel {self.path}"

    def prepare(self, content: bytes | np.ndarray | FrameFolder) -> bytes:
        """Returns the bytes of a picture file; pixels uint8 [H, W, 3] become a PNG.

        Raises:
          ValueError: a folder of frames, which is not one file.
        """
        if isinstance(content, FrameFolder):
            raise ValueError(
                "an exported SavedModel reads files. Received: a folder of frames. Save the frames "
                "as a GIF file, or load the run directory."
            )
        if isinstance(content, bytes):
            if self.reads_clips and (reason := clip_refusal(content)):
                raise ValueError(reason)
            return content
        return tf.io.encode_png(content, compression=0).numpy()

    def find(
        self, prepared: Sequence[bytes], seeds: Sequence[int], words: bool
    ) -> tuple[list[list[str]], np.ndarray, list[list[None]], None]:
        """Finds the captions of B pictures; see `TrainedRuns.find`.

        Returns:
          The captions of each picture, best first; their scores [B, K]; no log-probabilities and
          no features, which a SavedModel does not give.

        Raises:
          ValueError: a picture cannot be decoded. The message is about the only picture if B is 1.
        """
        del words
        inputs = {"image_bytes": tf.constant(prepared)}
        if self._samples:
            inputs["seed"] = tf.constant(seeds, tf.int64)
        try:
            results = self._function(**inputs)
        except tf.errors.InvalidArgumentError:
            raise ValueError(refusal(prepared[0])) from None
        captions = [[text.decode() for text in row] for row in results["captions"].numpy()]
        return captions, results["scores"].numpy(), [[None] * len(row) for row in captions], None

    def attend(self, *_) -> NoReturn:
        """Raises ValueError: a SavedModel gives no weights of regions."""
        self._refuse("attention")

    def features(self, *_) -> NoReturn:
        """Raises ValueError: a SavedModel gives no features."""
        self._refuse("features")

    def score(self, *_) -> NoReturn:
        """Raises ValueError: a SavedModel scores no given texts."""
        self._refuse("scores of given texts")

    def export(self, *_) -> NoReturn:
        """Raises ValueError: a SavedModel is not exported again."""
        self._refuse("export")

    def _refuse(self, what: str) -> NoReturn:
        raise ValueError(
            f"An exported SavedModel only captions pictures; it has no {what}. Received: "
            f"{self.path}. Load the run directory that it was exported from."
        )
